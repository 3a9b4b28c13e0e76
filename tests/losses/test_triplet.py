from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterfoil.core.types import INFERENCE, Role, ScoreMatrix, Scores
from counterfoil.losses.aoq import AdaptiveQuintuplet
from counterfoil.losses.base import Loss
from counterfoil.losses.contrastive import InfoNCELoss, SigmoidLoss
from counterfoil.losses.triplet import (
    HardestTripletLoss,
    MarginRankingLoss,
    SemiHardTripletLoss,
    SumTripletLoss,
)
from objectives_cases import (
    drawn,
    each_pair,
    judged,
    loop_hardest,
    loop_infonce,
    loop_semi_hard,
    loop_sum,
    with_roles,
)

Loop = Callable[[float, list[float], list[float]], float]
LOOPS: list[tuple[Loss, Loop]] = [
    (SumTripletLoss(margin=0.3), loop_sum(0.3)),
    (HardestTripletLoss(margin=0.3), loop_hardest(0.3)),
    (SemiHardTripletLoss(margin=0.3), loop_semi_hard(0.3)),
    (InfoNCELoss(temperature=0.2), loop_infonce(0.2)),
]
owners = st.lists(st.integers(0, 4), min_size=1, max_size=7)


@pytest.mark.parametrize(("term", "loop"), LOOPS, ids=lambda x: type(x).__name__)
@settings(max_examples=30, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999))
def test_terms_equal_loops_over_ids(
    term: Loss, loop: Loop, text_to_image: list[int], seed: int
) -> None:
    scores = drawn(seed, text_to_image, 5)[0]
    assert term(judged(scores, text_to_image)).item() == pytest.approx(
        each_pair(scores, text_to_image, loop), abs=1e-6
    )


@pytest.mark.parametrize(
    "term",
    [term for term, _ in LOOPS] + [SigmoidLoss(), AdaptiveQuintuplet()],
    ids=lambda x: type(x).__name__,
)
@settings(max_examples=15, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999))
def test_order_of_images_and_texts_does_not_matter(
    term: Loss, text_to_image: list[int], seed: int
) -> None:
    tensors = drawn(seed, text_to_image, 5, 2)
    rng = torch.Generator().manual_seed(seed)
    images = torch.randperm(5, generator=rng)
    texts = torch.randperm(len(text_to_image), generator=rng)
    moved = (tensors[0][images][:, texts], *(pair[texts] for pair in tensors[1:]))
    new_owner = images.argsort()[torch.tensor(text_to_image)][texts].tolist()
    before, after = term(with_roles(tensors, text_to_image)), term(with_roles(moved, new_owner))
    torch.testing.assert_close(before, after)
    left = torch.autograd.grad(before, tensors[0])[0]
    right = torch.autograd.grad(after, tensors[0])[0]
    torch.testing.assert_close(left, right)


def released(s: Tensor, margin: float, hardest: bool) -> Tensor:
    """The loss of the VSE++ family on a square block whose diagonal is true."""
    diagonal = s.diagonal().view(-1, 1)
    eye = torch.eye(len(s), dtype=torch.bool)
    texts = (margin + s - diagonal).clamp(min=0).masked_fill(eye, 0)
    images = (margin + s - diagonal.T).clamp(min=0).masked_fill(eye, 0)
    if hardest:
        return texts.max(1)[0].sum() + images.max(0)[0].sum()
    return texts.sum() + images.sum()


@pytest.mark.parametrize("hardest", [False, True])
def test_identity_mask_gives_the_families_loss_and_gradient(hardest: bool) -> None:
    term: Loss = HardestTripletLoss(margin=0.2) if hardest else SumTripletLoss(margin=0.2)
    s = drawn(7, list(range(6)), 6)[0]
    ours, theirs = term(judged(s, list(range(6)))), released(s, 0.2, hardest)
    torch.testing.assert_close(ours, theirs)
    (left,), (right,) = torch.autograd.grad(ours, s), torch.autograd.grad(theirs, s)
    torch.testing.assert_close(left, right)


def test_another_caption_of_my_image_is_no_negative_unless_positives_are_diagonal() -> None:
    """Image 0 has texts 0 and 1; as a row of the authors' block it stands twice."""
    by_id = torch.tensor([[0.9, 0.95, 0.1], [0.2, 0.1, 0.8]])
    assert HardestTripletLoss()(judged(by_id, [0, 0, 1])).item() == 0
    rows = by_id[[0, 0, 1]]
    diagonal = HardestTripletLoss()(judged(rows, [0, 1, 2]))
    torch.testing.assert_close(diagonal, released(rows, 0.2, True))
    assert diagonal.item() > 0


