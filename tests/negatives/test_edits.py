from __future__ import annotations

import pytest
import torch
from torch import Tensor

from counterfoil.core.types import ModalityBatch
from counterfoil.negatives.counterfactual import (
    editable,
    overwrite_tokens,
    stack_items,
    without_regions,
    without_words,
)

COUNTS = [5, 1, 3, 4]


def items(seed: int, *, words: bool, counts: list[int] = COUNTS) -> ModalityBatch:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.arange(5) < torch.tensor(counts).unsqueeze(1)
    if words:
        values = torch.randint(4, 99, mask.shape, generator=rng)
        return ModalityBatch(torch.arange(len(counts)), values, mask)
    boxes = torch.rand(len(counts), 5, 4, generator=rng)
    values = torch.randn(len(counts), 5, 3, generator=rng)
    return ModalityBatch(
        torch.arange(len(counts)), values, mask, boxes, torch.zeros(len(counts), 1, 2)
    )


def rank(seed: int) -> Tensor:
    return torch.rand(len(COUNTS), 5, generator=torch.Generator().manual_seed(seed))


def most(ranks: list[float], may: list[bool]) -> list[int]:
    return sorted((n for n in range(len(ranks)) if may[n]), key=lambda n: -ranks[n])


def how_many(may: list[bool], share: float) -> int:
    return min(max(int(sum(may) * share), 1), sum(may))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("words", [True, False])
def test_overwritten_rank_by_rank(share: float, words: bool) -> None:
    into, source = items(0, words=words), items(1, words=words, counts=[2, 4, 3, 1])
    ranks, may = (rank(0), rank(1)), (into.mask, source.mask)
    found = overwrite_tokens(into, source, ranks, may, share=share)
    wanted = into.values.clone()
    for n in range(len(COUNTS)):
        mine = most(ranks[0][n].tolist(), may[0][n].tolist())
        its = most(ranks[1][n].tolist(), may[1][n].tolist())
        for a, b in list(zip(mine, its))[: how_many(may[0][n].tolist(), share)]:
            wanted[n, a] = source.values[n, b]
    assert torch.equal(found.values, wanted)
    assert torch.equal(found.mask, into.mask)
    assert (found.ids == -1).all()
    assert found.targets is None
    if not words:
        moved = (found.values != into.values).all(2)
        assert moved.any()
        assert torch.equal(moved, (found.boxes != into.boxes).all(2))


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_hidden_regions_become_the_mean_of_the_rest(share: float) -> None:
    images, ranks = items(0, words=False), rank(2)
    garbage = images.values.masked_fill(~images.mask.unsqueeze(2), torch.nan)
    images = ModalityBatch(images.ids, garbage, images.mask)
    found = without_regions(images, ranks, share=share)
    for n, count in enumerate(COUNTS):
        out = most(ranks[n].tolist(), images.mask[n].tolist())
        out = out[: how_many(images.mask[n].tolist(), share)]
        rest = [images.values[n, r] for r in range(count) if r not in out]
        mean = torch.stack(rest).mean(0) if rest else torch.zeros(3)
        for r in range(count):
            wanted = mean if r in out else images.values[n, r]
            torch.testing.assert_close(found.values[n, r], wanted)


def test_hidden_words() -> None:
    texts, ranks = items(0, words=True), rank(3)
    may = texts.mask.clone()
    may[:, 0] = False
    found = without_words(texts, ranks, may, share=0.5, mask=2)
    for n in range(len(COUNTS)):
        out = most(ranks[n].tolist(), may[n].tolist())[: how_many(may[n].tolist(), 0.5)]
        wanted = [2 if w in out else int(texts.values[n, w]) for w in range(5)]
        assert found.values[n].tolist() == wanted
    assert torch.equal(found.values[1], texts.values[1]), "a text without words stays"


def test_special_tokens_stay_where_they_are_known() -> None:
    texts = items(0, words=True)
    assert torch.equal(editable(texts, specials=False), texts.mask)
    number = torch.arange(5).expand(4, 5).clone()
    number[:, 0] = -1
    known = ModalityBatch(texts.ids, texts.values, texts.mask, words=number)
    assert torch.equal(editable(known, specials=True), texts.mask)
    assert not editable(known, specials=False)[:, 0].any()
    assert torch.equal(editable(known, specials=False)[:, 1:], texts.mask[:, 1:])


def test_equal_ranks_prefer_what_stands_first() -> None:
    texts = items(0, words=True)
    found = without_words(texts, torch.zeros(4, 5), texts.mask, share=0.4, mask=2)
    assert (found.values[0] == 2).tolist() == [True, True, False, False, False]


def test_stacked() -> None:
    parts = [items(seed, words=False) for seed in range(3)]
    found = stack_items(parts)
    assert len(found) == 12
    for n, part in enumerate(parts):
        assert torch.equal(found.rows(slice(4 * n, 4 * n + 4)).values, part.values)
        assert torch.equal(found.rows(slice(4 * n, 4 * n + 4)).boxes, part.boxes)
