from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.losses.aoq import (
    AdaptiveQuintuplet,
    OfflineQuintuplet,
    OfflineTriplet,
    OnlineQuintuplet,
)
from counterfoil.losses.base import Loss
from counterfoil.losses.triplet import HardestTripletLoss
from objectives_cases import (
    ROLES,
    drawn,
    judged,
    loop_online_quintuplet,
    loop_quintuplet,
    with_roles,
)

owners = st.lists(st.integers(0, 4), min_size=1, max_size=6)
KINDS: list[tuple[Loss, bool, bool, bool]] = [
    (OfflineTriplet(), False, False, False),
    (OfflineQuintuplet(), True, False, False),
    (AdaptiveQuintuplet(), True, True, False),
    (AdaptiveQuintuplet(clamp=True), True, True, True),
]


@pytest.mark.parametrize(("term", "derived", "adaptive", "clamp"), KINDS)
@settings(max_examples=25, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999), count=st.integers(1, 3))
def test_equations_three_to_five(
    term: Loss,
    derived: bool,
    adaptive: bool,
    clamp: bool,
    text_to_image: list[int],
    seed: int,
    count: int,
) -> None:
    tensors = drawn(seed, text_to_image, 5, count)
    expected = loop_quintuplet(
        tensors, text_to_image, derived=derived, adaptive=adaptive, clamp=clamp
    )
    assert term(with_roles(tensors, text_to_image)).item() == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(
    text_to_image=owners,
    seed=st.integers(0, 999),
    derived=st.booleans(),
    online=st.sampled_from([None, 0.2]),
    power=st.sampled_from([1, 2]),
)
def test_only_offline_and_squared_hinges(
    text_to_image: list[int], seed: int, derived: bool, online: float | None, power: int
) -> None:
    tensors = drawn(seed, text_to_image, 5, 2)
    kind = OfflineQuintuplet if derived else OfflineTriplet
    term = kind(online=online, offline=0.1, squared=power == 2)
    expected = loop_quintuplet(
        tensors,
        text_to_image,
        derived=derived,
        adaptive=False,
        online=online,
        offline=0.1,
        power=power,
    )
    assert term(with_roles(tensors, text_to_image)).item() == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999), count=st.integers(1, 3))
def test_without_the_offline_adaptive_term(text_to_image: list[int], seed: int, count: int) -> None:
    tensors = drawn(seed, text_to_image, 5, count)
    term = AdaptiveQuintuplet(reference="positive", alpha=0.5, beta=1.1)
    expected = loop_quintuplet(
        tensors,
        text_to_image,
        derived=True,
        adaptive=True,
        alpha=0.5,
        beta=1.1,
        reference="positive",
    )
    assert term(with_roles(tensors, text_to_image)).item() == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999), margin=st.sampled_from([0.0, 0.3]))
def test_online_quintuplet(text_to_image: list[int], seed: int, margin: float) -> None:
    tensors = drawn(seed, text_to_image, 5)
    expected = loop_online_quintuplet(tensors, text_to_image, offline=margin)
    found = OnlineQuintuplet(offline=margin)(with_roles(tensors, text_to_image))
    assert found.item() == pytest.approx(expected)


def test_online_quintuplet_takes_no_true_pair_for_a_derived_one() -> None:
    """Texts 0 and 1 are each other's hardest: t_on describes i_on, whose score is the highest."""
    s = torch.tensor([[0.6, 0.5], [0.5, 9.0]])
    low = {role: torch.full((2, 1), -9.0) for role in OnlineQuintuplet().needs.roles}
    scores = judged(s, [0, 1], low)
    torch.testing.assert_close(OnlineQuintuplet()(scores), HardestTripletLoss()(scores))


def test_detached_weights_change_the_gradient_only() -> None:
    tensors = drawn(1, [0, 1, 2], 3)
    scores = with_roles(tensors, [0, 1, 2])
    live, still = AdaptiveQuintuplet(), AdaptiveQuintuplet(detach=True)
    torch.testing.assert_close(live(scores), still(scores))
    (a,) = torch.autograd.grad(live(scores), tensors[0], retain_graph=True)
    (b,) = torch.autograd.grad(still(scores), tensors[0])
    assert not torch.allclose(a, b)
    by_hand = tensors[0].detach().clone().requires_grad_()
    weights = live.weights(scores)
    other = judged(by_hand, [0, 1, 2])
    wrong = by_hand.masked_fill(torch.eye(3).bool(), -torch.inf)
    grid = other.matrices["inference"]
    loss = (weights.text.detach()[:, 0] * (0.2 + wrong.amax(1) - grid.anchor).clamp(min=0)).sum()
    loss = (
        loss
        + (weights.image.detach()[:, 0] * (0.2 + wrong.amax(0) - grid.anchor).clamp(min=0)).sum()
    )
    for pair in scores.pairs.values():
        loss = loss + (pair.detach()[:, 0] - grid.anchor).clamp(min=0).sum()
    (c,) = torch.autograd.grad(loss, by_hand)
    torch.testing.assert_close(b, c)


def test_a_weight_may_be_negative_unless_clamped() -> None:
    s = torch.tensor([[0.5, 0.45], [0.0, 0.9]])
    pairs = {role: torch.full((2, 1), 2.0 if role is ROLES[0] else -9.0) for role in ROLES}
    scores = judged(s, [0, 1], pairs)
    assert AdaptiveQuintuplet().weights(scores).text[0].item() < 0
    assert AdaptiveQuintuplet(clamp=True).weights(scores).text[0].item() == 0
    assert AdaptiveQuintuplet(clamp=True)(scores) > AdaptiveQuintuplet()(scores)


def test_without_mined_hardness_it_is_the_online_triplet() -> None:
    s = drawn(2, [0, 1, 1, 2], 3)[0]
    low = {role: torch.full((4, 1), -99.0, dtype=s.dtype) for role in ROLES}
    scores = judged(s, [0, 1, 1, 2], low)
    for term in (OfflineTriplet(), OfflineQuintuplet()):
        torch.testing.assert_close(term(scores), HardestTripletLoss()(scores))


def test_a_batch_without_negatives_still_trains_on_mined_ones() -> None:
    tensors = drawn(3, [0, 0], 1)
    pairs = {role: (t.detach() + 1).requires_grad_() for role, t in zip(ROLES, tensors[1:])}
    scores = judged(tensors[0], [0, 0], pairs)
    term = AdaptiveQuintuplet()
    loss = term(scores)
    loss.backward()
    assert loss.item() > 0
    assert (term.weights(scores).text == 1.5).all()
    grads = [tensors[0].grad, *(pair.grad for pair in pairs.values())]
    assert all(g is not None and g.isfinite().all() for g in grads)
