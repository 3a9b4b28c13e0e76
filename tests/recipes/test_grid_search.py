"""A sweep from its first point to its table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest

import processes
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Compare, Evaluate, Mine, Train
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.recipes import grid_search
from counterfoil.recipes.grid_search import run_grid as run
from grid_cases import results, source, toy
from recipes_cases import snapshot

RUN = {kind: kind.run for kind in (Train, Mine, Evaluate, Compare)}


def instead(patch: pytest.MonkeyPatch, replacement: Callable[..., None]) -> None:
    """Have every stage of a run call `replacement` with the stage and the context."""
    for kind in RUN:
        patch.setattr(kind, "run", replacement)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A sweep that was never interrupted."""
    folder = tmp_path_factory.mktemp("sweep") / "toy"
    assert run(toy(), source(), folder, test=True)
    return folder


def trained(folder: Path, stage: str) -> list[Path]:
    """Folders in which a stage was run, and not linked."""
    return [p for p in folder.glob(f"points/*/{stage}") if not p.is_symlink()]


def test_shared_stages_run_once(whole: Path) -> None:
    assert len(list((whole / "points").iterdir())) == 4
    for stage, times in (("online", 1), ("lists", 1), ("adaptive", 4), ("test-adaptive", 1)):
        assert len(trained(whole, stage)) == times
        assert all(p.exists() for p in whole.glob(f"points/*/{stage}"))
    assert not list(whole.glob("points/*/test-online"))
    moved = whole.rename(whole.with_name("moved"))  # links lead along with the folder
    assert all(p.exists() for p in moved.glob("points/*/*"))
    moved.rename(whole)


def test_a_point_equals_a_run_of_its_own(whole: Path, tmp_path: Path) -> None:
    found = results(whole)["points"][3]
    assert found["settings"] == {"adaptive.draw.texts": "20", "adaptive.rate": "1e-2"}
    settings = [f"{key}={value}" for key, value in found["settings"].items()]
    alone = apply_overrides(toy().recipe, settings)
    assert run_pipeline(replace(alone, stages=alone.stages[:3]), source(), tmp_path)
    card = json.loads((tmp_path / "adaptive" / "model" / "model.json").read_text())
    assert found["trained"][0]["dev"] == card["metrics"]
    assert found["mean"] == card["metrics"]["rsum"]
    weights = "adaptive/model/model.safetensors"
    swept = whole / found["trained"][0]["folder"] / weights
    assert swept.read_bytes() == (tmp_path / weights).read_bytes()


def test_only_the_best_point_is_evaluated_on_test(whole: Path) -> None:
    found = results(whole)
    means = [point["mean"] for point in found["points"]]
    assert found["ranked"] == sorted(range(4), key=lambda n: (-means[n], n))
    (test,) = found["tests"]
    best = whole / found["points"][found["ranked"][0]]["trained"][0]["folder"]
    assert trained(whole, "test-adaptive") == [best / "test-adaptive"]
    report = RetrievalEvaluation.open(best / "test-adaptive").report
    assert test["numbers"]["RSum"] == pytest.approx(report.rsum, abs=1e-3)
    assert "scenes test" in test["protocol"]


def test_a_finished_search_runs_nothing(whole: Path, monkeypatch) -> None:
    before = {k: v for k, v in snapshot(whole).items() if not k.startswith("sweep.")}
    instead(monkeypatch, lambda *_, **__: pytest.fail("something was run"))
    expected = results(whole)
    assert run(toy(), source(), whole, test=True)
    assert results(whole) == expected
    assert {k: v for k, v in snapshot(whole).items() if not k.startswith("sweep.")} == before


