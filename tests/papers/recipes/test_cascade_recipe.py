"""A bi-encoder and a re-ranker as one recipe, and its recall against its cost."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from counterfoil.cli import main
from counterfoil.papers.compared.cascade import cascade_curve
from counterfoil.papers.models.gpo import GPO
from counterfoil.papers.models.lightningdot import LightningDOT
from counterfoil.papers.pretraining.stage import Pretrain
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Evaluate, Train
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe

SMALL = (
    *(f"hard.model.{setting}" for setting in ("layers=1", "width=16", "heads=2", "inner=16")),
    "own.model.image.width=16",
    "own.model.text.width=16",
    "*.plan.steps=1",
    "*.plan.batch=4",
    "hard.topscoringminer.candidates.texts=8",
    "hard.topscoringminer.candidates.images=8",
    "hard.topscoringminer.keep=3",
    "test-cascade.depth=6",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    recipe = smoke_recipe(find_recipe("cascade"))
    stages = tuple(
        replace(stage, start=None) if isinstance(stage, Train) else stage  # without pre-training
        for stage in recipe.stages
        if not isinstance(stage, Pretrain)
    )
    recipe = apply_overrides(replace(recipe, stages=stages), SMALL)
    assert run_pipeline(recipe, DataSource("scenes:images=30,features=regions"), folder)
    return folder


@pytest.mark.parametrize("dataset", ["flickr30k", "coco"])
@pytest.mark.parametrize("model", ["gpo", "lightningdot"])
def test_uniter_re_ranks_the_first_hundred(model, dataset):
    recipe = find_recipe("cascade", model=model, like=dataset)
    assert isinstance(own := recipe.stage("own"), Train)
    assert own.model.make is {"gpo": GPO, "lightningdot": LightningDOT}[model]
    tests = [stage for stage in recipe.stages if isinstance(stage, Evaluate)]
    for stage in tests:
        last = (("hard",), ("own",), 100) if "cascade" in stage.name else (("own",), (), 50)
        assert (stage.using, stage.first, stage.depth) == last
    assert len(tests) == (4 if dataset == "coco" else 2)


def test_the_report_has_the_curve(folder):
    page = (folder / "report" / "report.html").read_text(encoding="utf-8")
    assert "Recall against cost" in page
    assert "hard on top-6 of own" in page


def test_the_analysis_writes_table_figure_and_numbers(folder, tmp_path, capsys):
    assert (
        main(["papers", "analyse", "cascade", str(folder), "--output", str(tmp_path / "page.html")])
        == 0
    )
    shown = capsys.readouterr().out
    assert "depth" in shown
    assert "hard on top-6 of own reaches RSum" in shown
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")
    (found,) = json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))["cascades"]
    assert [point["depth"] for point in found["curve"]] == [1, 2, 5, 6]
    assert found["curve"][0]["pairs"] < found["curve"][-1]["pairs"]
    assert found["curve"][-1]["rsum"] == pytest.approx(
        json.loads((folder / "test-cascade" / "evaluation.json").read_text())["rsum"]
    )


def test_runs_without_a_cascade_are_refused(folder):
    for path in (folder / "test-cascade").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="holds no evaluation on shortlists"):
        cascade_curve([folder])
