"""IVF proposes, and what it proposes is ranked exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import processes
from benchmarks.speed.pools import Product, member, pool
from counterfoil.core.types import Embeddings
from counterfoil.negatives import proposals
from counterfoil.negatives.mining import mine_lists, rerank_proposals
from counterfoil.negatives.proposals import (
    propose_by_ivf,
    propose_by_own_vectors,
    recall_of_lists,
)

pytest.importorskip("faiss")
LENGTHS = {"texts_per_image": 6, "images_per_text": 4}


def data():
    return pool(60, 300, 16, signal=0.5)


def test_with_every_centre_the_lists_are_those_of_all_pairs(monkeypatch):
    monkeypatch.setattr(proposals, "AT_ONCE", 32)
    images, texts, text_to_image = data()
    wide = {"texts_per_image": 60, "images_per_text": 40}  # room for rounding to a byte
    proposed = propose_by_ivf(images, texts, **wide, probes=1000)
    given = [member(images, texts)], text_to_image
    lists = rerank_proposals(proposed, *given, **LENGTHS)
    exact = mine_lists(*given, **LENGTHS)
    assert torch.equal(lists.texts, exact.texts)
    assert torch.equal(lists.images, exact.images)


def test_more_probes_miss_fewer():
    images, texts, text_to_image = data()
    exact = mine_lists([member(images, texts)], text_to_image, **LENGTHS)
    wide = {"texts_per_image": 60, "images_per_text": 40}
    recalls = [
        recall_of_lists(propose_by_ivf(images, texts, **wide, probes=n).texts, exact.texts)
        for n in (1, 4, 17)
    ]
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.7 < recalls[1] < recalls[2] == 1


def test_vectors_may_be_memory_mapped_and_one_side_may_stay_empty(tmp_path):
    images, texts, _ = data()
    np.save(tmp_path / "x.npy", images.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    lists = propose_by_ivf(mapped, texts, texts_per_image=0, images_per_text=40)
    assert lists.texts.tolist() == [[-1]] * 60
    assert torch.equal(
        lists.images,
        propose_by_ivf(images, texts, texts_per_image=2, images_per_text=40).images,
    )


def _proposed(count):
    images, texts, _ = pool(count, 5 * count, 16, signal=0.5)
    lists = propose_by_ivf(images, texts, texts_per_image=9, images_per_text=4, probes=2)
    return [lists.texts.numpy(), lists.images.numpy()]


@pytest.mark.parametrize("count", [31, 60])
def test_processes_share_the_queries(count):
    alone = _proposed(count)
    for together in processes.run(_proposed, 2, count):
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_sides_of_different_widths_are_refused():
    images, texts, _ = data()
    with pytest.raises(ValueError, match="width 16 and 8 were given"):
        propose_by_ivf(images, texts[:, :8], texts_per_image=1, images_per_text=1)


@pytest.mark.parametrize("kind", ["order", "bags"])
def test_a_model_that_is_no_inner_product_is_refused(kind):
    images, texts, _ = data()
    given = member(images, texts)
    if kind == "order":
        given = replace(given, model=Negated())
    else:
        bag = torch.stack([images, images], 1)
        given = replace(given, images=Embeddings(bag, torch.ones(bag.shape[:2], dtype=torch.bool)))
    with pytest.raises(
        ValueError, match="this model scores in another way; let an embedding model"
    ):
        propose_by_own_vectors(given, texts_per_image=2, images_per_text=2)


class Negated(Product):
    def score_matrix(self, images, texts):
        return -super().score_matrix(images, texts)
