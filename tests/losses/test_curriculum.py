from __future__ import annotations

import pytest
import torch

from counterfoil.core.types import Role
from counterfoil.losses.schedules import LinearRamp, StartAt, SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss, SumTripletLoss
from objectives_cases import drawn, judged


@pytest.mark.parametrize(("step", "summed"), [(0, True), (4, True), (5, False), (99, False)])
def test_the_first_term_holds_for_its_steps(step: int, summed: bool) -> None:
    s = drawn(0, [0, 1, 2], 3)[0]
    scores = judged(s, [0, 1, 2], step=step)
    wanted = SumTripletLoss()(scores) if summed else HardestTripletLoss()(scores)
    loss = SwitchAfter(first=SumTripletLoss(), second=HardestTripletLoss(), steps=5)(scores)
    torch.testing.assert_close(loss, wanted)
    assert SumTripletLoss()(scores) > HardestTripletLoss()(scores)


def test_it_needs_what_both_need() -> None:
    then = SwitchAfter(
        first=MarginRankingLoss(role="edited"), second=MarginRankingLoss(role="written"), steps=1
    )
    assert then.needs.roles == {Role.EDITED, Role.WRITTEN}


@pytest.mark.parametrize(("step", "heard"), [(0, False), (4, False), (5, True), (9, True)])
def test_what_comes_after_is_silent_inside_a_curriculum_too(step: int, heard: bool) -> None:
    s = drawn(0, [0, 1, 2], 3)[0]
    scores = judged(s, [0, 1, 2], step=step)
    late = StartAt(term=HardestTripletLoss(), steps=5)
    wanted = HardestTripletLoss()(scores) if heard else s.new_zeros(())
    assert HardestTripletLoss()(scores) > 0
    torch.testing.assert_close(
        SwitchAfter(first=late, second=SumTripletLoss(), steps=50)(scores), wanted
    )
    torch.testing.assert_close(
        SwitchAfter(first=SumTripletLoss(), second=late, steps=0)(scores), wanted
    )


@pytest.mark.parametrize(
    ("step", "share"), [(0, 1.0), (4, 1.0), (5, 0.0), (6, 0.1), (12, 0.7), (15, 1.0), (99, 1.0)]
)
def test_a_ramp_rises_evenly(step: int, share: float) -> None:
    s = drawn(0, [0, 1, 2], 3)[0].requires_grad_()
    scores = judged(s, [0, 1, 2], step=step)
    plain = HardestTripletLoss()(scores)
    loss = LinearRamp(term=HardestTripletLoss(), steps=10, start=5)(scores)
    torch.testing.assert_close(loss, share * plain)
    [wanted], [found] = (torch.autograd.grad(one, s, retain_graph=True) for one in (plain, loss))
    assert bool(wanted.any())
    torch.testing.assert_close(found, share * wanted)


def test_a_ramp_needs_what_its_term_needs() -> None:
    late = StartAt(term=MarginRankingLoss(role="edited"), steps=7)
    ramp = LinearRamp(term=late, steps=2)
    assert (ramp.needs, ramp.begins, ramp.view) == (late.needs, 7, late.view)
