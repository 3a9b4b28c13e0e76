"""A sweep from its first point to its table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

import processes
from counterfoil.papers.grid_search import GridAxis, GridSearch
from counterfoil.papers.grid_search import run_grid as run
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Compare, Evaluate, Mine, Train
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe
from recipes_cases import snapshot

SMALL = (
    "*.model.image.width=16",
    "*.model.text.width=16",
    "*.batch=16",
    "lists.texts=20",
    "lists.images=5",
    "adaptive.draw.images=5",
    "*.steps=2",
)
RUN = {kind: kind.run for kind in (Train, Mine, Evaluate, Compare)}


def toy(*over: str, **changes: Any) -> GridSearch:
    """Both rounds of AOQ; by default four points that share the first round and its lists."""
    recipe = smoke_recipe(find_recipe("aoq/vsepp-scenes"))
    axes = over or ("adaptive.draw.texts=10,20", "adaptive.rate=1e-3,1e-2")
    return GridSearch(
        name="toy",
        recipe=apply_overrides(recipe, SMALL),
        axes=tuple(map(GridAxis.parse, axes)),
        **changes,
    )


def source() -> DataSource:
    return DataSource("scenes:images=36")


def results(folder: Path) -> dict[str, Any]:
    """``sweep.json`` without how it was made."""
    found = json.loads((folder / "sweep.json").read_text())
    return {name: value for name, value in found.items() if name != "provenance"}


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
    return list(folder.glob(f"points/*/{stage}"))


def test_shared_stages_run_once(whole: Path) -> None:
    for stage, times in (("online", 1), ("lists", 1), ("adaptive", 4), ("test-adaptive", 1)):
        assert len(trained(whole, stage)) == times
    assert not trained(whole, "test-online")


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
    moved = whole.rename(whole.with_name("moved"))
    assert run(toy(), source(), moved, test=True)
    moved.rename(whole)
    assert results(whole) == expected
    assert {k: v for k, v in snapshot(whole).items() if not k.startswith("sweep.")} == before


def test_a_wider_grid_reuses_the_folder(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "wider"
    shutil.copytree(whole, folder)
    wider = toy("adaptive.draw.texts=10,20", "adaptive.rate=1e-3,2e-3")
    assert run(wider, source(), folder)
    assert [len(trained(folder, stage)) for stage in ("online", "adaptive")] == [1, 6]
    found, before = results(folder)["points"], results(whole)["points"]
    assert [found[n]["mean"] for n in (0, 2)] == [before[n]["mean"] for n in (0, 2)]


def test_what_a_lost_point_had_trained_is_trained_again(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    shutil.copytree(whole, folder)
    (lender,) = trained(folder, "online")
    shutil.rmtree(lender.parent)
    assert run(toy(), source(), folder, test=True)
    assert results(folder) == results(whole)


def test_seeds_are_averaged_and_share_nothing_that_is_trained(tmp_path: Path) -> None:
    sweep = toy("online.rate=1e-3,1e-2", stage="online", seeds=(0, 3))
    bare = [s for s in sweep.recipe.stages if s.kind not in ("evaluate", "compare")]
    sweep = replace(sweep, recipe=replace(sweep.recipe, stages=tuple(bare)))
    assert run(sweep, source(), tmp_path, test=True)
    assert len(trained(tmp_path, "online")) == 4
    assert not trained(tmp_path, "lists")
    found = results(tmp_path)
    for point in found["points"]:
        dev = [one["dev"]["rsum"] for one in point["trained"]]
        assert [one["seed"] for one in point["trained"]] == [0, 3]
        assert point["mean"] == mean(dev)
        assert point["deviation"] == pytest.approx(stdev(dev))
    # the recipe has no evaluation of its own
    assert [(test["stage"], test["seed"]) for test in found["tests"]] == [
        ("test-online", 0),
        ("test-online", 3),
    ]
    page = (tmp_path / "sweep.html").read_text()
    assert f"{found['points'][found['ranked'][0]]['mean']:.1f} ±" in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_a_failed_point_is_reported_and_left_out(tmp_path: Path, monkeypatch, capsys) -> None:
    def breaks(stage, context, **kwargs):
        if stage.plan.optimiser.rate == 1e-2:
            raise ValueError("the loss is nan")
        RUN[type(stage)](stage, context, **kwargs)

    instead(monkeypatch, breaks)
    sweep = toy("online.rate=1e-3,1e-2,2e-3", stage="online")
    assert run(sweep, source(), tmp_path)
    found = results(tmp_path)
    assert [point["failed"] for point in found["points"]] == [None, "the loss is nan", None]
    assert set(found["ranked"]) == {0, 2}
    page = (tmp_path / "sweep.html").read_text()
    assert "1e-2: the loss is nan" in page
    assert "toy, 3 of 3: online.rate=2e-3" in capsys.readouterr().out
    monkeypatch.undo()
    assert run(sweep, source(), tmp_path)
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


@pytest.mark.parametrize(("stage", "many"), [("online/model/model.json", 1), ("adaptive.json", 2)])
def test_a_killed_search_continues_to_the_same_results(
    stage: str, many: int, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "toy"
    child = processes.forked(lambda: not run(toy(), source(), folder, resume=True, test=True))
    processes.wait_for(lambda: trained(folder, stage)[many - 1 :], child)
    processes.killed(child)
    assert run(toy(), source(), folder, resume=True, test=True)
    assert results(folder) == results(whole)
    assert {p.relative_to(folder) for p in folder.rglob("*") if p.suffix != ".part"} == {
        p.relative_to(whole) for p in whole.rglob("*")
    }


def test_a_search_out_of_time_continues(tmp_path: Path) -> None:
    sweep = toy("online.rate=1e-3,1e-2", stage="online")
    assert not run(sweep, source(), tmp_path, minutes=1e-6)
    assert json.loads((tmp_path / "sweep.json").read_text())["ranked"] == []
    assert not (tmp_path / "sweep.html").exists()
    assert run(sweep, source(), tmp_path, resume=True)
    assert len(results(tmp_path)["ranked"]) == 2


def test_a_stopped_search_needs_resume(tmp_path: Path, monkeypatch) -> None:
    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        instead(patched, dies)
        with pytest.raises(KeyboardInterrupt):
            run(toy("adaptive.rate=1e-3"), source(), tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match="add --resume to continue"):
        run(toy("adaptive.rate=1e-3"), source(), tmp_path)
    assert snapshot(tmp_path) == before
    # its first point is stopped in a stage that another one finishes
    assert run(toy("adaptive.rate=1e-2,1e-3"), source(), tmp_path, resume=True)
    assert len(trained(tmp_path, "online/model")) == 1


# refused before anything is run


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
def test_points_that_cannot_be_compared(
    over: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        run(toy(*over), source(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_data_without_a_dev_split(tmp_path: Path, monkeypatch) -> None:
    dataset = source().open()
    splits = tuple("train" if s == "dev" else s for s in dataset.splits)
    monkeypatch.setattr(DataSource, "open", lambda _: replace(dataset, splits=splits))
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


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"recipe": 1, "stage": 2, "data": 3}', "[" * 9_999]
)
def test_damaged_results_of_a_sweep(content: str, tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text(content)
    with pytest.raises(ValueError, match=r"sweep\.json cannot be read as the results of a sweep"):
        run(toy(), source(), tmp_path / "sweep")
