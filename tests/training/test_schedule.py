from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.training.config import ConstantLR, CosineLR, LinearLR, LRSchedule, StepDecayLR


def curve(schedule: LRSchedule, per_epoch: int = 4, total: int = 20) -> list[float]:
    return [schedule.factor(s, per_epoch=per_epoch, total=total) for s in range(total)]


def test_constant() -> None:
    assert curve(ConstantLR()) == [1.0] * 20


def test_warmup_rises_evenly_to_one() -> None:
    assert curve(ConstantLR(warmup=4))[:6] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_warmup_as_a_share() -> None:
    assert curve(CosineLR(warmup=0.2)) == curve(CosineLR(warmup=4))


def test_drops_every_so_many_epochs() -> None:
    assert curve(StepDecayLR(every=2))[::4] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_drops_at_epochs() -> None:
    found = curve(StepDecayLR(at=(1, 3), by=0.5))
    assert found[3:5] == [1.0, 0.5]
    assert found[::4] == [1.0, 0.5, 0.5, 0.25, 0.25]


def test_ends() -> None:
    assert curve(LinearLR(end=0.1), total=10_000)[-1] == pytest.approx(0.1, abs=1e-3)
    assert curve(CosineLR(end=0.1), total=10_000)[-1] == pytest.approx(0.1, abs=1e-3)
    assert curve(CosineLR(), total=1000)[500] == pytest.approx(0.5)
    assert curve(LinearLR(), total=1000)[250] == pytest.approx(0.75)


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


def test_two_kinds_with_the_same_numbers_differ() -> None:
    assert CosineLR().kind != LinearLR().kind
    assert CosineLR() != LinearLR()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ConstantLR(warmup=-1), "warmup=-1 is negative"),
        (lambda: StepDecayLR(), "name either the epochs between"),
        (lambda: StepDecayLR(every=1, at=(2,)), "name either the epochs between"),
    ],
)
def test_bad_numbers(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
