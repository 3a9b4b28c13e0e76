"""The table of foils: only foils differ between rows, and a small run measures them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.experiments import tags
from benchmarks.experiments.catalogue import find
from benchmarks.experiments.foils import FoilAccuracy
from benchmarks.experiments.ledger import Entry, read, run
from benchmarks.experiments.summary import as_markdown, lines, verdict
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import scene
from counterfoil.data.scenes.truth import is_true
from counterfoil.papers.tags.stage import Generate
from counterfoil.pipelines.pipeline import Train
from counterfoil.pipelines.run import DataSource

SMALL = "scenes:images=60,dev=8,test=12,features=regions"


@pytest.mark.parametrize("budget", ["cpu", "gpu", "smoke"])
def test_rows_of_a_seed_differ_in_their_foils_alone(budget: str) -> None:
    experiments = find(tags.NAME).of(budget)
    assert [one.key for one in experiments] == ["scan", "gpo"]
    for experiment in experiments:
        stages = {row: experiment.recipe.stage(*row.trained) for row in experiment.rows}
        own = {row.seed: stage for row, stage in stages.items() if row.method == tags.OWN}
        for row, stage in stages.items():
            assert isinstance(stage, Train)
            assert (stage.plan.seed, stage.plan.keep_last) == (row.seed, True)
            if row.method == tags.OWN:
                assert not stage.sources
                continue
            terms = dict(stage.objective.arguments["terms"])
            assert stage.sources[0].arguments["folder"].name in tags.TITLES
            assert terms.pop("written")[0] in (0.1, 1.0, 10.0)
            objective = stage.objective.replace(terms=terms)
            alone = replace(stage, name=own[row.seed].name, objective=objective, sources=())
            assert alone == own[row.seed]
        methods = {s: {r.method for r in experiment.rows if r.seed == s} for s in own}
        assert all(found == methods[experiment.rows[0].seed] for found in methods.values())
        assert sum(isinstance(stage, Generate) for stage in experiment.recipe.stages) == 1


def test_declared_seeds_are_not_those_of_the_exploration() -> None:
    table = find(tags.NAME)
    seeds = {row.seed for one in table.of("cpu") for row in one.rows}
    rows = {(row.model, row.method) for one in table.of("cpu") for row in one.rows}
    for contrast in table.contrasts:
        assert set(contrast.seeds) == seeds == set(range(2, 10))
        assert {(contrast.model, contrast.method), (contrast.model, contrast.base)} <= rows
        assert (contrast.metric, contrast.least) == ("foils", 1.0)


def test_foils_are_false_and_other_data_are_refused() -> None:
    foils, _ = FoilAccuracy(SMALL)._of_split("test")
    dataset = foils.dataset
    assert set(dataset.image_ids) <= set(load_dataset(SMALL).split("test").image_ids)
    for item in foils.items:
        picture = scene(dataset.image_ids[item.images[0]])
        assert [is_true(dataset.texts[row], picture) for row in item.texts] == [True, False]
    with pytest.raises(ValueError, match="no exactly false foils"):
        FoilAccuracy("flickr8k")


def test_the_page_shows_foil_accuracy_beside_rsum() -> None:
    table = find(tags.NAME)
    entries = [_entry(name, seed) for seed in (2, 3) for name in (tags.OWN, "TAGS foils")]
    page = as_markdown(table, entries)
    assert "| dev foils | test foils | dev | test | dev RSum | test RSum | dev | test |" in page
    _, written = lines(table, entries)
    assert written.against["test"].mean == pytest.approx(4)
    contrast = replace(table.contrasts[0], method="TAGS foils", base=tags.OWN, seeds=(2, 3))
    assert "foils dev +4.0" in verdict(contrast, entries)


def _entry(method: str, seed: int) -> Entry:
    gain = 4.0 if method != tags.OWN else 0.0
    numbers = {"foils": 60 + seed + gain, "RSum": 300.0 - gain}
    return Entry(
        table=tags.NAME,
        budget="cpu",
        model="SCAN t-i",
        method=method,
        seed=seed,
        protocol="whole split",
        digest=f"{method} {seed}",
        data="scenes",
        numbers={"dev": numbers, "test": numbers},
    )


@pytest.mark.slow
def test_a_small_run_measures_foils_by_kind(tmp_path) -> None:
    table, ledger = find(tags.NAME), tmp_path / "ledger.jsonl"

    def one(budget: str):
        """The own loss and the two declared rows."""
        for experiment in table.of("smoke", ["gpo"]):
            yield replace(experiment, rows=experiment.rows[:3])

    small = replace(table, experiments=one)
    assert run(small, "smoke", DataSource(SMALL), tmp_path / "runs", ledger)
    entries = read(ledger)
    assert [entry.method for entry in entries] == [
        tags.OWN, "rule foils, margin 0.2", "TAGS foils, margin 0.2",
    ]  # fmt: skip
    for entry in entries:
        for numbers in entry.numbers.values():
            assert {"RSum", "foils", "foils: colour", "blind foils: colour"} <= set(numbers)
            assert 0 <= numbers["foils"] <= 100
    written = ledger.read_bytes()
    assert run(small, "smoke", DataSource(SMALL), tmp_path / "again", ledger)
    assert ledger.read_bytes() == written
