"""Teachers, what they say, and a student: one run."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import processes
from artifact_cases import resealed
from counterfoil.core.config import config, from_stage, lazy
from counterfoil.losses.aoq import OfflineTriplet
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.ndgl import HardNegativeRectificationLoss, MarginDistillationLoss
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.negatives.sources import NegativeSource
from counterfoil.negatives.teachers import Mask
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import (
    ComputeTargets,
    Evaluate,
    Mine,
    Recipe,
    Train,
    stage_digests,
)
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.state import RunContext
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe
from counterfoil.training.logging import read_metrics
from counterfoil.training.mined import Mined

DATA = "scenes:images=36"
SOURCE = DataSource(DATA)
SMALL = [
    "*.model.image.width=16",
    "*.model.image.channels=4",
    "*.model.text.width=16",
    "*.batch=16",
]
TAUGHT, LISTED = from_stage("teach"), config(Mined, negatives=from_stage("lists"))
FEW = ["student.mined.sampling.texts=20", "student.mined.sampling.images=5"]
GUIDED = weighted_sum(
    triplet=lazy(HardestTripletLoss),
    margins=(100.0, lazy(MarginDistillationLoss)),
    rectified=(0.5, lazy(HardNegativeRectificationLoss)),
)


def guide_of(context: RunContext, stage: Train, scale: float) -> NegativeSource:
    """The source of targets of a training."""
    (guide,) = (source for source in stage.built_sources(context, scale) if source.gives.targets)
    return guide


def recipe(host: str = "vsepp", *settings: str, form: str = "stored", **more) -> Recipe:
    """Two teachers and a student."""
    one = find_recipe("online", model=host).stages[0]
    assert isinstance(one, Train)
    stages = (
        replace(one, name="teacher-0"),
        replace(one, name="teacher-1", plan=replace(one.plan, seed=1)),
        ComputeTargets(name="teach", using=("teacher-0", "teacher-1"), form=form),
        replace(one, **{"name": "student", "objective": GUIDED, "sources": (TAUGHT,), **more}),
        Evaluate(name="test", using=("student",)),
    )
    return apply_overrides(
        smoke_recipe(Recipe(name="taught", stages=stages, data=DATA)), [*SMALL, *settings]
    )


def weights(folder: Path, stage: str = "student") -> bytes:
    return (folder / stage / "model" / "model.safetensors").read_bytes()


def losses(folder: Path) -> list[float]:
    return [
        line["loss"]
        for line in read_metrics(folder / "student" / "metrics.jsonl")
        if "loss" in line
    ]


def copy_stages(source: Path, folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        shutil.copytree(source / name, folder / name)
        shutil.copy(source / f"{name}.json", folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_pipeline(recipe(), SOURCE, folder)
    return folder


def test_a_student_learns_from_its_teachers(whole):
    lines = [l for l in read_metrics(whole / "student" / "metrics.jsonl") if "loss" in l]
    assert all(line["loss_margins"] > 0 for line in lines)
    assert {"guide_disagree", "guide_kl", "guide_outranked", "share_margins"} <= set(lines[-1])
    assert "guide_kl" not in read_metrics(whole / "teacher-0" / "metrics.jsonl")[0]
    manifest = json.loads((whole / "teach" / "manifest.json").read_text())
    assert [t["plain"] for t in manifest["teachers"]] == [True, True]
    assert not list(whole.rglob("*.partial"))


def test_a_finished_run_is_kept(whole):
    before = weights(whole)
    assert run_pipeline(recipe(), SOURCE, whole)
    assert weights(whole) == before


def test_models_on_the_batch_teach_the_same(whole, tmp_path):
    copy_stages(whole, tmp_path, "teacher-0", "teacher-1")
    for form, inputs in (("models", "clean"), ("models", "same")):
        made = recipe("vsepp", f"teach.inputs={inputs}", form=form)
        assert run_pipeline(made, SOURCE, tmp_path)
        assert losses(tmp_path) == pytest.approx(losses(whole), rel=1e-3)
        for name in ("teach", "student", "test"):
            shutil.rmtree(tmp_path / name)
            (tmp_path / f"{name}.json").unlink()


def test_fragments_teach_too(tmp_path):
    assert run_pipeline(recipe("scan-t2i"), SOURCE, tmp_path)
    manifest = json.loads((tmp_path / "teach" / "manifest.json").read_text())
    assert [t["plain"] for t in manifest["teachers"]] == [False, False]
    assert losses(tmp_path)[-1] > 0


def test_drawn_pairs_stand_among_the_guided(whole, tmp_path):
    copy_stages(whole, tmp_path, "teacher-0", "teacher-1", "teach")
    made = recipe()
    objective = weighted_sum(
        triplet=lazy(HardestTripletLoss),
        margins=(100.0, lazy(MarginDistillationLoss, offline=True)),
        rectified=(0.5, lazy(HardNegativeRectificationLoss, candidates="offline")),
    )
    lists = Mine(name="lists", using=("teacher-0",), texts=20, images=5)
    student = replace(made.stage("student"), objective=objective, sources=(LISTED, TAUGHT))
    made = replace(made, stages=(*made.stages[:3], lists, student))
    made = apply_overrides(made, FEW)
    assert run_pipeline(made, SOURCE, tmp_path)
    assert losses(tmp_path)[-1] > 0


MASK = config(Mask, guide=TAUGHT, margin=0.05)


def masked(*settings: str, sources: tuple[Any, ...] = (LISTED, MASK)) -> Recipe:
    """A student whose own loss leaves out pairs that the teachers take for true, mined ones too."""
    loss = weighted_sum(offline=lazy(OfflineTriplet))
    made = recipe(objective=loss)
    mine = Mine(name="lists", using=("teacher-0",), texts=20, images=5)
    student = replace(made.stage("student"), sources=sources)
    stages = (*made.stages[:2], mine, made.stages[2], student, made.stages[4])
    return apply_overrides(replace(made, stages=stages), [*FEW, *settings])


MOMENTS = (
    "teacher-0/checkpoints/last.safetensors",
    "teacher-1/metrics.jsonl",
    "lists.json",
    "teach.json",
    "student/checkpoints/last.safetensors",
)


@pytest.mark.slow
def test_a_masked_run_that_is_killed_goes_on_to_the_same_numbers(whole, tmp_path):
    plain, once = tmp_path / "plain", tmp_path / "once"
    for folder in (plain, once):
        copy_stages(whole, folder, "teacher-0", "teacher-1", "teach")
    assert run_pipeline(masked(sources=(LISTED,)), SOURCE, plain)
    assert run_pipeline(masked(), SOURCE, once)
    assert losses(once)[0] < losses(plain)[0]

    def begun(folder: Path) -> int:
        made = masked("*.save_minutes=0")
        return processes.forked(lambda: not run_pipeline(made, SOURCE, folder, resume=True))

    folder = processes.cut(begun, tmp_path / "again", *MOMENTS)
    assert processes.ended(begun(folder)) == 0
    assert weights(folder) == weights(once)
    assert losses(folder) == losses(once)


def test_a_mask_without_a_guide_is_refused_before_anything_is_trained(tmp_path):
    made = masked(sources=(LISTED, config(Mask)))
    with pytest.raises(ValueError, match=r"'student', Mask: .* missing 1 required .* 'guide'"):
        student(made).check(context(tmp_path, made))
    with pytest.raises(ValueError, match="needs a guide stage where it names 'lists', a mine"):
        masked(sources=(LISTED, config(Mask, guide=from_stage("lists"))))


def quietly(folder: str) -> bool:
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run_pipeline(recipe(), SOURCE, Path(folder))


def test_two_processes_teach_and_learn_as_one(whole, tmp_path):
    SOURCE.open()
    assert processes.run(quietly, 2, str(tmp_path)) == [True, True]
    assert losses(tmp_path) == pytest.approx(losses(whole), rel=1e-3)
    manifests = [json.loads((f / "teach" / "manifest.json").read_text()) for f in (whole, tmp_path)]
    for one, two in zip(*(m["teachers"] for m in manifests), strict=True):
        assert one["mean"] == pytest.approx(two["mean"], abs=1e-3)


def context(folder: Path, made: Recipe) -> RunContext:
    dataset = SOURCE.open()
    return RunContext(made, dataset, folder, stage_digests(made, "data"))


def student(made: Recipe) -> Train:
    found = made.stage("student")
    assert isinstance(found, Train)
    return found


def test_a_teacher_that_is_missing_or_was_trained_again_is_refused(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    made, folder = recipe(form="models"), tmp_path / "run"
    manifest = folder / "teach" / "manifest.json"
    plain = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**plain, "form": "models"}))
    resealed(manifest.parent)
    assert guide_of(context(folder, made), student(made), 1.0) is not None
    plain["teachers"][1]["source"]["checkpoint"] = "0123"
    manifest.write_text(json.dumps({**plain, "form": "models"}))
    resealed(manifest.parent)
    with pytest.raises(
        ValueError, match=r"teacher 2 of .* had the weights 0123, but the model has"
    ):
        guide_of(context(folder, made), student(made), 1.0)
    shutil.rmtree(folder / "teacher-0" / "model")
    with pytest.raises(ValueError, match=r"holds no model: .*; was its training finished"):
        guide_of(context(folder, made), student(made), 1.0)


def saved(whole: Path, *names: str) -> Recipe:
    """The student alone, taught by models of a run that is over."""
    made = recipe()
    taught = ComputeTargets(name="teach", models=tuple(str(whole / name) for name in names))
    return replace(made, stages=(taught, *made.stages[3:]))


def test_saved_models_teach_as_those_of_the_run(whole, tmp_path):
    made = saved(whole, "teacher-0", "teacher-1")
    assert run_pipeline(made, SOURCE, tmp_path / "run")
    assert losses(tmp_path / "run") == losses(whole)
    assert weights(tmp_path / "run") == weights(whole)


def test_a_run_and_a_saved_model_teach_together(whole, tmp_path):
    made = recipe(
        "vsepp", f"teach.models={(str(whole / 'teacher-1'),)}", "teach.using=['teacher-0']"
    )
    stages = tuple(stage for stage in made.stages if stage.name != "teacher-1")
    assert run_pipeline(replace(made, stages=stages), SOURCE, tmp_path / "run")
    assert losses(tmp_path / "run") == losses(whole)


def test_saved_models_are_told_apart_by_what_is_in_them(whole, tmp_path):
    def found(folder: Path) -> dict[str, str]:
        return stage_digests(saved(folder, "teacher-0"), "d")

    shutil.copytree(whole / "teacher-0", tmp_path / "teacher-0")
    assert found(tmp_path) == found(whole)
    shutil.rmtree(tmp_path / "teacher-0")
    shutil.copytree(whole / "teacher-1", tmp_path / "teacher-0")
    assert all(found(tmp_path)[name] != found(whole)[name] for name in ("teach", "student"))


def test_saved_models_that_cannot_teach_are_refused_before_anything_is_done(whole, tmp_path):
    with pytest.raises(ValueError, match=r"teach holds no model: .* was its training finished"):
        run_pipeline(saved(whole, "teach"), SOURCE, tmp_path / "run")
    made = saved(whole, "teacher-0")
    features = replace(SOURCE.open(), pictures=None)
    with pytest.raises(ValueError, match="has no pictures"):
        made.stage("teach").check(RunContext(made, features, tmp_path, {}))
    assert not (tmp_path / "run").exists()


def test_what_was_taught_on_other_data_is_refused(whole, tmp_path):
    made = recipe()
    other = DataSource("scenes:images=40").open()
    with pytest.raises(ValueError, match=r"was taught on corpus .*, but this one is"):
        guide_of(RunContext(made, other, whole, stage_digests(made, "data")), student(made), 1.0)


def test_scores_are_brought_to_the_students_scale(whole):
    from counterfoil.data.batching import collate

    made, at = recipe(), context(whole, recipe())
    batch = collate(_lens(at), torch.arange(12))
    one, ten = (guide_of(at, student(made), scale).targets(batch) for scale in (1.0, 10.0))
    torch.testing.assert_close(10 * one, ten)


def _lens(at: RunContext):
    from counterfoil.model import load_model

    return load_model(at.place("teacher-0")).process(at.train)


def test_a_loss_that_needs_a_guide_is_refused_before_anything_is_trained(tmp_path):
    made = recipe()
    bare = replace(student(made), sources=())
    made = replace(made, stages=(made.stages[0], bare))
    with pytest.raises(ValueError, match=r"'student': the loss .* needs a guide that says"):
        run_pipeline(made, SOURCE, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_teachers_that_see_otherwise_cannot_see_the_same(tmp_path):
    made = apply_overrides(
        recipe(form="models"), ["teach.inputs=same", "teacher-1.processor.size=32"]
    )
    with pytest.raises(ValueError, match=r"'student': .* but 'teacher-1' has another processor"):
        run_pipeline(made, SOURCE, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_plan_names_the_guide(capsys):
    from counterfoil.pipelines.plan import print_plan

    print_plan(recipe())
    shown = capsys.readouterr().out
    assert "teach  ← teacher-0, teacher-1" in shown
    assert "sources: from_stage('teach')" in shown
