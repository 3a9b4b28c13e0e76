"""Runs side by side on one page."""

from __future__ import annotations

import html
import json
from dataclasses import replace

import pytest

from analysis_cases import batches, measured_by, training, write_run
from counterfoil.core.io import write_json
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.bootstrap import compare
from counterfoil.pipelines.pipeline import Evaluate, Recipe
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from recipes_cases import run

SCENES = "scenes:images=36"


@pytest.fixture
def reported(tmp_path, capsys):
    """The numbers, the page and what was printed of a report."""

    def reported(*words: object, name: str = "report"):
        out = tmp_path / f"{name}.html"
        code = run("report", *words, "--output", out)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        plain = json.loads(out.with_suffix(".json").read_text())
        return plain, out.read_text(), " ".join(shown.out.split())

    return reported


def one(name: str, number: int) -> Recipe:
    """A run with one test, whose scores are those of the number-th stage."""
    more = tuple(training(f"more-{n}") for n in range(number))
    return Recipe(name=name, stages=(*more, training(name), measured_by(name)))


def test_a_run_that_was_run_has_all_of_it(models, reported):
    plain, page, _ = reported(models / "run", "--data", SCENES)
    assert [part["name"] for part in plain["runs"]] == ["online", "adaptive"]
    for part in plain["runs"]:
        folder = models / "run" / f"test-{part['name']}"
        numbers = json.loads((folder / "evaluation.json").read_text())
        assert part["numbers"][-1] == pytest.approx(numbers["rsum"])
    first, second = (
        RetrievalEvaluation.open(models / "run" / f"test-{n}") for n in ("online", "adaptive")
    )
    expected = compare(first.report, second.report)[-1]
    change = plain["runs"][1]["against"][-1]
    assert (change["difference"], change["p"]) == (expected.difference, expected.p)
    lines = [
        json.loads(line) for line in (models / "run/online/metrics.jsonl").read_text().splitlines()
    ]
    spent = plain["cost"][0]
    assert spent["steps"] == lines[-1]["step"]
    assert spent["minutes"] == pytest.approx(max(x.get("seconds", 0) for x in lines) / 60)
    assert spent["memory_mb"] == max(x.get("memory_mb", 0) for x in lines)
    assert "Hardness of negatives" in page
    for told in plain["hardness"]:
        assert f"{told['name']}: {told['negatives']:,} negatives, median gap" in page
        assert f"{told['at_or_above']:.1f} % at or above their positive" in page
    assert [told["name"].rpartition(", ")[2] for told in plain["hardness"]] == ["online", "offline"]
    for told in plain["queries"]:
        assert told["direction"] == "i2t" or html.escape(told["query"]) in page
        assert set(told["rank"]) == {"online", "adaptive"}
    assert plain["queries"]
    assert "Development RSum by epoch" in page
    assert "Where adaptive ranks the best true one highest" in page or "for online" in page
    assert "data:image/" in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")
    assert "Cost of training" in page


def test_runs_are_compared_with_the_first_that_is_named(tmp_path, reported):
    sums = {}
    for number, name in enumerate(("b", "a")):
        sums |= write_run(tmp_path / name, one(name, number))
    plain, page, _ = reported(tmp_path / "b", tmp_path / "a")
    assert [part["name"] for part in plain["runs"]] == ["b/b", "a/a"]
    assert [part["numbers"][-1] for part in plain["runs"]] == pytest.approx(
        [sums["test-b"], sums["test-a"]]
    )
    assert plain["runs"][0]["against"] == []
    assert plain["runs"][1]["against"][-1]["difference"] == pytest.approx(
        sums["test-a"] - sums["test-b"]
    )
    assert "Learning curves" not in page
    assert "Cost of training" not in page


def test_a_page_in_the_folder_of_a_run_is_no_note_of_it(tmp_path, capsys, reported):
    for number, name in enumerate("ab"):
        write_run(tmp_path / name, one(name, number))
    plain, _, _ = reported(tmp_path / "a", tmp_path / "b", name="a/report")
    again, _, _ = reported(tmp_path / "a", tmp_path / "b")
    assert again["runs"] == plain["runs"]
    (tmp_path / "a" / "mine.json").write_text("{")
    assert reported(tmp_path / "a", tmp_path / "b", name="third")[0]["runs"] == plain["runs"]
    (tmp_path / "a" / "mine").mkdir()  # the folder of a stage, whose note is damaged
    assert run("report", tmp_path / "a", "--output", tmp_path / "fourth.html") == 2
    assert "mine.json cannot be read as the note of a stage" in capsys.readouterr().err


