"""Milvus from a file in the index; it is slow to start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from counterfoil.core.artifact import Artifact
from counterfoil.search import ann
from counterfoil.search.vector_index import VectorIndex
from index_cases import clustered, empty, found, images, names, recall, texts

pytestmark = pytest.mark.slow


@pytest.fixture
def index(tmp_path):
    made = empty(tmp_path / "x", 32, backend="milvus")
    yield made
    made.close()


def test_finds_what_the_exact_index_finds(index, monkeypatch):
    stored = clustered(4000, 32)
    index.change(images=images(names(4000), stored))
    monkeypatch.setattr(type(index.images), "_rank_all", None)
    assert recall(index, stored[:50] + 0.02 * torch.randn(50, 32), stored) >= 0.95


def test_added_deleted_and_opened_again(index, tmp_path):
    stored = clustered(1500, 32)
    index.change(
        images=images(names(1000), stored[:1000]), texts=texts(names(200), stored[1000:1200])
    )
    index.change(images=images(names(300, 1000), stored[1200:]))
    index.change(remove_images=[index.images.rows.get(name) for name in names(100)])
    again = VectorIndex(tmp_path / "x")
    for one in (index, again):
        assert len(one.images) == 1200
        assert [best[0][0] for best in found(one, stored[1200:1220], 1)] == names(20, 1000)
        assert not {n for best in found(one, stored[:20], 20) for n, _ in best} & set(names(100))
        rows, _ = one.texts.search(stored[1000:1005], 1)
        assert rows.flatten().tolist() == [0, 1, 2, 3, 4]
    again.close()  # the file stays open for the other
    assert found(index, stored[1200:1201], 1)[0][0][0] == "i1000"


def test_nothing_stays_open(tmp_path):
    index = empty(tmp_path / "x", 32, backend="milvus")
    index.change(images=images(names(10), torch.randn(10, 32)))
    index.close()
    assert not any(ann._open_files.values())
    moved = (tmp_path / "x").rename(tmp_path / "y")
    index = VectorIndex(moved)
    assert len(found(index, torch.randn(1, 32), 5)[0]) == 5
    index.close()


class Killed(Exception):
    pass


def test_killed_before_it_counts(index, monkeypatch, tmp_path):
    """What had been sent is known to Milvus and not to the index; the next write replaces it."""
    stored = clustered(900, 32)
    index.change(images=images(names(500), stored[:500]))
    before = found(index, stored[500:510], 5)
    real = Artifact.changed

    def killed(*words):
        raise Killed

    monkeypatch.setattr(Artifact, "changed", killed)
    with pytest.raises(Killed):
        index.change(images=images(names(400, 500), stored[500:]))
    monkeypatch.setattr(Artifact, "changed", real)
    assert found(index, stored[500:510], 5) == before
    again = VectorIndex(tmp_path / "x")
    assert found(again, stored[500:510], 5) == before
    again.change(images=images(["new"], -stored[700:701]))
    assert found(again, -stored[700:701], 1)[0][0][0] == "new"
    assert len(again.images) == 501
    again.close()


def test_killed_after_it_counts(index, monkeypatch, tmp_path):
    stored = clustered(500, 32)
    index.change(images=images(names(500), stored))
    monkeypatch.setattr(ann.MilvusBackend, "delete", lambda *words: None)
    index.change(remove_images=list(range(200)))
    left = {n for best in found(index, stored[:20], 10) for n, _ in best}
    assert not left & set(names(200))
    assert all(len(best) == 10 for best in found(index, stored[:20], 10))


KILLED = """
import os, signal, sys
from pathlib import Path
from counterfoil.core.artifact import Artifact
from index_cases import clustered, empty, images

stored, real = clustered(900, 32), Artifact.changed
names = [f"i{n}" for n in range(900)]
index = empty(Path(sys.argv[1]), 32, backend="milvus")
index.change(images=images(names[:500], stored[:500]))

def killed(*words):
    if sys.argv[2] == "after":
        real(*words)
    os.kill(os.getpid(), signal.SIGKILL)

Artifact.changed = killed
index.change(images=images(names[500:], stored[500:]), remove_images=range(100))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_counts_outlives_a_kill(tmp_path, when):
    """No vector that the index says it holds is missing from Milvus."""
    words = [sys.executable, "-c", KILLED, str(tmp_path / "x"), when]
    path = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    stored, index = clustered(900, 32), VectorIndex(tmp_path / "x")
    first, last = (0, 500) if when == "before" else (100, 900)
    assert len(index.images) == last - first
    assert [best[0][0] for best in found(index, stored[last - 50 : last], 1)] == names(
        50, last - 50
    )
    assert recall(index, stored[first:last:9], stored[first:last]) >= 0.95
    index.change(
        images=images(["new"], -stored[700:701]), remove_images=[index.images.rows.get("i400")]
    )
    assert found(index, -stored[700:701], 1)[0][0][0] == "new"
    assert index.images.rows.get("i400") is None
    index.close()


def test_a_second_process_is_told(index, tmp_path):
    index.change(images=images(names(10), torch.randn(10, 32)))
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from counterfoil.search.vector_index import VectorIndex\n"
        "try:\n    VectorIndex(Path(sys.argv[1]))\nexcept ValueError as error:\n    print(error)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "x")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "one process at a time" in done.stdout
    assert done.stderr == ""


def test_no_server_at_the_address(tmp_path):
    with pytest.raises(ValueError, match="a server must run there"):
        empty(tmp_path / "x", backend="milvus", address="http://127.0.0.1:9")


@pytest.mark.skipif("MILVUS_ADDRESS" not in os.environ, reason="no server at MILVUS_ADDRESS")
def test_a_server_by_the_same_code(tmp_path):
    index = empty(tmp_path / "x", 32, backend="milvus", address=os.environ["MILVUS_ADDRESS"])
    stored = clustered(2000, 32)
    index.change(images=images(names(2000), stored))
    assert recall(index, stored[:50], stored) >= 0.95
