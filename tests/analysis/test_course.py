from __future__ import annotations

import json
import statistics

import pytest

from counterfoil.analysis.runs import (
    PERCENTILES,
    caption_difficulty,
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


@pytest.fixture
def read(tmp_path):
    """The difficulty of captions by a log."""

    def read(lines: list[dict[str, float]], name: str = "one"):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "metrics.jsonl").write_text(text)
        return caption_difficulty(name, tmp_path)

    return read


def test_read(read):
    found = read(log())
    assert found["steps"] == list(range(10, 201, 10))
    assert found["percent_above"] == [50 - n for n in range(1, 21)]
    assert found["percentiles"][3] == [level - 40 for level in PERCENTILES]
    assert found["loss"][1] == 0.05
    assert read(log(loss=False))["loss"] == []


def test_logs_of_other_trainings(read):
    assert read([{"step": 10, "loss": 1.0}]) is None
    with pytest.raises(ValueError, match=r"metrics\.jsonl tells only a part"):
        read([{"step": 10, "written_above": 1.0}])


def test_first_and_last(read):
    first, last = first_and_last(read(log()))
    assert (first["from"], first["to"], last["from"], last["to"]) == (10, 40, 170, 200)
    above = first["percent_above"]
    assert above.value == statistics.fmean([49, 48, 47, 46])
    assert last["gap"].value == statistics.fmean([-170, -180, -190, -200])
    assert 46 <= above.interval.low <= above.value <= above.interval.high <= 49
    first, last = first_and_last(read(log(1)))
    assert first["from"] == last["to"] == 10


def test_figures(read):
    courses = [read(log()), read(log(3), "two$")]
    drawn, shown, loss = difficulty_figures(courses, loss=True)
    assert drawn.svg.startswith("<svg")
    assert "one: median +40.000 at step 10, -150.000 at step 200" in drawn.alt
    assert "two$ from 49 to 47" in shown.caption[1]
    assert "one from 0.1 to 0.005" in loss.alt
    assert len(list(difficulty_figures(courses))) == 2
    assert list(difficulty_figures([])) == []