def test_single_evaluations_are_taken_in_the_order_in_which_they_are_named(tmp_path, reported):
    write_run(tmp_path / "run", batches((8, 16, 32)))
    names = [tmp_path / "run" / f"test-own-{size}" for size in (32, 8)]
    plain, _, _ = reported(*names)
    assert [part["name"] for part in plain["runs"]] == ["own-32", "own-8"]


def test_named_models_and_shortlists_have_names_and_none_is_lost(tmp_path, reported):
    tests = (
        Evaluate(name="test-original", using=(), models=("hub/clip",)),
        measured_by("a"),
        Evaluate(name="test-short", using=("a",), first=("b",), depth=3),
        Evaluate(name="test-again", using=("a",)),
    )
    trained = (training("a"), training("b"))
    sums = write_run(tmp_path / "run", Recipe(name="run", stages=(*trained, *tests)))
    plain, _, _ = reported(tmp_path / "run")
    found = {part["name"]: part["numbers"][-1] for part in plain["runs"]}
    names = ("hub/clip", "a (test-a)", "a on top-3 of b", "a (test-again)")
    assert found == pytest.approx({n: sums[t.name] for n, t in zip(names, tests, strict=True)})


def test_what_was_measured_otherwise_is_set_apart(tmp_path, reported):
    for name, data in (("a", SCENES), ("b", "scenes:images=60"), ("c", SCENES)):
        write_run(tmp_path / name, one(name, 0), data)
    plain, page, shown = reported(*(tmp_path / name for name in "abc"))
    assert [part["name"] for part in plain["runs"]] == ["a/a", "c/c"]
    assert list(plain["apart"]) == ["b/b"]
    assert "not compared, as they were measured on other data, or otherwise: b/b" in shown
    assert "Measured otherwise" in page


def test_another_truth_is_set_apart(tmp_path, reported):
    true = Evaluate(name="true-a", using=("a",), truth="complete")
    stages = (training("a"), measured_by("a"), true, training("b"), measured_by("b"))
    write_run(tmp_path / "run", Recipe(name="run", stages=stages))
    plain, _, _ = reported(tmp_path / "run")
    assert [part["name"] for part in plain["runs"]] == ["a (test-a)", "b"]
    assert list(plain["apart"]) == ["a (true-a)"]


def test_other_seeds_compare_and_no_seed_is_told(tmp_path, reported):
    dataset = load_dataset(SCENES).split("test")
    for seed, name in enumerate(("a", "b")):
        write_run(tmp_path / name, one(name, seed))
        folder = tmp_path / name / f"test-{name}"
        found = RetrievalEvaluation.open(folder)
        setting = replace(found.report.setting, seed=seed)
        replace(found, report=replace(found.report, setting=setting)).save(folder)
    plain, _, _ = reported(tmp_path / "a", tmp_path / "b")
    assert len(plain["runs"]) == 2
    assert len(dataset) == 6
    assert "seed" not in plain["protocol"]


def test_foils_and_written_negatives_stand_where_they_were_measured(tmp_path, reported):
    write_run(tmp_path / "a", one("a", 0))
    (tmp_path / "a" / "a").mkdir()
    lines = [
        {"step": step, "epoch": step / 2, "written_above": 40.0, "written_gap": -0.1}
        | {f"written_gap_p{level}": level / 100 for level in (10, 25, 50, 75, 90)}
        for step in (1, 2)
    ]
    log = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "a" / "a" / "metrics.jsonl").write_text(log)
    line = {"measure": "pairs", "of": "all", "value": 71.25, "chance": 50.0}
    span = {"interval": {"low": 60.0, "high": 80.0}}
    write_json(tmp_path / "f.json", {"set": "vsr", "model": "runs/a", "lines": [line | span]})
    plain, page, _ = reported(tmp_path / "a", "--foils", tmp_path / "f.json")
    assert "Written negatives while training" in page
    assert "71.2" in page
    assert "60.0 to 80.0" in page
    (foils,) = plain["foils"]
    assert (foils["set"], foils["value"], foils["low"], foils["chance"]) == ("vsr", 71.25, 60, 50)
    (written,) = plain["written"]
    assert written["steps"] == [1, 2]
    assert written["percent_above"] == [40, 40]
    assert plain["cost"][0]["minutes"] is None
