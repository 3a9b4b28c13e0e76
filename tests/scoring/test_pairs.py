"""Scores of chosen pairs, and lists re-ranked by them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given as every
from hypothesis import strategies as st

import processes
from counterfoil.scoring import pairs as pairs_module
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.pairs import RescoredPairs, score_index_pairs
from engine_cases import Dot, given, vectors
from negatives_cases import HOSTS, host


def drawn(images: int, texts: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    image = torch.randint(images, (pairs,), generator=rng).sort().values
    return image, torch.randint(texts, (pairs,), generator=rng)


@pytest.mark.parametrize("names", [*((name,) for name in HOSTS), HOSTS], ids=str)
def test_pairs_are_entries_of_the_mean_matrix(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs_module, "_TEXTS", 3)  # images with more pairs than fit together
    monkeypatch.setitem(pairs_module._NUMBERS, "cpu", 256)
    members = [host(name, 9, 15) for name in names]
    image, text = drawn(9, 15, 60)
    found = score_index_pairs(members, image, text)
    with torch.no_grad():
        whole = torch.stack([m.model.score_matrix(m.images, m.texts) for m in members]).mean(0)
    torch.testing.assert_close(found, whole[image, text], rtol=1e-5, atol=2e-6)
    assert found.dtype == torch.float32
    assert not found.requires_grad


def test_some_images_have_no_pair() -> None:
    members = [host("scan-t2i", 9, 15)]
    image, text = torch.tensor([2, 2, 7]), torch.tensor([0, 14, 3])
    whole = members[0].model.score_matrix(members[0].images, members[0].texts)
    torch.testing.assert_close(score_index_pairs(members, image, text), whole[image, text].detach())
    nothing = torch.zeros(0, dtype=torch.long)
    assert score_index_pairs(members, nothing, nothing).shape == (0,)


def test_pairs_in_any_order() -> None:
    scores, image, text = torch.rand(3, 4), torch.arange(12) % 3, torch.arange(12) % 4
    assert torch.equal(score_index_pairs([given(scores)], image, text), scores[image, text])


def _scored_here(name: str) -> list[float]:
    torch.set_num_threads(1)
    found: list[float] = score_index_pairs([host(name, 9, 15)], *drawn(9, 15, 60)).tolist()
    return found


@pytest.mark.parametrize("name", ["scan-t2i", "vse"])
def test_processes_find_what_one_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pairs_module._NUMBERS, "cpu", 256)
    monkeypatch.setattr(pairs_module, "_AT_ONCE", 7)
    alone = _scored_here(name)
    assert processes.run(_scored_here, 3, name) == [alone] * 3


def test_not_a_number_is_named() -> None:
    values = torch.ones(3, 2)
    values[1] = torch.nan
    member = EmbeddedDataset(Dot(), vectors(values), vectors(torch.ones(4, 2)))
    with pytest.raises(ValueError, match="image row 1 and text row 2 is not a number"):
        score_index_pairs([member], torch.tensor([0, 1]), torch.tensor([3, 2]))


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
