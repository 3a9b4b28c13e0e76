"""The table of hosts that train on written captions, planned and run in small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.experiments.catalogue import find
from benchmarks.experiments.ledger import read, run
from benchmarks.experiments.table import Budget, Experiment
from benchmarks.experiments.tags import MODELS_TABLE as NAME
from counterfoil.pipelines.pipeline import ComputeTargets, Mine, Train, stage_digests
from counterfoil.pipelines.run import DataSource


def planned(budget: Budget) -> Experiment:
    (experiment,) = find(NAME).of(budget)
    return experiment


@pytest.mark.parametrize("budget", ["cpu", "gpu", "smoke"])
def test_the_foils_are_all_that_a_pair_of_rows_differs_in(budget: Budget) -> None:
    experiment = planned(budget)
    trained = {row.test: experiment.recipe.stage(row.models[0]) for row in experiment.rows}
    for row in experiment.rows:
        if not row.method.endswith(" + TAGS"):
            continue
        alone = trained[row.test.removesuffix("-written")]
        taught = trained[row.test]
        assert isinstance(alone, Train)
        assert isinstance(taught, Train)
        assert alone.plan.seed == taught.plan.seed == row.seed
        assert taught.written
        same = replace(
            taught, name=alone.name, objective=alone.objective, proposer=None, written=None
        )
        assert same == alone


def test_the_writer_is_that_of_the_table_of_tags() -> None:
    ours = stage_digests(planned("cpu").recipe, "data")
    theirs = stage_digests(find("evidence/tags-scenes").of("cpu")[0].recipe, "data")
    for stage in ("aligned", "pretrained", "step-1-tags"):
        assert ours[stage] == theirs[stage]


def test_each_seed_has_lists_and_teachers_of_its_own() -> None:
    recipe = planned("cpu").recipe
    for row in planned("cpu").rows:
        train = recipe.stage(row.models[0])
        assert isinstance(train, Train)
        if train.negatives:
            lists = recipe.stage(train.negatives)
            assert isinstance(lists, Mine)
            assert lists.using[0].endswith(f"own-{row.seed}")
        if row.method.startswith("NDGL"):
            targets = recipe.stage(str(train.guide))
            assert isinstance(targets, ComputeTargets)
            assert len(targets.using) == 2
            assert not any(one.endswith(f"-{row.seed}") for one in targets.using)


@pytest.mark.slow
def test_the_table_runs(tmp_path) -> None:
    source = DataSource("scenes:images=60,dev=6,test=8,features=regions")
    ledger = tmp_path / "ledger.jsonl"
    assert run(find(NAME), "smoke", source, tmp_path / "runs", ledger)
    found = {(entry.host, entry.method) for entry in read(ledger)}
    assert {host for host, _ in found} == {"VSE++", "GPO", "SCAN t-i"}
    assert ("GPO", "NDGL, K = 2 + TAGS") in found
    assert ("VSE++", "AdapOffQuin + TAGS") in found
