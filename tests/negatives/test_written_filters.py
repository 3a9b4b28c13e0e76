from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterfoil.negatives.generation.inputs import (
    agrees_with_wording,
    copies_original,
    hardest_allowed,
    is_true_caption,
    occurs_in_captions,
    penalise_copies,
    repeated_captions,
)


@st.composite
def written(draw: Any) -> tuple[Tensor, Tensor]:
    """Few words, so that there are copies and repetitions."""
    sizes = draw(st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 3)))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    return (
        torch.randint(0, 3, sizes, generator=rng),
        torch.randint(0, 3, (sizes[0], sizes[2]), generator=rng),
    )


@given(written())
@settings(deadline=None)
def test_rules_are_those_of_a_loop(given: tuple[Tensor, Tensor]) -> None:
    texts, old = given
    there = torch.tensor([[True, False, True]] * len(texts))
    there[0] = ~there[0]
    found = (
        copies_original(texts, old),
        repeated_captions(texts),
        is_true_caption(texts, old, there),
    )
    for b, some in enumerate(texts.tolist()):
        said = {word for word in range(3) if there[b, word]}
        for n, text in enumerate(some):
            new = {word for word, was in zip(text, old[b].tolist(), strict=True) if word != was}
            wanted = text == old[b].tolist(), text in some[n + 1 :], new <= said
            assert tuple(bool(rule[b, n]) for rule in found) == wanted


@given(written(), st.integers(1, 12))
@settings(deadline=None)
def test_the_hardest_of_what_may_be_kept(given: tuple[Tensor, Tensor], count: int) -> None:
    texts, old = given
    rng = torch.Generator().manual_seed(count)
    scores, keep = torch.rand(texts.shape[:2], generator=rng), ~copies_original(texts, old)
    places = hardest_allowed(scores, keep, count)
    assert places.shape == (len(texts), count)
    for b, row in enumerate(places.tolist()):
        order = [n for n in scores[b].argsort(descending=True).tolist() if keep[b, n]]
        assert row == (order + [-1] * count)[:count]


def test_words_that_occur() -> None:
    captions, mask = torch.tensor([[1, 2], [3, 0], [4, 4]]), torch.tensor([[1, 1], [1, 0], [1, 1]])
    there = occurs_in_captions(captions, mask.bool(), torch.tensor([0, 0, 2]), (3, 5))
    assert [row.nonzero().flatten().tolist() for row in there] == [[1, 2, 3], [], [4]]


def test_lowered_scores() -> None:
    scores = torch.tensor([[2.0, 0.0, -1.0, 3.0]])
    copy = torch.tensor([[True, False, False, True]])
    again = torch.tensor([[False, True, False, True]])
    assert penalise_copies(scores, copy, again, scale="logits").tolist() == [
        [-1.0, -2.0, -1.0, -2.0]
    ]
    low = penalise_copies(scores, copy, again, scale="sigmoid")
    assert low.argmax() == 2
    assert torch.allclose(low[0, 0], scores[0, 0].sigmoid() - 3)
    with pytest.raises(ValueError, match="'sigmoids' is not a scale"):
        penalise_copies(scores, copy, again, scale="sigmoids")  # type: ignore[arg-type]


def test_inflections_agree_where_every_new_words_does() -> None:
    form, old = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 2]])
    texts = torch.tensor([[[1, 3], [2, 2], [0, 2], [1, 0]]])
    assert agrees_with_wording(texts, old, form).tolist() == [[True, False, True, False]]
