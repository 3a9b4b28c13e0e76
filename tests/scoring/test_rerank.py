from __future__ import annotations

import pytest
import torch
from hypothesis import given as every
from hypothesis import strategies as st

from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.pairs import RescoredPairs
from engine_cases import Dot, given, vectors


def proposals(queries: int, answers: int, rng: torch.Generator) -> torch.Tensor:
    """Up to 5 different rows for every query, with gaps."""
    k = min(5, answers)
    rows = torch.stack([torch.randperm(answers, generator=rng)[:k] for _ in range(queries)]).int()
    return rows.masked_fill(torch.rand(rows.shape, generator=rng) < 0.3, -1)


@every(st.integers(1, 9), st.integers(1, 12), st.integers(1, 6), st.integers(0, 999))
def test_lists_are_sorted_by_the_finer_score(images, texts, k, seed):
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(-2, 3, (images, texts), generator=rng).float()
    lists = proposals(images, texts, rng), proposals(texts, images, rng)
    rescored = RescoredPairs([given(scores)], *lists)
    for side, proposed, lines in (("image", lists[0], scores), ("text", lists[1], scores.T)):
        got = rescored.best(side, k)
        for line, rows, values, old in zip(lines, *got, proposed, strict=True):
            kept = sorted(row for row in old.tolist() if row >= 0)
            kept = sorted(kept, key=lambda row: -line[row].item())[:k]
            gone = min(k, len(old)) - len(kept)
            assert rows.tolist() == kept + [-1] * gone
            assert values.tolist() == line[kept].tolist() + [float("-inf")] * gone
        assert got[0].dtype == torch.int32


def test_a_pair_in_both_lists_is_scored_once() -> None:
    texts, images = torch.tensor([[1, 0], [-1, 1]]), torch.tensor([[0], [1]])
    rescored = RescoredPairs([given(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))], texts, images)
    assert len(rescored) == 3  # 0-1, 0-0, 1-1
    assert rescored.scores("image").tolist() == [[2.0, 1.0], [-torch.inf, 4.0]]
    assert rescored.scores("text").tolist() == [[1.0], [4.0]]


def test_nothing_proposed():
    rescored = RescoredPairs(
        [given(torch.zeros(3, 4))], torch.full((3, 2), -1), torch.full((4, 1), -1)
    )
    rows, scores = rescored.best("image", 2)
    assert (rows == -1).all()
    assert scores.isneginf().all()
    assert len(rescored) == 0


def test_nan_is_refused():
    values = torch.ones(3, 2)
    values[1] = torch.nan
    member = EmbeddedDataset(Dot(), vectors(values), vectors(torch.ones(4, 2)))
    with pytest.raises(ValueError, match="image row 1 and text row 2 is not a number"):
        RescoredPairs([member], torch.full((3, 1), 2), torch.full((4, 1), -1))
