from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.experiments import ledger as running
from benchmarks.experiments.__main__ import main
from benchmarks.experiments.catalogue import find, tables
from benchmarks.experiments.ledger import read, run
from benchmarks.experiments.table import Experiment, Row, Table
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Evaluate, Train
from counterfoil.pipelines.run import DataSource
from counterfoil.recipes import catalogue
from counterfoil.recipes.aoq import aoq_recipe

SMALL = (
    "*.model.image.width=16", "*.model.text.width=16", "*.batch=16", "lists.texts=20",
    "lists.images=5", "*.steps=2",
)  # fmt: skip


def _table(seeds: int = 2) -> Table:
    def experiments(budget: str) -> tuple[Experiment, ...]:
        found = []
        for seed in range(seeds):
            small = apply_overrides(
                catalogue.smoke_recipe(aoq_recipe("vsepp", "scenes")), [*SMALL, f"*.seed={seed}"]
            )
            small = replace(small, stages=small.stages[:-1])
            rows = tuple(
                Row(host="VSE++", method=m, seed=seed, test=f"test-{m}", models=(m,))
                for m in ("online", "adaptive")
            )
            found.append(Experiment(key=f"vsepp-{seed}", recipe=small, rows=rows))
        return tuple(found)

    return Table(
        name="evidence/toy", about="", data="scenes:images=36", first="online",
        experiments=experiments,
    )  # fmt: skip


def test_every_row_of_a_table_reaches_the_ledger_once(tmp_path) -> None:
    source, ledger = DataSource("scenes:images=36"), tmp_path / "ledger.jsonl"
    assert run(_table(), "cpu", source, tmp_path / "runs", ledger)
    entries = read(ledger)
    assert [(e.seed, e.method) for e in entries] == [
        (0, "online"), (0, "adaptive"), (1, "online"), (1, "adaptive"),
    ]  # fmt: skip
    assert all(
        float(e.shares().sum()) == pytest.approx(e.numbers["RSum"], abs=1e-3) for e in entries
    )
    assert all(e.training["epochs"] == 1 for e in entries)
    before = ledger.read_bytes()
    assert run(_table(), "cpu", source, tmp_path / "elsewhere", ledger)
    assert ledger.read_bytes() == before
    assert not (tmp_path / "elsewhere").exists()


def test_only_what_a_missing_row_needs_is_run(tmp_path) -> None:
    source, ledger = DataSource("scenes:images=36"), tmp_path / "ledger.jsonl"
    assert run(_table(1), "cpu", source, tmp_path / "runs", ledger)
    before = {entry.method: entry for entry in read(ledger)}
    ledger.write_text(ledger.read_text().splitlines(keepends=True)[1])  # online is lost
    assert [entry.method for entry in read(ledger)] == ["adaptive"]
    assert run(_table(1), "cpu", source, tmp_path / "again", ledger)
    folder = tmp_path / "again" / "vsepp-0"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"online", "test-online"}
    for entry in read(ledger):
        old = before.pop(entry.method)
        assert (entry.digest, entry.numbers) == (old.digest, old.numbers)
    assert not before


def test_time_that_is_up_leaves_what_is_done_and_resume_ends_with_the_same(
    tmp_path, monkeypatch
) -> None:
    source, whole = DataSource("scenes:images=36"), tmp_path / "whole.jsonl"
    assert run(_table(1), "cpu", source, tmp_path / "a", whole)
    part = tmp_path / "part.jsonl"
    execute, calls = running.run_pipeline, []

    def short(*arguments: object, **named: object) -> bool:
        calls.append(named["minutes"])
        return execute(*arguments, **{**named, "minutes": 1e-9 if len(calls) == 1 else None})

    monkeypatch.setattr(running, "run_pipeline", short)
    assert not run(_table(1), "cpu", source, tmp_path / "b", part, minutes=5)
    assert len(read(part)) < 2
    assert run(_table(1), "cpu", source, tmp_path / "b", part, resume=True)
    for one, other in zip(read(whole), read(part), strict=True):
        assert (one.numbers, one.images, one.texts) == (other.numbers, other.images, other.texts)


def test_every_table_is_sound() -> None:
    for table in tables():
        assert find(table.name).name == table.name
        for budget in ("smoke", "cpu", "gpu"):
            experiments = table.of(budget)
            assert len({e.key for e in experiments}) == len(experiments)
            for experiment in experiments:
                _check(experiment, table)
            places = [(r.host, r.method, r.lists, r.seed) for e in experiments for r in e.rows]
            assert len(set(places)) == len(places)
            alike = {
                (r.host, r.seed) for e in experiments for r in e.rows if r.method == table.first
            }
            assert alike == {(r.host, r.seed) for e in experiments for r in e.rows}


def _check(experiment: Experiment, table: Table) -> None:
    for row in experiment.rows:
        test = experiment.recipe.stage(row.test)
        assert isinstance(test, Evaluate)
        assert (test.split, test.using) == ("test", row.models)
        for name in row.models:
            stage = experiment.recipe.stage(name)
            assert isinstance(stage, Train)
            assert (stage.plan.seed == row.seed) == (len(row.models) == 1)
        if stage.guide and experiment.recipe.stage(stage.guide).kind == "teach":
            assert name not in experiment.recipe.stage(stage.guide).reads


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "aoq-flickr9k"], "did you mean 'aoq-flickr8k'"),
        (["run", "aoq-flickr8k", "--budget", "tpu"], "'tpu' is not a budget"),
        (["run", "evidence/aoq-flickr8k", "--only", "vespp-0"], "did you mean 'vsepp-0'"),
        (["table", "nothing.jsonl"], "does not exist"),
    ],
)
def test_bad_input_is_told_in_words(words, told, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
