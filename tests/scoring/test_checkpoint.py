from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import processes
from counterfoil.core.resumable import WorkStopped
from counterfoil.scoring import checkpoint, stream
from counterfoil.scoring.checkpoint import StreamCheckpoint, weights_digest
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import Ranks, TopK
from counterfoil.scoring.stream import stream_scores
from engine_cases import Dot, Noisy, vectors

IMAGES, TEXTS, K = 50, 120, 7
Found = list[np.ndarray]


class Clock:
    """Says stop when it is asked for the nth time."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self) -> bool:
        self.times -= 1
        return self.times < 0


def swept(folder: str | None, stop_after: int = 999, *, look: bool = False) -> Found | None:
    """Lists both ways, kept in a folder; None when stopped before the end."""
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(3)
    left = torch.randint(-2, 3, (IMAGES, 6), generator=rng).float()  # many ties
    right = torch.randint(-2, 3, (TEXTS, 6), generator=rng).float()
    text_to_image = torch.randint(-1, IMAGES, (TEXTS,), generator=rng)
    lists = TopK("image", IMAGES, K, text_to_image), TopK("text", TEXTS, 200, text_to_image)
    ranks = [Ranks("text", TEXTS, text_to_image)] if look else []
    keeper = StreamCheckpoint(
        {"image": lists[0], "text": lists[1]},
        {"of": "this test"},
        folder=None if folder is None else Path(folder),
        every=0.0,
        stop=Clock(stop_after),
    )
    member = EmbeddedDataset(Dot(), vectors(left), vectors(right))
    try:
        stream_scores([member], [*lists, *ranks], tile=(16, 32), checkpoint=keeper)
    except WorkStopped:
        return None
    return [part.numpy() for r in lists for part in (r.rows, r.scores)]


@pytest.fixture(scope="module")
def whole() -> Found:
    found = swept(None)
    assert found is not None
    return found


def same(found: Found | None, whole: Found) -> None:
    assert found is not None
    for a, b in zip(found, whole, strict=True):
        assert np.array_equal(a, b)


def covered(folder: Path) -> int:
    """Tiles that some file holds."""
    parts = [np.unpackbits(load_file(f)["done"].numpy()) for f in folder.glob("*.safetensors")]
    assert np.max(np.sum(parts, 0)) == 1, "two files hold the same tile"
    return int(np.sum(parts))


@pytest.mark.parametrize("look", [False, True])
def test_a_sweep_stopped_at_every_round_ends_like_one_that_was_not(tmp_path, whole, look):
    before = 0
    for _ in range(20):
        found = swept(str(tmp_path), 0, look=look)
        if found is not None:
            break
        assert [f.name for f in tmp_path.iterdir()] == ["process-0.safetensors"]
        assert covered(tmp_path) == before + 1
        before += 1
    same(found, whole)
    assert before == 15


@pytest.mark.parametrize("sizes", [(2, 1), (1, 3), (3, 2, 1), (2, 3, 2, 1)])
def test_any_number_of_processes_goes_on(tmp_path, whole, sizes):
    for size in sizes[:-1]:
        assert processes.run(swept, size, str(tmp_path), 0) == [None] * size
        assert len(list(tmp_path.glob("*.safetensors"))) == size
    assert covered(tmp_path) == sum(sizes[:-1])
    for found in processes.run(swept, sizes[-1], str(tmp_path)):
        same(found, whole)


def _stopped_by_one(folder: str) -> Found | None:
    first = torch.distributed.get_rank() == 0
    return swept(folder, 1 if first else 999)


@pytest.mark.parametrize(("cost", "saved"), [(1.0, 9), (30.0, 2)])
def test_saving_takes_a_small_part_of_the_time(tmp_path, monkeypatch, cost, saved):
    """Lists of ten million items take minutes to save, which was tried every minute."""
    now, times = [0.0], []

    def slow(self: StreamCheckpoint) -> None:
        now[0] += cost
        times.append(now[0])

    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(StreamCheckpoint, "_save", slow)
    rounds = StreamCheckpoint({}, {}, folder=tmp_path / "kept", every=60.0).rounds(1000)
    for _ in rounds:
        now[0] += 3.0  # a round of one tile
        if now[0] > 600:
            break
    assert len(times) == saved
    assert cost * saved < 0.16 * now[0]


def test_when_one_process_is_asked_to_stop_all_do(tmp_path, whole):
    assert processes.run(_stopped_by_one, 2, str(tmp_path)) == [None, None]
    assert covered(tmp_path) == 2 * 3
    same(swept(str(tmp_path)), whole)


def test_a_finished_sweep_is_taken_up_too(tmp_path, whole):
    same(swept(str(tmp_path)), whole)
    same(swept(str(tmp_path), 0), whole)


def _shown(folder: str, stop_after: int) -> list[int]:
    """What the first process's bar counts: all, done before, done then."""
    shown: list[int] = []

    @contextlib.contextmanager
    def bar(description: str, total: int, completed: int) -> Iterator[Callable[[int], None]]:
        shown.extend((total, completed))
        yield shown.append

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "progress", bar)
        swept(folder, stop_after)
    return [*shown[:2], sum(shown[2:])]


def test_the_bar_counts_everybody_and_what_was_done_before(tmp_path):
    assert _shown(str(tmp_path), 1) == [16, 0, 3]  # rounds of one and of two
    assert processes.run(_shown, 2, str(tmp_path), 1)[0] == [16, 3, 6]
    assert covered(tmp_path) == 9
    assert processes.run(_shown, 2, str(tmp_path), 99)[0] == [16, 9, 7]