def test_a_wider_grid_reuses_the_folder(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "wider"
    assert run(toy("adaptive.draw.texts=10", "adaptive.rate=1e-3"), source(), folder)
    wider = toy("adaptive.draw.texts=10,20", "adaptive.rate=1e-3")
    assert run(wider, source(), folder)
    assert len(trained(folder, "online")) == 1
    assert [p["mean"] for p in results(folder)["points"]] == [
        results(whole)["points"][n]["mean"] for n in (0, 2)
    ]


def test_seeds_are_averaged_and_share_nothing_that_is_trained(tmp_path: Path) -> None:
    sweep = toy("adaptive.rate=1e-3,1e-2", seeds=(0, 3))
    assert run(sweep, source(), tmp_path, test=True)
    assert len(trained(tmp_path, "online")) == 2
    found = results(tmp_path)
    for point in found["points"]:
        dev = [one["dev"]["rsum"] for one in point["trained"]]
        assert [one["seed"] for one in point["trained"]] == [0, 3]
        assert point["mean"] == mean(dev)
        assert point["deviation"] == pytest.approx(stdev(dev))
    assert [test["seed"] for test in found["tests"]] == [0, 3]
    page = (tmp_path / "sweep.html").read_text()
    assert f"{found['points'][found['ranked'][0]]['mean']:.1f} ±" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_another_training_is_compared(tmp_path: Path) -> None:
    sweep = toy("online.rate=1e-3,1e-2", stage="online")
    assert run(sweep, source(), tmp_path)
    assert not list(tmp_path.glob("points/*/lists"))
    assert len(results(tmp_path)["points"]) == 2


def test_a_training_without_a_test_of_its_own_gets_one(tmp_path: Path) -> None:
    sweep = toy("online.rate=1e-3,1e-2", stage="online")
    bare = [s for s in sweep.recipe.stages if not isinstance(s, Evaluate) and s.kind != "compare"]
    bare_recipe = replace(sweep.recipe, stages=tuple(bare))
    assert run(replace(sweep, recipe=bare_recipe), source(), tmp_path, test=True)
    assert [test["stage"] for test in results(tmp_path)["tests"]] == ["test-online"]


def test_a_failed_point_is_reported_and_left_out(tmp_path: Path, monkeypatch) -> None:
    def breaks(stage, context, **kwargs):
        if stage.name == "adaptive" and stage.plan.optimiser.rate == 1e-2:
            raise ValueError("the loss is nan")
        RUN[type(stage)](stage, context, **kwargs)

    instead(monkeypatch, breaks)
    assert run(toy("adaptive.rate=1e-3,1e-2,2e-3"), source(), tmp_path)
    found = results(tmp_path)
    assert [point["failed"] for point in found["points"]] == [None, "the loss is nan", None]
    assert set(found["ranked"]) == {0, 2}
    page = (tmp_path / "sweep.html").read_text()
    assert "1e-2: the loss is nan" in page
    monkeypatch.undo()
    assert run(toy("adaptive.rate=1e-3,1e-2,2e-3"), source(), tmp_path)
    assert [point["failed"] for point in results(tmp_path)["points"]] == [None] * 3


def test_a_shared_failure_is_tried_once(tmp_path: Path, monkeypatch) -> None:
    tried = []

    def breaks(stage, *_, **__):
        tried.append(stage.name)
        raise ValueError("no loss here")

    instead(monkeypatch, breaks)
    with pytest.raises(ValueError, match="no point can be trained; of the first: no loss here"):
        run(toy(), source(), tmp_path)
    assert tried == ["online"]


# stopped and killed


def forked(folder: Path) -> int:
    return processes.forked(lambda: not run(toy(), source(), folder, resume=True, test=True))


def place(folder: Path, stage: str, many: int) -> list[Path]:
    return list(folder.glob(f"points/*/{stage}"))[many - 1 :]


@pytest.mark.parametrize(
    ("stage", "many"),
    [
        ("online/model/model.json", 1),
        ("online", 2),  # a link
        ("adaptive.json", 3),
    ],
)
def test_a_killed_search_continues_to_the_same_results(
    stage: str, many: int, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "toy"
    child = forked(folder)
    processes.wait_for(lambda: place(folder, stage, many), child)
    processes.killed(child)
    assert run(toy(), source(), folder, resume=True, test=True)
    assert results(folder) == results(whole)
    assert {p.relative_to(folder) for p in folder.rglob("*")} == {
        p.relative_to(whole) for p in whole.rglob("*")
    }


def test_a_search_out_of_time_continues(whole: Path, tmp_path: Path) -> None:
    assert not run(toy(), source(), tmp_path, minutes=1e-6)
    assert json.loads((tmp_path / "sweep.json").read_text())["ranked"] == []
    assert not (tmp_path / "sweep.html").exists()
    assert run(toy(), source(), tmp_path, resume=True, test=True)
    assert results(tmp_path) == results(whole)


def test_a_stopped_search_needs_resume(tmp_path: Path, monkeypatch) -> None:
    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        instead(patched, dies)
        with pytest.raises(KeyboardInterrupt):
            run(toy(), source(), tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="add --resume to go on"):
        run(toy(), source(), tmp_path)
    assert snapshot(tmp_path) == before


def test_a_stage_stopped_here_and_finished_elsewhere_is_linked(tmp_path: Path, monkeypatch) -> None:
    def dies(*_, **__):
        raise KeyboardInterrupt

    one, two = ("adaptive.rate=1e-3",), ("adaptive.rate=1e-2,1e-3",)
    with monkeypatch.context() as patched:
        instead(patched, dies)
        with pytest.raises(KeyboardInterrupt):
            run(toy(*one), source(), tmp_path)
    assert run(toy(*two), source(), tmp_path, resume=True)
    assert len(trained(tmp_path, "online")) == 1


def test_a_broken_link_is_run_again(tmp_path: Path) -> None:
    assert run(toy("adaptive.rate=1e-3,1e-2"), source(), tmp_path)
    expected = results(tmp_path)
    (lent,) = trained(tmp_path, "online")
    (borrower,) = [p.parent for p in tmp_path.glob("points/*/online") if p.is_symlink()]
    shutil.rmtree(lent.parent)
    shutil.rmtree(borrower / "adaptive")
    (borrower / "adaptive.json").unlink()
    assert run(toy("adaptive.rate=1e-3,1e-2"), source(), tmp_path)
    assert results(tmp_path) == expected


# refused before anything is run


def without_dev() -> ImageTextDataset:
    dataset = source().open()
    return replace(dataset, splits=tuple("train" if s == "dev" else s for s in dataset.splits))


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (("online.epochs=1,2", "online.minutes=1,2"), "train the same 'adaptive'"),
        (("lists.images=5,6", "test-online.protocol=whole,coco-5k"), "train the same 'adaptive'"),
        (("adaptive.rate=1e-3,0.001",), "adaptive.rate=1e-3 and adaptive.rate=0.001 train"),
        (("adaptive.select=rsum,i2t_r1",), "different figures, i2t_r1 and rsum"),
        (("adaptive.draw.texts=10,4000",), "set adaptive.draw to fewer"),
    ],
)
def test_bad_grids(over: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        run(toy(*over), source(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_data_without_a_dev_split(tmp_path: Path, monkeypatch) -> None:
    dataset = without_dev()
    monkeypatch.setattr(DataSource, "open", lambda _: dataset)
    with pytest.raises(ValueError, match="scenes has no dev split"):
        run(toy(), source(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("what", ["stage", "data"])
def test_the_folder_of_another_sweep(what: str, whole: Path) -> None:
    before = snapshot(whole)
    other = toy("online.rate=1e-3,1e-2", stage="online") if what == "stage" else toy()
    data = DataSource("scenes:images=36,seed=1") if what == "data" else source()
    with pytest.raises(ValueError, match="holds a sweep of another recipe, training or data"):
        run(other, data, whole)
    assert snapshot(whole) == before


def test_progress_is_printed(tmp_path: Path, capsys) -> None:
    sweep = toy("adaptive.rate=1e-3,1e-2")
    assert run(sweep, source(), tmp_path)
    shown = capsys.readouterr().out
    assert "toy, 1 of 2: adaptive.rate=1e-3 (0 of 4 stages done)" in shown
    assert "toy, 2 of 2: adaptive.rate=1e-2 (3 of 4 stages done, about " in shown
    assert len(sweep.points()) == 2
    assert grid_search._time_left(600, 2, 3) == ", about 15 min left"
    assert grid_search._time_left(20, 2, 3) == ", about 30 s left"
