"""A run hands over the later model only where it is better beyond chance on dev."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from counterfoil.core.io import read_json
from counterfoil.model import load_model
from counterfoil.papers import photos
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Compare, Evaluate, Recipe, Select, Train
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.recipes.catalogue import find_recipe

DATA = "scenes:images=240,dev=60,test=40,features=regions"


def recipe(epochs: dict[str, float]) -> Recipe:
    """Trainings of these many epochs on regions, selections and the report."""
    base = apply_overrides(
        find_recipe("online", like="flickr8k"),
        ["*.model.image.width=32", "*.model.text.width=32", "*.rate=0.003", "*.batch=32"],
    ).stages[0]
    assert isinstance(base, Train)
    trained = [
        replace(base, name=name, plan=replace(base.plan, epochs=3, steps=steps))
        for name, steps in epochs.items()
    ]
    one, *_ = using = tuple(epochs)
    tests = [Evaluate(name=f"test-{name}", using=(name,)) for name in using]
    selects = [Select(name="best", using=using[:2])]
    if len(using) > 2:
        selects += [
            Select(name="worse", using=(using[1], one)),
            Select(name="same", using=using[1:]),
        ]
    results = (tests[0].name, tests[1].name)
    report = Compare(name="report", results=results, selection="best")
    return Recipe(name="toy", stages=(*trained, *tests, *selects, report), data=DATA)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, str]:
    """A run that selects from a first model, a better one, and that one's equal; its output."""
    folder = tmp_path_factory.mktemp("run")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        made = recipe({"online": 1, "adaptive": 40, "again": 40})
        assert run_pipeline(made, DataSource(DATA), folder)
    return folder, printed.getvalue()


def selected(folder: Path, stage: str) -> dict:
    return read_json(folder / stage / "selection.json", "a selection")


def test_the_better_model_is_handed_over_and_the_report_says_so(run) -> None:
    folder, printed = run
    found = selected(folder, "best")
    change = found["comparisons"]["adaptive"]
    assert found["selected"] == "adaptive"
    assert change["interval"]["low"] > 0
    assert change["difference"] == pytest.approx(
        found["rsum"]["adaptive"] - found["rsum"]["online"]
    )
    opening = "Use adaptive: on dev (60 images, ranked whole) adaptive has RSum "
    assert found["sentence"].startswith(opening)
    page = (folder / "report" / "report.html").read_text()
    assert page.index("Use adaptive: on dev") < page.index("reaches RSum")
    assert printed.splitlines()[-2].startswith("the model to use: ")
    ours, theirs = (load_model(folder / name) for name in ("best", "adaptive"))
    for name, tensor in ours.model.state_dict().items():
        assert np.array_equal(tensor.numpy(), theirs.model.state_dict()[name].numpy())


def test_a_worse_model_is_not_handed_over(run) -> None:
    folder, _ = run
    found = selected(folder, "worse")
    assert found["selected"] == "adaptive"
    assert found["comparisons"]["online"]["interval"]["high"] < 0
    assert "lower than adaptive" in found["sentence"]
    assert found["sentence"].endswith("), so it is worse.")
    ours, theirs = (load_model(folder / name) for name in ("worse", "adaptive"))
    assert ours.identity() == theirs.identity()


def test_a_difference_within_chance_leaves_the_base(run) -> None:
    found = selected(run[0], "same")
    assert (found["selected"], found["comparisons"]["again"]["difference"]) == ("adaptive", 0)
    assert found["sentence"].endswith("so nothing shows that it is better.")


def test_without_dev_the_base_stands(tmp_path) -> None:
    source = DataSource("scenes:images=60,dev=0,test=20,features=regions")
    if "dev" in source.open().split_names:
        pytest.skip("these scenes have a dev split")
    assert run_pipeline(recipe({"online": 1, "adaptive": 2}), source, tmp_path)
    found = json.loads((tmp_path / "best" / "selection.json").read_text())
    assert found["sentence"].startswith("Use online: without a dev split")


def test_the_recipe_for_photos_selects() -> None:
    made = photos.photo_recipe("aoq/mobilenet", None)
    assert made.stage("best") == Select(name="best", using=("online", "adaptive"))
    report = made.stages[-1]
    assert isinstance(report, Compare)
    assert report.selection == "best"