def test_equally_hard_negatives_share_the_gradient() -> None:
    s = torch.tensor([[0.5, 0.5, 0.5], [0.0, 0.9, 0.0], [0.0, 0.0, 0.9]], requires_grad=True)
    HardestTripletLoss(margin=0.2)(judged(s, [0, 1, 2])).backward()
    assert s.grad is not None
    assert s.grad[0].tolist() == pytest.approx([-1.0, 0.5, 0.5])


def test_semi_hard_takes_the_easiest_where_all_are_too_hard() -> None:
    s = torch.tensor([[0.1, 0.5, 0.3], [0.0, 0.9, 0.0], [0.0, 0.0, 0.9]])
    assert SemiHardTripletLoss(margin=0.2)(judged(s, [0, 1, 2])).item() == pytest.approx(0.4 + 0.1)


def test_ranked_below_is_a_mean_over_candidates_of_its_role_only() -> None:
    pairs = {Role.WRITTEN: torch.tensor([[0.9, 0.4]]), Role.EDITED: torch.tensor([[9.0]])}
    scores = judged(torch.tensor([[0.8]]), [0], pairs)
    assert MarginRankingLoss(role="written", margin=0.1)(scores).item() == pytest.approx(0.1)


def test_ranked_below_counts_the_candidates_that_there_are() -> None:
    none = -torch.inf
    written = torch.tensor([[0.9, 0.4, none], [none] * 3], requires_grad=True)
    s = torch.tensor([[0.8, 0.0], [0.0, 0.8]], requires_grad=True)
    loss = MarginRankingLoss(role="written", margin=0.1)(judged(s, [0, 1], {Role.WRITTEN: written}))
    assert loss.item() == pytest.approx(0.1)
    loss.backward()
    assert written.grad is not None
    assert written.grad.tolist() == [[0.5, 0, 0], [0, 0, 0]]
    assert s.grad is not None
    assert s.grad.diagonal().tolist() == [-0.5, 0]


@pytest.mark.parametrize("most", [0.05, 0.3, 9.0])
@pytest.mark.parametrize("shift", [0.0, 0.2, -2.0])
def test_an_adaptive_margin_is_the_mean_lead_between_0_and_its_bound(
    most: float, shift: float
) -> None:
    """By a loop, in float64, with gradients; a candidate of -inf has no lead."""
    s, *_, written = drawn(5, [0, 1, 2], 3, count=4)
    written = (written - shift).detach()
    written[0, 1] = written[2] = -torch.inf
    written.requires_grad_()
    found = MarginRankingLoss(role="written", margin=most, adaptive=True)(
        judged(s, [0, 1, 2], {Role.WRITTEN: written})
    )
    pairs = [(b, n) for b in range(3) for n in range(4) if written[b, n] > -torch.inf]
    lead = sum(s[b, b].item() - written[b, n].item() for b, n in pairs) / len(pairs)
    margin = min(max(lead, 0.0), most)
    expected = s.new_zeros(())
    for b, n in pairs:
        count = sum(other == b for other, _ in pairs)
        expected = expected + (margin + written[b, n] - s[b, b]).clamp(min=0) / count
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    if found > 0:
        for ours, theirs in zip(
            torch.autograd.grad(found, (s, written)), torch.autograd.grad(expected, (s, written))
        ):
            torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def test_an_adaptive_margin_where_nothing_is_written_costs_nothing() -> None:
    written = torch.full((2, 3), -torch.inf)
    loss = MarginRankingLoss(role="written", margin=0.1, adaptive=True)
    assert loss(judged(torch.eye(2), [0, 1], {Role.WRITTEN: written})).item() == 0


def test_a_term_can_judge_another_grid_than_its_anchors_come_from() -> None:
    """A training view with two images per anchor: both are true, the anchor score is its own."""
    s = torch.tensor([[0.9, 0.8], [0.6, 0.1], [0.1, 0.7], [0.3, 0.6]], dtype=torch.float64)
    positive = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1]]).bool()
    grid = ScoreMatrix(s, positive, anchor=s[[0, 2], [0, 1]])
    loss = HardestTripletLoss(margin=0.2)(Scores({INFERENCE: grid}))
    wrong = s.masked_fill(positive, -torch.inf)
    expected = 0.0
    for image, text in positive.nonzero().tolist():
        for n in (wrong[image].max(), wrong[:, text].max()):
            expected += max(0.0, 0.2 + n.item() - s[image, text].item())
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("kind", [SumTripletLoss, HardestTripletLoss])
def test_another_grid_is_judged_where_it_is_named(kind):
    scores = drawn(0, [0, 1, 1], 3)[0].detach()
    other = judged(scores, [0, 1, 1]).matrices[INFERENCE]
    flat = judged(torch.zeros_like(scores), [0, 1, 1]).matrices[INFERENCE]
    both = Scores({INFERENCE: flat, "both enhanced": other})
    term = kind(view="both enhanced")
    assert term.view == "both enhanced"
    assert torch.equal(term(both), kind()(Scores({INFERENCE: other})))
    assert not torch.equal(term(both), kind()(both))
