from __future__ import annotations

import statistics

import pytest

from counterfoil.analysis.runs import (
    PERCENTILES,
    CaptionDifficulty,
    difficulty_figures,
    first_and_last,
)


def log(steps: int = 20, *, loss: bool = True) -> list[dict[str, float]]:
    found: list[dict[str, float]] = [{"step": 1, "epoch": 1, "dev_rsum": 3.0}]
    for step in range(10, 10 * steps + 1, 10):
        line = {"step": step, "loss": 1.0, "written_above": 50 - step / 10, "written_gap": -step}
        line |= {f"written_gap_p{level}": level - step for level in PERCENTILES}
        found.append({**line, "loss_written": 1 / step} if loss else line)
    return found


def test_read():
    found = CaptionDifficulty.from_log("one", log())
    assert found.steps.tolist() == list(range(10, 201, 10))
    assert found.above.tolist() == [50 - n for n in range(1, 21)]
    assert found.spread[3].tolist() == [level - 40 for level in PERCENTILES]
    assert found.loss[1] == 0.05
    assert len(CaptionDifficulty.from_log("one", log(loss=False)).loss) == 0


def test_logs_of_other_trainings():
    assert CaptionDifficulty.from_log("one", [{"step": 10, "loss": 1.0}]) is None
    with pytest.raises(KeyError):
        CaptionDifficulty.from_log("one", [{"step": 10, "written_above": 1.0}])


def test_first_and_last():
    course = CaptionDifficulty.from_log("one", log())
    first, last = first_and_last(course)
    assert (first.first, first.last, last.first, last.last) == (10, 40, 170, 200)
    assert first.above.value == statistics.fmean([49, 48, 47, 46])
    assert last.gap.value == statistics.fmean([-170, -180, -190, -200])
    assert 46 <= first.above.interval.low <= first.above.value <= first.above.interval.high <= 49
    lonely = CaptionDifficulty.from_log("one", log(1))
    first, last = first_and_last(lonely)
    assert first.first == last.last == 10


def test_figures():
    courses = [CaptionDifficulty.from_log("one", log()), CaptionDifficulty.from_log("two$", log(3))]
    drawn, shown, loss = difficulty_figures(courses, loss=True)
    assert drawn.svg.startswith("<svg")
    assert "one: median +40.000 at step 10, -150.000 at step 200" in drawn.alt
    assert "two$ from 49 to 47" in shown.caption[1]
    assert "one from 0.1 to 0.005" in loss.alt
    assert len(list(difficulty_figures(courses))) == 2
    assert list(difficulty_figures([])) == []
