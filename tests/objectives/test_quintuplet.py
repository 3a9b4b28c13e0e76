from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.objectives.quintuplet import (
    AdaptiveQuintuplet,
    OfflineQuintuplet,
    OfflineTriplet,
)
from counterfoil.objectives.term import Term
from counterfoil.objectives.triplet import HardestTriplet
from objectives_cases import ROLES, drawn, judged, loop_quintuplet, with_roles

owners = st.lists(st.integers(0, 4), min_size=1, max_size=6)
KINDS: list[tuple[Term, bool, bool, bool]] = [
    (OfflineTriplet(), False, False, False),
    (OfflineQuintuplet(), True, False, False),
    (AdaptiveQuintuplet(), True, True, False),
    (AdaptiveQuintuplet(clamp=True), True, True, True),
]


@pytest.mark.parametrize(("term", "derived", "adaptive", "clamp"), KINDS)
@settings(max_examples=25, deadline=None)
@given(owner=owners, seed=st.integers(0, 999), count=st.integers(1, 3))
def test_equations_three_to_five(
    term: Term, derived: bool, adaptive: bool, clamp: bool, owner: list[int], seed: int, count: int
) -> None:
    tensors = drawn(seed, owner, 5, count)
    expected = loop_quintuplet(tensors, owner, derived=derived, adaptive=adaptive, clamp=clamp)
    assert term(with_roles(tensors, owner)).item() == pytest.approx(expected)


def test_gradient_is_equation_six() -> None:
    """The first line of Eq. 5 alone: its derivatives by S(i,t), S(i,t_off) and S(i,t_on)."""
    g1, g2, alpha, beta = 0.2, 0.05, 0.3, 1.5
    value = {"p": 0.6, "on": 0.55, "off": 0.7, "cross": 0.65, "low": -5.0}
    s = torch.tensor([[value["p"], value["on"]], [value["low"], 9.0]], requires_grad=True)
    columns = {
        ROLES[0]: torch.tensor([[value["off"]], [value["low"]]], requires_grad=True),
        ROLES[1]: torch.full((2, 1), value["low"]),
        ROLES[2]: torch.tensor([[value["cross"]], [value["low"]]], requires_grad=True),
        ROLES[3]: torch.full((2, 1), value["low"]),
    }
    term = AdaptiveQuintuplet(online=g1, offline=g2, alpha=alpha, beta=beta)
    term(judged(s, [0, 1], columns)).backward()
    p, on, off = value["p"], value["on"], value["off"]
    grads = (s.grad, columns[ROLES[0]].grad, columns[ROLES[2]].grad)
    assert all(g is not None for g in grads)
    by_s, by_off, by_cross = (g for g in grads if g is not None)
    assert by_s[0, 0].item() == pytest.approx((off - on) / alpha - beta - 1 - 1, abs=1e-5)
    assert by_off[0, 0].item() == pytest.approx((p - on) / alpha - g1 / alpha + 1, abs=1e-5)
    assert by_s[0, 1].item() == pytest.approx(
        (2 * on - p - off) / alpha + beta + g1 / alpha, abs=1e-5
    )
    assert by_cross[0, 0].item() == pytest.approx(1)


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
    grid = other.grids["inference"]
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
        torch.testing.assert_close(term(scores), HardestTriplet()(scores))


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


def test_an_impossible_alpha_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha of 0\.0"):
        AdaptiveQuintuplet(alpha=0.0)
