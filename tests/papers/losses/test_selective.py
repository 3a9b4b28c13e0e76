from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.papers.compared.losses import SelectiveHardNegativeLoss
from objectives_cases import drawn, each_pair, judged

owners = st.lists(st.integers(0, 4), min_size=1, max_size=7)


def loop(margin: float, epsilon: float):
    def one(p: float, side: list[float]) -> float:
        if not side:
            return 0.0
        hinges = [max(0.0, margin + n - p) for n in side]
        if abs(max(side) - p) >= epsilon:
            return max(hinges)
        return sum(hinges) / len(side)

    return lambda p, texts, images: one(p, texts) + one(p, images)


@settings(max_examples=40, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999), epsilon=st.sampled_from([0.05, 0.2, 0.5]))
def test_equals_a_loop_over_anchors(text_to_image, seed, epsilon):
    scores = drawn(seed, text_to_image, 5)[0]
    term = SelectiveHardNegativeLoss(margin=0.3, epsilon=epsilon)
    expected = each_pair(scores, text_to_image, loop(0.3, epsilon))
    assert term(judged(scores, text_to_image)).item() == pytest.approx(expected, abs=1e-9)


def test_with_an_epsilon_of_0_it_is_the_hardest():
    text_to_image = [0, 1, 1, 3, 2]
    scores = judged(drawn(1, text_to_image, 4)[0], text_to_image)
    never = SelectiveHardNegativeLoss(epsilon=0.0)
    torch.testing.assert_close(never(scores), HardestTripletLoss()(scores))


def authors(s: Tensor, margin: float, epsilon: float) -> Tensor:
    """On a square block whose diagonal is true, in the words of the authors' code."""
    true, eye = s.diagonal(), torch.eye(len(s), dtype=torch.bool)
    total = s.new_zeros(())
    for block in (s, s.T):
        hinges = (margin + block - true.unsqueeze(1)).clamp(min=0).masked_fill(eye, 0)
        hard = block.masked_fill(eye, -1).amax(1)
        mean, most = hinges.sum(1) / (len(s) - 1), hinges.amax(1)
        total = total + torch.where((true - hard).abs() < epsilon, mean, most).mean() / 2
    return total


def test_half_the_mean_is_the_authors_value_and_gradient():
    text_to_image = list(range(6))
    s = drawn(2, text_to_image, 6)[0]
    term = SelectiveHardNegativeLoss(epsilon=0.2, reduction="mean")
    ours, theirs = term(judged(s, text_to_image)) / 2, authors(s, 0.2, 0.2)
    torch.testing.assert_close(ours, theirs)
    (left,), (right,) = torch.autograd.grad(ours, s), torch.autograd.grad(theirs, s)
    torch.testing.assert_close(left, right)


def test_where_all_scores_are_equal_every_negative_is_pushed():
    """The hardest alone would push one negative and pull the positive by as much."""
    s = torch.full((3, 3), 0.4, requires_grad=True)
    SelectiveHardNegativeLoss()(judged(s, [0, 1, 2])).backward()
    assert s.grad.diagonal().tolist() == pytest.approx([-2.0] * 3)
    assert s.grad[0, 1:].tolist() == pytest.approx([1.0, 1.0])
