from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given as every
from hypothesis import strategies as st

import processes
from counterfoil.engine import rerank as module
from counterfoil.engine.rerank import rerank
from counterfoil.engine.tiles import Member
from engine_cases import Dot, given, vectors


@every(st.integers(1, 9), st.integers(1, 12), st.integers(1, 6), st.integers(0, 999))
def test_lists_are_sorted_by_the_finer_score(images, texts, k, seed):
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(-2, 3, (images, texts), generator=rng).float()
    k = min(k, texts)
    proposed = torch.stack([torch.randperm(texts, generator=rng)[:k] for _ in range(images)]).int()
    proposed[torch.rand(proposed.shape, generator=rng) < 0.3] = -1
    got = rerank(given(scores), "image", proposed)
    for line, rows, values, old in zip(scores, got.rows, got.scores, proposed):
        kept = sorted(row for row in old.tolist() if row >= 0)
        kept.sort(key=lambda row: -line[row].item())
        gone = k - len(kept)
        assert rows.tolist() == kept + [-1] * gone
        assert values.tolist() == line[kept].tolist() + [float("-inf")] * gone
    assert got.rows.dtype == torch.int32


def test_texts_may_ask():
    scores = torch.randn(5, 4)
    proposed = torch.arange(5, dtype=torch.int32).expand(4, -1)
    got = rerank(given(scores), "text", proposed)
    assert torch.equal(got.rows.long(), scores.T.argsort(1, descending=True))


def reranked(seed: int) -> list[np.ndarray]:
    rng = torch.Generator().manual_seed(seed)
    member = Member(
        Dot(),
        vectors(torch.randn(20, 6, generator=rng)),
        vectors(torch.randn(30, 6, generator=rng)),
    )
    proposed = torch.randint(-1, 30, (20, 7), generator=rng)
    got = rerank(member, "image", proposed)
    return [got.rows.numpy(), got.scores.numpy()]


def test_several_processes_as_one(monkeypatch):
    monkeypatch.setattr(module, "_NUMBERS", 12 * 16)
    torch.set_num_threads(1)
    alone = reranked(5)
    for together in processes.run(reranked, 3, 5):
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_bad_lists():
    member = given(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"\(2, 5\) were given for 3 image queries"):
        rerank(member, "image", torch.zeros(2, 5, dtype=torch.int32))
    with pytest.raises(ValueError, match="row 4 was proposed, but there are 4"):
        rerank(member, "image", torch.full((3, 1), 4))


def test_nothing_proposed():
    got = rerank(given(torch.zeros(3, 4)), "image", torch.full((3, 2), -1))
    assert (got.rows == -1).all()
    assert got.scores.isneginf().all()


def test_nan_is_refused():
    values = torch.ones(3, 2)
    values[1] = torch.nan
    member = Member(Dot(), vectors(values), vectors(torch.ones(4, 2)))
    with pytest.raises(ValueError, match="image row 1 and text row 2 is not a number"):
        rerank(member, "image", torch.full((3, 1), 2))
