from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.experiments import ledger as running
from benchmarks.experiments.__main__ import main
from benchmarks.experiments.catalogue import find, tables
from benchmarks.experiments.ledger import read, run
from benchmarks.experiments.table import Budget, Contrast, Experiment, ExperimentBuilder, Row, Table
from counterfoil.core.config import FromStage
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Evaluate, Train
from counterfoil.pipelines.run import DataSource
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe

SMALL = (
    "*.model.image.width=16", "*.model.text.width=16", "*.batch=16", "lists.texts=20",
    "lists.images=5", "*.steps=2",
)  # fmt: skip


def _table(seeds: int = 2) -> Table:
    def experiments(budget: Budget) -> tuple[Experiment, ...]:
        found = []
        for seed in range(seeds):
            small = apply_overrides(smoke_recipe(find_recipe("aoq")), [*SMALL, f"*.seed={seed}"])
            small = replace(small, stages=small.stages[:-1])
            builder = ExperimentBuilder("VSE++", seed)
            builder.add(*(stage for stage in small.stages if not isinstance(stage, Evaluate)))
            for method in ("online", "adaptive"):
                builder.measure(method, (method,))
            found.append(builder.build("toy", f"vsepp-{seed}", "scenes:images=36"))
        return tuple(found)

    return Table(
        name="toy", question="", data="scenes:images=36", base="online", experiments=experiments,
    )  # fmt: skip


def test_every_row_of_a_table_reaches_the_ledger_once(tmp_path) -> None:
    source, ledger = DataSource("scenes:images=36"), tmp_path / "ledger.jsonl"
    assert run(_table(), "cpu", source, tmp_path / "runs", ledger)
    entries = read(ledger)
    assert [(e.seed, e.method) for e in entries] == [
        (0, "online"), (0, "adaptive"), (1, "online"), (1, "adaptive"),
    ]  # fmt: skip
    assert all(e.numbers[split]["RSum"] > 0 for e in entries for split in ("dev", "test"))
    assert all(e.training["epochs"] == 1 for e in entries)
    before = ledger.read_bytes()
    assert run(_table(), "cpu", source, tmp_path / "elsewhere", ledger)
    assert ledger.read_bytes() == before
    assert not (tmp_path / "elsewhere").exists()


def test_rows_of_declared_contrasts_come_first_for_all_seeds(tmp_path, capsys) -> None:
    contrast = Contrast(
        claim="", model="VSE++", method="adaptive", base="online", seeds=(0, 1), metric="RSum"
    )
    table = replace(_table(), contrasts=(replace(contrast, method="online"),))
    ledger = tmp_path / "ledger.jsonl"
    assert run(table, "cpu", DataSource("scenes:images=36"), tmp_path / "runs", ledger)
    assert [(e.seed, e.method) for e in read(ledger)] == [
        (0, "online"), (1, "online"), (0, "adaptive"), (1, "adaptive"),
    ]  # fmt: skip


def test_only_what_a_missing_row_needs_is_run(tmp_path) -> None:
    source, ledger = DataSource("scenes:images=36"), tmp_path / "ledger.jsonl"
    assert run(_table(1), "cpu", source, tmp_path / "runs", ledger)
    before = {entry.method: entry for entry in read(ledger)}
    ledger.write_text(ledger.read_text().splitlines(keepends=True)[1])  # online is lost
    assert [entry.method for entry in read(ledger)] == ["adaptive"]
    assert run(_table(1), "cpu", source, tmp_path / "again", ledger)
    folder = tmp_path / "again" / "vsepp-0"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        "online",
        "dev-online",
        "test-online",
    }
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
    assert not part.exists() or len(read(part)) < 2
    assert run(_table(1), "cpu", source, tmp_path / "b", part, resume=True)
    for one, other in zip(read(whole), read(part), strict=True):
        assert (one.digest, one.numbers) == (other.digest, other.numbers)


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.name)
@pytest.mark.parametrize("budget", ["smoke", "cpu", "gpu"])
def test_every_table_is_sound(table: Table, budget: Budget) -> None:
    experiments = table.of(budget)
    assert len({one.key for one in experiments}) == len(experiments)
    rows = [row for one in experiments for row in one.rows]
    assert len({(r.model, r.setting, r.method, r.seed) for r in rows}) == len(rows)
    measured: dict[tuple[str, str, str], set[int]] = {}
    for row in rows:
        measured.setdefault((row.model, row.setting, row.method), set()).add(row.seed)
    for contrast in table.contrasts if budget != "smoke" else ():
        for method in (contrast.method, contrast.base):  # equal seeds, all declared before
            have = measured[contrast.model, contrast.setting, method]
            assert have >= set(contrast.seeds)
            assert not have & {0, 1}
    for one in experiments:
        for row in one.rows:
            _check(one, row)


def _check(experiment: Experiment, row: Row) -> None:
    """Nothing is selected on any split, and a student's teachers are no other rows' trainings."""
    for split in ("dev", "test"):
        test = experiment.recipe.stage(f"{split}-{row.name}")
        assert isinstance(test, Evaluate)
        assert (test.split, test.using) == (split, row.trained)
    for name in row.trained:
        stage = experiment.recipe.stage(name)
        assert isinstance(stage, Train)
        assert stage.plan.keep_last
        assert (stage.plan.seed == row.seed) == (len(row.trained) == 1)
        for targets in (source for source in stage.sources if isinstance(source, FromStage)):
            teachers = experiment.recipe.stage(targets.name).reads
            assert row.name not in teachers
            assert all(experiment.recipe.stage(t).training_seed >= 1000 for t in teachers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aoq-truth", "ndgl-adapters"])
def test_a_table_runs_on_cca_vectors(name: str, tmp_path) -> None:
    source = DataSource("scenes:images=300,dev=30,test=30,features=regions")
    ledger = tmp_path / "ledger.jsonl"
    assert run(find(name), "smoke", source, tmp_path / "runs" / name, ledger)
    entries = read(ledger)
    (rows,) = ([r for one in find(name).of("smoke") for r in one.rows],)
    assert sorted(entry.method for entry in entries) == sorted(row.method for row in rows)
    assert all(0 < entry.numbers["test"]["RSum"] <= 600 for entry in entries)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "aoq-bach"], "did you mean 'aoq-batch'"),
        (["run", "aoq-batch", "--budget", "tpu"], "'tpu' is not a budget"),
        (["run", "aoq-batch", "--only", "bach-8"], "did you mean 'batch-8"),
        (["table", "nothing.jsonl"], "does not exist"),
    ],
)
def test_bad_input_gets_a_sentence(words, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_tables_share_the_vectors_of_equal_data_only(tmp_path, monkeypatch) -> None:
    opened = []
    monkeypatch.setattr(
        running, "run_pipeline", lambda _, source, *__, **___: opened.append(source)
    )
    for data in ("scenes:images=300", "scenes:images=310", "scenes:images=300"):
        source = DataSource(f"{data},dev=10,test=10,features=regions")
        run(
            find("aoq-truth"), "smoke", source, tmp_path / "runs" / "table", tmp_path / "rows.jsonl"
        )
    assert opened[0].data == opened[2].data != opened[1].data
    assert len(opened[1].open()) == 310
