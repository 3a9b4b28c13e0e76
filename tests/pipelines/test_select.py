"""A run hands over the later model only where it is better beyond chance on dev."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from counterfoil.core.io import read_json
from counterfoil.model import load_model
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Compare, Evaluate, Recipe, Select, Train
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.recipes import catalogue, photos

DATA = "scenes:images=400,dev=60,test=40,features=regions"


def recipe(epochs: dict[str, float]) -> Recipe:
    """Two trainings of these many epochs on regions, the selection and the report."""
    base = apply_overrides(
        catalogue.find_recipe("vsepp-flickr8k"),
        ["*.model.image.width=32", "*.model.text.width=32", "*.rate=0.003", "*.batch=32"],
    ).stages[0]
    assert isinstance(base, Train)
    trained = [
        replace(base, name=name, plan=replace(base.plan, epochs=3, steps=steps))
        for name, steps in epochs.items()
    ]
    tests = [Evaluate(name=f"test-{name}", using=(name,)) for name in epochs]
    report = Compare(name="report", results=tuple(t.name for t in tests), selection="best")
    stages = (*trained, *tests, Select(name="best", using=tuple(epochs)), report)
    return Recipe(name="toy", stages=stages, data=DATA)


def finished(folder: Path, epochs: dict[str, float]) -> dict:
    assert run_pipeline(recipe(epochs), DataSource(DATA), folder)
    return read_json(folder / "best" / "selection.json", "a selection")


def test_the_better_model_is_handed_over_and_the_report_says_so(tmp_path, capsys) -> None:
    found = finished(tmp_path / "won", {"online": 1, "adaptive": 100})
    change = found["comparisons"]["adaptive"]
    assert found["selected"] == "adaptive"
    assert change["interval"]["low"] > 0
    assert change["difference"] == pytest.approx(
        found["rsum"]["adaptive"] - found["rsum"]["online"]
    )
    opening = "Use adaptive: on dev (60 images, ranked whole) adaptive has RSum "
    assert found["sentence"].startswith(opening)
    page = (tmp_path / "won" / "report" / "report.html").read_text()
    assert page.index("Use adaptive: on dev") < page.index("reaches RSum")
    assert "It is in " in capsys.readouterr().out.splitlines()[-1]
    ours, theirs = (load_model(tmp_path / "won" / name) for name in ("best", "adaptive"))
    for name, tensor in ours.model.state_dict().items():
        assert np.array_equal(tensor.numpy(), theirs.model.state_dict()[name].numpy())


def test_a_worse_model_is_not_handed_over(tmp_path) -> None:
    found = finished(tmp_path / "lost", {"online": 100, "adaptive": 1})
    assert found["selected"] == "online"
    assert found["comparisons"]["adaptive"]["interval"]["high"] < 0
    assert "lower than online" in found["sentence"]
    assert found["sentence"].endswith("), so it is worse.")
    ours, theirs = (load_model(tmp_path / "lost" / name) for name in ("best", "online"))
    assert ours.identity() == theirs.identity()


def test_a_difference_within_chance_leaves_the_base(tmp_path) -> None:
    found = finished(tmp_path / "same", {"online": 100, "again": 100})
    assert (found["selected"], found["comparisons"]["again"]["difference"]) == ("online", 0)
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
