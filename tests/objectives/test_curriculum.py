from __future__ import annotations

import pytest
import torch

from counterfoil.objectives.curriculum import After, Then
from counterfoil.objectives.triplet import HardestTriplet, RankedBelow, SumTriplet
from counterfoil.records import Role
from objectives_cases import drawn, judged


@pytest.mark.parametrize(("step", "summed"), [(0, True), (4, True), (5, False), (99, False)])
def test_the_first_term_holds_for_its_steps(step: int, summed: bool) -> None:
    s = drawn(0, [0, 1, 2], 3)[0]
    scores = judged(s, [0, 1, 2], step=step)
    wanted = SumTriplet()(scores) if summed else HardestTriplet()(scores)
    loss = Then(first=SumTriplet(), second=HardestTriplet(), steps=5)(scores)
    torch.testing.assert_close(loss, wanted)
    assert SumTriplet()(scores) > HardestTriplet()(scores)


def test_it_needs_what_both_need() -> None:
    then = Then(first=RankedBelow(role="edited"), second=RankedBelow(role="written"), steps=1)
    assert then.needs == {Role.EDITED, Role.WRITTEN}


def test_a_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 steps"):
        Then(first=SumTriplet(), second=SumTriplet(), steps=-1)


def test_terms_of_different_grids_are_refused() -> None:
    other = SumTriplet()
    other.needs_grid = "copies"
    with pytest.raises(ValueError, match="'inference' and the other 'copies'"):
        Then(first=SumTriplet(), second=other, steps=1)


@pytest.mark.parametrize(("step", "heard"), [(0, False), (4, False), (5, True), (9, True)])
def test_what_comes_after_is_silent_inside_a_curriculum_too(step: int, heard: bool) -> None:
    s = drawn(0, [0, 1, 2], 3)[0]
    scores = judged(s, [0, 1, 2], step=step)
    late = After(term=HardestTriplet(), steps=5)
    wanted = HardestTriplet()(scores) if heard else s.new_zeros(())
    assert HardestTriplet()(scores) > 0
    torch.testing.assert_close(Then(first=late, second=SumTriplet(), steps=50)(scores), wanted)
    torch.testing.assert_close(Then(first=SumTriplet(), second=late, steps=0)(scores), wanted)
