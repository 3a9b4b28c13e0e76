from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from artifact_cases import resealed
from counterfoil.core.artifact import Artifact
from counterfoil.data.readers import load_dataset
from counterfoil.search import ann
from counterfoil.search.vector_index import VectorIndex
from index_cases import clustered, empty, found, images, names, recall

KINDS = ("faiss-hnsw", "faiss-ivf-pq")


def near(vectors, count=50):
    return vectors[:count] + 0.02 * torch.randn(count, vectors.shape[1])


@pytest.fixture(scope="module")
def stored():
    return clustered(4000, 32)


@pytest.fixture(scope="module", params=KINDS)
def made(request, stored, tmp_path_factory):
    index = empty(tmp_path_factory.mktemp("x") / "x", 32, backend=request.param)
    index.change(images=images(names(4000), stored))
    return index


def test_finds_what_the_exact_index_finds(made, stored):
    assert recall(made, near(stored), stored) >= 0.95


def test_it_is_faiss_that_finds(made, stored, monkeypatch):
    """Not the comparison with everything, of which nothing is asked."""
    monkeypatch.setattr(type(made.images), "_rank_all", None)
    rows, _ = made.images.search(near(stored), 10)
    assert bool((rows >= 0).all())


def test_scores_are_exact_whoever_finds(made, stored, tmp_path):
    exact = empty(tmp_path / "x", 32)
    exact.change(images=images(names(4000), stored))
    asked = near(stored, 20)
    for one, other in zip(found(made, asked, 5), found(exact, asked, 5)):
        for name, score in set(one) & set(other):
            assert dict(other)[name] == pytest.approx(score, abs=1e-5)
        assert one[0][0] == other[0][0]


def test_opened_again_it_finds_the_same(made, stored):
    again = VectorIndex(made.folder)
    assert found(again, stored[:5], 7) == found(made, stored[:5], 7)


