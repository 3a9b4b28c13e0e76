"""The tables of TAGS, planned and run in small."""

from __future__ import annotations

import pytest

from benchmarks.experiments.catalogue import find
from benchmarks.experiments.ledger import read, run
from counterfoil.pipelines.pipeline import Evaluate, Pretrain, Train
from counterfoil.pipelines.run import DataSource


@pytest.mark.parametrize("dataset", ["scenes", "flickr8k"])
@pytest.mark.parametrize("budget", ["cpu", "gpu", "smoke"])
def test_every_row_begins_from_one_pre_training(dataset: str, budget: str) -> None:
    seeds = set()
    for experiment in find(f"evidence/tags-{dataset}").of(budget):
        recipe = experiment.recipe
        for row in experiment.rows:
            stage = recipe.stage(row.models[0])
            assert isinstance(stage, Train)
            seeds.add(stage.plan.seed)
            assert stage.plan.seed == row.seed
            while isinstance(stage, Train):
                assert stage.start
                stage = recipe.stage(stage.start)
            assert isinstance(stage, Pretrain)
            assert stage.plan.seed == 0
            test = recipe.stage(row.test)
            assert isinstance(test, Evaluate)
            assert bool(test.first) == (dataset == "flickr8k")
    assert len(seeds) == (1 if budget == "smoke" or (budget, dataset) == ("cpu", "flickr8k") else 3)


def test_rows_of_a_budget_take_as_many_steps() -> None:
    for experiment in find("evidence/tags-scenes").of("cpu"):
        steps = {
            row.method: stage.plan.steps
            for row in experiment.rows
            if isinstance(stage := experiment.recipe.stage(row.models[0]), Train)
        }
        second = {name: steps.pop(name) for name in list(steps) if name.startswith("TAGS-DC")}
        longer = steps.pop("hard negatives, longer")
        assert len(set(steps.values())) == 1
        assert {longer} == {steps["TAGS"] + more for more in second.values()}


@pytest.mark.slow
def test_the_table_runs(tmp_path) -> None:
    source = DataSource("scenes:images=60,dev=6,test=8,features=regions")
    ledger = tmp_path / "ledger.jsonl"
    assert run(find("evidence/tags-scenes"), "smoke", source, tmp_path / "runs", ledger)
    methods = [entry.method for entry in read(ledger)]
    assert methods[:3] == ["hard negatives", "TAGS", "TAGS-DC"]
    assert {"TAGS, released rules", "TAGS-DC, released rules", "TAGS w/ WM", "TAGS w/ SG"} < set(
        methods
    )
