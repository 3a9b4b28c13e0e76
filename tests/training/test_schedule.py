from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.training.config import ConstantLR, CosineLR, LinearLR, LRSchedule, StepDecayLR


def curve(schedule: LRSchedule, per_epoch: int = 4, total: int = 20) -> list[float]:
    return [schedule.factor(s, per_epoch=per_epoch, total=total) for s in range(total)]


@pytest.mark.parametrize(
    ("schedule", "at", "factors"),
    [
        (ConstantLR(), range(20), [1.0] * 20),
        (ConstantLR(warmup=4), range(6), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        (StepDecayLR(every=2), range(0, 20, 4), [1, 1, 0.1, 0.1, 0.01]),
        (StepDecayLR(at=(1, 3), by=0.5), (0, 3, 4, 8, 12, 16), [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (LinearLR(), (5, 10, 15), [0.75, 0.5, 0.25]),
        (CosineLR(), (5, 10), [(1 + 0.5**0.5) / 2, 0.5]),
        (CosineLR(end=0.1), (0, 10), [1, 0.55]),
    ],
)
def test_factors(schedule: LRSchedule, at: Iterable[int], factors: list[float]) -> None:
    found = curve(schedule)  # 4 steps in an epoch, 20 in all
    assert [found[step] for step in at] == pytest.approx(factors)


def test_warmup_as_a_share_and_the_last_factor() -> None:
    assert curve(CosineLR(warmup=0.2)) == curve(CosineLR(warmup=4))
    for kind in (LinearLR, CosineLR):
        assert curve(kind(end=0.1), total=10_000)[-1] == pytest.approx(0.1, abs=1e-3)


schedules = st.sampled_from([ConstantLR, CosineLR, LinearLR]).flatmap(
    lambda make: st.builds(make, warmup=st.floats(0, 50))
)


@given(schedules, st.integers(1, 50), st.integers(1, 60))
def test_a_factor_is_a_share_and_falls_after_warmup(
    schedule: LRSchedule, per_epoch: int, total: int
) -> None:
    found = curve(schedule, per_epoch, total)
    assert all(0 <= factor <= 1 for factor in found)
    peak = found.index(max(found))
    assert found[:peak] == sorted(found[:peak])
    assert found[peak:] == sorted(found[peak:], reverse=True)