@pytest.mark.parametrize("kind", KINDS)
def test_added_are_found_and_deleted_are_not(stored, tmp_path, kind):
    index = empty(tmp_path / "x", 32, backend=kind)
    index.change(images=images(names(2000), stored[:2000]))
    index.change(images=images(names(500, 2000), stored[2000:2500]))
    assert [best[0][0] for best in found(index, stored[2000:2050], 1)] == names(50, 2000)
    first = [index.images.rows.get(name) for name in names(300)]
    index.change(remove_images=first)
    assert recall(index, near(stored[300:2500]), stored[300:2500]) >= 0.95
    left = {name for best in found(index, stored[:50], 20) for name, _ in best}
    assert not left & set(names(300))
    assert all(len(best) == 20 for best in found(index, stored[:50], 20))
    most = [index.images.rows.get(name) for name in names(1500, 300)]
    index.change(remove_images=most)
    again = VectorIndex(tmp_path / "x")
    assert len(again.images) == 700
    assert [best[0][0] for best in found(again, stored[1800:1850], 1)] == names(50, 1800)
    files = [path.name for path in (tmp_path / "x").glob("*.engine")]
    assert files == ([again.state.images.finder] if again.state.images.finder else [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_fails_is_as_if_it_never_was(stored, tmp_path, monkeypatch, kind):
    index = empty(tmp_path / "x", 32, backend=kind)
    index.change(images=images(names(2000), stored[:2000]))
    before = found(index, stored[:20], 5)
    with monkeypatch.context() as patch:
        patch.setattr(Artifact, "changed", None)
        with pytest.raises(TypeError):
            index.change(images=images(names(500, 2000), stored[2000:2500]))
    assert found(index, stored[:20], 5) == before
    index.change(remove_images=[1999])
    again = VectorIndex(tmp_path / "x")
    assert len(again.images) == 1999
    assert again.images.backend is not None
    assert recall(again, stored[:50], stored[:1999]) >= 0.95


CHANGES = {
    "add": ([], range(1500, 1600)),
    "delete": (range(1400), []),  # most of it, so that all is made anew
    "exchange": (range(0, 100), range(0, 100)),
}


@pytest.mark.parametrize("verb", CHANGES)
@pytest.mark.parametrize("kind", ["exact", *KINDS])
def test_what_a_kill_leaves_is_as_before_or_as_after(stored, tmp_path, monkeypatch, kind, verb):
    """The folder is looked at as it is before every file that is put in place or removed."""
    index, left = empty(tmp_path / "x", 32, backend=kind), []
    index.change(images=images(names(1500), stored[:1500]))
    gone, come = CHANGES[verb]

    def change(index: VectorIndex) -> None:
        new = -stored[list(come)] if verb == "exchange" else stored[list(come)]
        rows = [index.images.rows.get(f"i{n}") for n in gone]
        index.change(images=images([f"i{n}" for n in come], new), remove_images=rows)

    def seen(act):
        def acts(path, *words, **more):
            left.append(shutil.copytree(tmp_path / "x", tmp_path / f"left-{len(left)}"))
            return act(path, *words, **more)

        return acts

    asked = torch.cat([stored[1490:1510], stored[:10], -stored[:10]])
    before = found(index, asked, 5)
    with monkeypatch.context() as patch:
        for act in ("replace", "unlink"):
            patch.setattr(Path, act, seen(getattr(Path, act)))
        change(index)
    after, states = (
        found(index, asked, 5),
        [found(VectorIndex(folder), asked, 5) for folder in left],
    )
    assert before != after
    turn = states.index(after)
    assert turn > 0
    assert states == [before] * turn + [after] * (len(states) - turn)
    for folder in left[:turn]:
        again = VectorIndex(folder)
        change(again)
        assert len(again.images) == len(index.images)
        assert recall(again, asked, _living(again)) >= 0.9
    assert not list(left[turn - 1].glob("*.part"))


def _living(index: VectorIndex) -> torch.Tensor:
    return index.images.vectors(index.images.alive.nonzero().squeeze(1))


def test_few_vectors_have_no_cells(tmp_path):
    stored = torch.randn(100, 8)
    index = empty(tmp_path / "x", backend="faiss-ivf-pq")
    index.change(images=images(names(100), stored))
    assert index.state.images.finder == ""
    assert recall(index, stored[:20], stored) == 1
    more = torch.randn(ann.MIN_IVF_VECTORS, 8)
    index.change(images=images(names(len(more), 100), more))
    assert index.state.images.finder.endswith(".engine")
    assert recall(index, more[:20], torch.cat([stored, more])) >= 0.95


def test_outgrown_cells_are_learnt_anew(tmp_path, stored):
    index = empty(tmp_path / "x", 32, backend="faiss-ivf-pq")
    index.change(images=images(names(1100), stored[:1100]))
    backend = index.images.backend
    cells = [backend._faiss.downcast_index(backend._index.index).nlist]
    values = clustered(6000, 32, seed=1)
    index.change(images=images(names(6000, 1100), values))
    backend = index.images.backend
    cells.append(backend._faiss.downcast_index(backend._index.index).nlist)
    assert cells[1] > 2 * cells[0]
    assert recall(index, near(values), torch.cat([stored[:1100], values])) >= 0.95


def test_damage_and_loss_are_sentences(stored, tmp_path):
    index = empty(tmp_path / "x", 32, backend="faiss-hnsw")
    index.change(images=images(names(200), stored[:200]))
    path = tmp_path / "x" / index.state.images.finder
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="is damaged: its checksum does not fit; restore"):
        VectorIndex(tmp_path / "x")
    resealed(tmp_path / "x")
    with pytest.raises(ValueError, match="engine is damaged; make the index again"):
        VectorIndex(tmp_path / "x")
    path.unlink()
    with pytest.raises(ValueError, match="does not exist, but its manifest"):
        VectorIndex(tmp_path / "x")


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match=r"pip install \"counterfoil\[index\]\""):
        empty(tmp_path / "x", backend="faiss-hnsw")


@pytest.mark.slow
@pytest.mark.skipif("COUNTERFOIL_DATA" not in os.environ, reason="COUNTERFOIL_DATA is not set")
@pytest.mark.parametrize("backend", ["faiss-hnsw", "faiss-ivf-pq", "milvus"])
def test_photos_are_found_as_the_exact_index_finds_them(tmp_path, backend):
    """Vectors of the photos of Flickr8k: the means of their regions, as a detector sees them."""
    data = Path(os.environ["COUNTERFOIL_DATA"])
    dataset = load_dataset(data / "flickr8k", features=data / "flickr8k_regions")
    parts = torch.split(torch.arange(len(dataset)), 500)
    means = torch.cat([dataset.features.take(rows).values.float().mean(1) for rows in parts])
    stored = torch.nn.functional.normalize(means, dim=1)
    index = empty(tmp_path / "x", stored.shape[1], backend=backend)
    index.change(images=images(dataset.image_ids, stored))
    asked = torch.nn.functional.normalize(stored[:200] + stored[200:400], dim=1)
    found = recall(index, asked, stored)
    print(f"{backend}: recall@10 {found:.4f} of {len(stored):,} vectors of width {stored.shape[1]}")
    index.close()
    assert found >= 0.95
