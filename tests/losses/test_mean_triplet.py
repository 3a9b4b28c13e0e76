from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.losses.base import Reduction
from counterfoil.losses.triplet import MeanTripletLoss
from objectives_cases import drawn, judged

MARGIN = 0.3


def by_loops(scores: torch.Tensor, text_to_image: list[int], semi_hard: bool) -> float:
    """Mean over texts and over images of every true pair, one hinge after the other."""
    s, sides = scores.tolist(), ([], [])
    for text, image in enumerate(text_to_image):
        p = s[image][text]
        sides[0].extend(
            s[image][o] - p for o in range(len(text_to_image)) if text_to_image[o] != image
        )
        sides[1].extend(s[o][text] - p for o in range(len(s)) if o != image)
    total = 0.0
    for gaps in sides:
        costs = [max(0.0, MARGIN + gap) for gap in gaps]
        if semi_hard:
            costs = [min(cost, MARGIN) for cost in costs if cost > 0]
        total += sum(costs) / max(1, len(costs))
    return total


@pytest.mark.parametrize("semi_hard", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@settings(max_examples=30, deadline=None)
@given(text_to_image=st.lists(st.integers(0, 4), min_size=1, max_size=7), seed=st.integers(0, 999))
def test_equals_a_loop_over_ids(
    semi_hard: bool, reduction: Reduction, text_to_image: list[int], seed: int
) -> None:
    scores = drawn(seed, text_to_image, 5)[0]
    term = MeanTripletLoss(margin=MARGIN, semi_hard=semi_hard, reduction=reduction)
    expected = by_loops(scores, text_to_image, semi_hard) * (
        len(text_to_image) if reduction == "sum" else 1
    )
    assert term(judged(scores, text_to_image)).item() == pytest.approx(expected, abs=1e-9)
