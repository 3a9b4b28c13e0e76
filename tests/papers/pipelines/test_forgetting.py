"""What a fine-tuned model has forgotten, on its own data and on others, as its report tells it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import recipes_cases
from counterfoil.evaluation.bootstrap import Comparison, Interval, compare
from counterfoil.evaluation.metrics import METRICS
from counterfoil.evaluation.results import RunResult, results
from counterfoil.pipelines.pipeline import Compare, Evaluate, stage_digests
from counterfoil.pipelines.stages.compare import forgetting_sentence
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.recipes.clip import FineTunedModel, fine_tune_recipe, with_forgetting
from recipes_cases import run

SCENES, OTHER = "scenes:images=36", "scenes:images=60,seed=5"
SHORT = ("--set", "*.epochs=1", "--set", "*.steps=3", "--set", "*.batch=16", "--set", "*.rate=0.01")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipes_cases.clip_like(tmp_path_factory.mktemp("hub") / "clip")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def made(difference: float, low: float, high: float) -> RunResult:
    change = Comparison("RSum", difference, Interval(low, high), 0.01)
    numbers = (0.0,) * len(METRICS)
    spans = (Interval(0.0, 0.0),) * len(METRICS)
    return RunResult("tuned", METRICS, (*numbers[1:], 400.0), spans, (change,) * len(METRICS))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((-8.0, -12.0, -3.0), "here: tuned has forgotten: RSum 400.0, 8.0 less than clip"),
        ((8.0, 3.0, 12.0), "tuned has forgotten nothing on the whole: RSum 400.0, 8.0 more"),
        ((-8.0, -12.0, 3.0), "it is open whether tuned has forgotten anything"),
    ],
)
def test_a_sentence_says_what_the_interval_says(
    change: tuple[float, float, float], says: str
) -> None:
    told = forgetting_sentence("here", "clip", made(*change))
    assert says in told
    assert "p 0.010" in told


@pytest.mark.parametrize("way", ["full", "frozen"])
def test_a_report_tells_what_is_forgotten_here_and_there(
    way: str, model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against the differences of what the single evaluations have kept."""
    more = ("--output", folder, "--other", OTHER, "--tune", way, *SHORT)
    assert run("train", "contrastive", "--model", model, "--data", SCENES, *more) == 0
    page = (folder / "report" / "report.html").read_text()
    assert "What is forgotten" in page
    assert "What is forgotten" in capsys.readouterr().out
    sizes = {}
    for kind in ("test", "other"):
        before, after = (
            RetrievalEvaluation.open(folder / f"{kind}-{one}").report
            for one in ("original", "tuned")
        )
        sizes[kind] = after.setting.images
        change = compare(before, after)[METRICS.index("RSum")]
        assert change.difference == pytest.approx(after.rsum - before.rsum)
        runs = results({str(model): before, "tuned": after})
        where = f"{OTHER if kind == 'other' else 'scenes'} test"
        told = forgetting_sentence(where, str(model), runs[1])
        assert told in page
    assert sizes == {"test": 6, "other": 10}
    assert len(re.findall("has forgotten", page)) == 2


def test_without_other_data_it_is_told_of_its_own(model: Path, folder: Path) -> None:
    more = ("--output", folder, *SHORT)
    assert run("train", "triplet", "--model", model, "--data", SCENES, *more) == 0
    page = (folder / "report" / "report.html").read_text()
    assert len(re.findall("has forgotten", page)) == 1
    assert not list(folder.glob("other-*"))


def test_what_was_trained_from_nothing_has_nothing_to_forget(folder: Path) -> None:
    assert recipes_cases.aoq(folder) == 0
    assert "What is forgotten" not in (folder / "report" / "report.html").read_text()


def test_both_rounds_are_measured_elsewhere(model: Path) -> None:
    found = with_forgetting(fine_tune_recipe("aoq", FineTunedModel(name=str(model))), SCENES)
    report = found.stages[-1]
    assert isinstance(report, Compare)
    assert report.others == ("other-original", "other-online", "other-adaptive")
    for name, other in zip(report.results, report.others, strict=True):
        here, there = found.stage(name), found.stage(other)
        assert isinstance(here, Evaluate)
        assert there == replace(here, name=other, data=SCENES)


def test_other_data_are_a_part_of_what_a_result_depends_on(model: Path) -> None:
    plain = fine_tune_recipe("contrastive", FineTunedModel(name=str(model)))
    one, two = (stage_digests(with_forgetting(plain, data), "d") for data in (SCENES, OTHER))
    assert one["other-tuned"] != two["other-tuned"]
    assert one["report"] != two["report"]
    assert all(one[name] == two[name] for name in ("tuned", "test-tuned", "test-original"))
    before = stage_digests(plain, "d")
    assert all(one[name] == before[name] for name in before if name != "report")


def test_what_is_refused(folder: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "vsepp", "--data", SCENES, "--output", folder, "--other", OTHER) == 2
    assert "--other are for a pretrained model" in " ".join(capsys.readouterr().err.split())
    more = ("--output", folder, "--other", "nothing-there/")
    assert run("train", "triplet", "--model", model, "--data", SCENES, *more) == 2
    assert "nothing-there" in capsys.readouterr().err
    assert not folder.exists()
