"""AOQ, Eq. 6: the derivatives of the first line of Eq. 5, written by hand."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from counterfoil.losses.aoq import AdaptiveQuintuplet
from objectives_cases import ROLES, judged

ONLINE, OFFLINE, ALPHA, BETA = 0.2, 0.05, 0.3, 1.5
LOW = -9.0


class Line(NamedTuple):
    """What stands for S(i, t), S(i, t_on), S(i, t_off) and the derived pair's score."""

    positive: float
    online: float
    offline: float
    derived: float


def by_hand(line: Line, *, live: float = 1.0, weight: float | None = None) -> Line:
    """Eq. 6; `live` is 0 where the weight counts as a constant, `weight` stands in for it."""
    p, on, off, derived = line
    real = BETA - (off - on) / ALPHA if weight is None else weight
    online = float(ONLINE - p + on > 0)
    offline, cross = float(OFFLINE - p + off > 0), float(OFFLINE - p + derived > 0)
    pull = live * (ONLINE - p + on) / ALPHA
    return Line(
        -real * online - offline - cross,
        (pull + real) * online,
        -pull * online + offline,
        cross,
    )


def by_autograd(line: Line, term: AdaptiveQuintuplet) -> Line:
    """The same from the loss; all that is not of the first line of anchor 0 is out of reach."""
    s = torch.tensor(
        [[line.positive, line.online], [LOW, -LOW]], dtype=torch.double, requires_grad=True
    )
    scores = {
        ROLES[0]: [line.offline, LOW],
        ROLES[1]: [LOW, LOW],
        ROLES[2]: [line.derived, LOW],
        ROLES[3]: [LOW, LOW],
    }
    columns = {
        role: torch.tensor(column, dtype=torch.double).unsqueeze(1).requires_grad_()
        for role, column in scores.items()
    }
    block, text, cross = torch.autograd.grad(
        term(judged(s, [0, 1], columns)), [s, columns[ROLES[0]], columns[ROLES[2]]]
    )
    return Line(*(float(g) for g in (block[0, 0], block[0, 1], text[0, 0], cross[0, 0])))


def loss(**switches: bool) -> AdaptiveQuintuplet:
    return AdaptiveQuintuplet(online=ONLINE, offline=OFFLINE, alpha=ALPHA, beta=BETA, **switches)


numbers = st.floats(-1, 1)
lines = st.builds(Line, numbers, numbers, numbers, numbers)


def near_a_bend(line: Line) -> bool:
    p, on, off, derived = line
    bends = ONLINE - p + on, OFFLINE - p + off, OFFLINE - p + derived, BETA - (off - on) / ALPHA
    return any(abs(bend) < 1e-9 for bend in bends)


@settings(max_examples=80, deadline=None)
@given(line=lines)
def test_gradients_are_equation_six(line: Line) -> None:
    assume(not near_a_bend(line))
    assert by_autograd(line, loss()) == pytest.approx(by_hand(line), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(line=lines)
def test_a_detached_weight_is_a_constant(line: Line) -> None:
    assume(not near_a_bend(line))
    assert by_autograd(line, loss(detach=True)) == pytest.approx(by_hand(line, live=0.0), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(line=lines)
def test_a_clamped_weight_stops_at_nothing(line: Line) -> None:
    assume(not near_a_bend(line))
    stopped = (line.offline - line.online) / ALPHA > BETA
    wanted = by_hand(line, live=0.0, weight=0.0) if stopped else by_hand(line)
    assert by_autograd(line, loss(clamp=True)) == pytest.approx(wanted, abs=1e-9)


def parts() -> dict[str, Line]:
    """Every hinge once active and once not, all else alike."""
    return {
        "all": Line(0.6, 0.55, 0.7, 0.65),
        "online": Line(0.6, 0.55, 0.4, 0.4),
        "offline": Line(0.6, 0.1, 0.7, 0.4),
        "derived": Line(0.6, 0.1, 0.4, 0.65),
        "none": Line(0.6, 0.1, 0.4, 0.4),
    }


def test_every_hinge_is_seen_active_and_not() -> None:
    a, b = by_autograd(parts()["all"], loss()), by_hand(parts()["all"])
    assert a == pytest.approx(b, abs=1e-9)
    assert by_autograd(parts()["none"], loss()) == pytest.approx((0, 0, 0, 0))
    assert by_autograd(parts()["offline"], loss()) == pytest.approx((-1, 0, 1, 0))
    assert by_autograd(parts()["derived"], loss()) == pytest.approx((-1, 0, 0, 1))
    alone = by_autograd(parts()["online"], loss())
    assert alone.positive == pytest.approx((0.4 - 0.55) / ALPHA - BETA)
    assert alone.online == pytest.approx((2 * 0.55 - 0.6 - 0.4) / ALPHA + BETA + ONLINE / ALPHA)
    assert alone.offline == pytest.approx((0.6 - 0.55) / ALPHA - ONLINE / ALPHA)


@pytest.mark.parametrize(("clamp", "past"), [(False, 1), (True, 0)])
def test_the_pull_on_the_positive_turns_where_the_gap_is_alpha_times_beta(
    clamp: bool, past: int
) -> None:
    """Beyond that gap the online hinge pushes the positive down, unless the weight is clamped."""
    p, on, step = 0.1, 0.0, 1e-3
    turn = on + ALPHA * BETA
    signs = []
    for off in (turn - step, turn + step):
        steady = 1.0  # of the offline hinge, which is active: off > p
        found = by_autograd(Line(p, on, off, LOW), loss(clamp=clamp)).positive + steady
        signs.append(0 if abs(found) < 1e-12 else int(found > 0) - int(found < 0))
    assert signs == [-1, past]