def test_what_another_file_holds_is_counted_once(tmp_path, whole):
    """A kill between writing the new file and removing the old ones leaves both."""
    assert processes.run(swept, 3, str(tmp_path), 1) == [None] * 3
    old = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    assert swept(str(tmp_path), 0) is None
    for name in ("process-1.safetensors", "process-2.safetensors"):
        (tmp_path / name).write_bytes(old[name])
    for found in processes.run(swept, 2, str(tmp_path)):
        same(found, whole)


def test_a_file_that_overlaps_another_is_left_out(tmp_path, whole):
    for folder, times in (("a", 2), ("b", 1)):
        assert processes.run(swept, 2, str(tmp_path / folder), times) == [None] * 2
    (tmp_path / "a" / "process-2.safetensors").write_bytes(
        (tmp_path / "b" / "process-0.safetensors").read_bytes()
    )
    same(swept(str(tmp_path / "a")), whole)


@pytest.mark.parametrize("keep", [0, 100, 2000, -1])
def test_a_damaged_file_is_scored_again_and_said(tmp_path, whole, capsys, keep):
    assert processes.run(swept, 2, str(tmp_path), 1) == [None, None]
    damaged = tmp_path / "process-1.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:keep])
    same(swept(str(tmp_path)), whole)
    said = " ".join(capsys.readouterr().err.split())
    assert "process-1.safetensors is damaged" in said
    assert "scored again" in said


def test_a_flipped_byte_is_noticed(tmp_path, whole):
    assert swept(str(tmp_path), 1) is None
    file = tmp_path / "process-0.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    same(swept(str(tmp_path)), whole)


def test_half_written_files_and_strangers_do_no_harm(tmp_path, whole):
    assert swept(str(tmp_path), 1) is None
    (tmp_path / ".process-0.safetensors.abc.part").write_bytes(b"half")
    (tmp_path / "process-mine.safetensors").write_bytes(b"else")
    same(swept(str(tmp_path)), whole)
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "process-0.safetensors",
        "process-mine.safetensors",
    ]


def _refused(folder: str, of: str) -> str:
    keeper = StreamCheckpoint({"image": TopK("image", 4, 2)}, {"of": of}, folder=Path(folder))
    try:
        keeper.begin((1, 1), (16, 16))
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("size", [1, 2])
def test_something_else_is_refused_by_every_process(tmp_path, size):
    assert swept(str(tmp_path), 1) is None
    for said in processes.run(_refused, size, str(tmp_path), "another test"):
        assert "was begun otherwise: of is this test there and another test here; continue" in said
    for said in processes.run(_refused, size, str(tmp_path), "this test"):
        assert "otherwise: tiles is 4 x 4 of 16 x 32 there and 1 x 1 of 16 x 16 here" in said


def _own_folder(folder: str) -> str:
    return _refused(f"{folder}/{torch.distributed.get_rank()}", "this test")


def test_folders_that_are_not_shared_are_refused(tmp_path):
    assert swept(str(tmp_path / "0"), 1) is None
    for said in processes.run(_own_folder, 2, str(tmp_path)):
        assert "does not hold the same files for every process" in said


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file; name another place"):
        StreamCheckpoint({}, {}, folder=tmp_path / "file")


def test_rounds_grow_while_they_are_short_and_shrink_when_long(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    sizes = []
    for many in StreamCheckpoint({}, {}).rounds(200):
        sizes.append(many)
        now[0] += 0.1 * many
    assert sizes == [1, 2, 4, *[8] * 24, 1]
    longer = itertools.count(1)
    sizes = []
    for many in StreamCheckpoint({}, {}).rounds(31):
        sizes.append(many)
        now[0] += 0.1 * many if next(longer) < 5 else 9.0
    assert sizes == [1, 2, 4, 8, 8, 4, 2, 1, 1]


def test_a_stop_that_comes_after_the_last_tile_is_no_stop():
    assert list(StreamCheckpoint({}, {}, stop=lambda: True).rounds(1)) == [1]
    with pytest.raises(WorkStopped):
        list(StreamCheckpoint({}, {}, stop=lambda: True).rounds(2))


def test_killed_at_random_moments(tmp_path, whole):
    """SIGKILL, while every round is saved, until one comes to its end."""
    for attempt in range(10):
        kept = tmp_path / f"kept-{attempt}"
        if kills := _kills(str(kept)):
            break  # on a busy machine one may come to its end at once
        shutil.rmtree(kept)
    assert kills
    same(swept(str(kept)), whole)


def _kills(folder: str) -> int:
    for patience in range(60):
        child = processes.forked(lambda: swept(folder) is None)
        time.sleep(0.003 * (1 + patience))
        if not processes.killed(child):
            return patience
    return 60


def test_weights_digest_follows_the_weights():
    torch.manual_seed(0)
    one, other = Noisy(), Noisy()
    assert weights_digest(one) != weights_digest(other)
    other.load_state_dict(one.state_dict())
    assert weights_digest(one) == weights_digest(other)


def test_a_digest_is_of_the_weights_as_they_are() -> None:
    """What is frozen is remembered; a change of it in place, or by other weights, is seen."""
    module = torch.nn.Linear(3, 2)
    first = weights_digest(module)
    assert weights_digest(module.requires_grad_(False)) == first
    assert weights_digest(module) == first
    with torch.no_grad():
        module.weight[0, 0] += 1
    second = weights_digest(module)
    assert second != first
    module.load_state_dict({name: value * 0 for name, value in module.state_dict().items()})
    assert weights_digest(module) not in (first, second)
    with torch.inference_mode():
        made = torch.nn.Linear(3, 2).requires_grad_(False)
        third = weights_digest(made)
        made.weight[0, 0] += 1
        assert weights_digest(made) != third
