"""A frozen public vision model and a text tower on one's own photos."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from PIL import Image

import hub_cases
from counterfoil.cli import main
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.models.layers.pretrained import HFVisionTower
from counterfoil.pipelines.pipeline import Evaluate, Train
from counterfoil.recipes import photos

SMALL = ("*.model.image.width=16", "*.model.text.width=16", "*.model.text.word_width=8")
SMALL += ("*.processor.size=48", "*.batch=16", "*.epochs=1", "*.steps=3")
LISTS = ("lists.texts=20", "lists.images=5")


def settings(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


@pytest.mark.parametrize("name", photos.NAMES)
def test_photos_train_beside_a_frozen_model(name, tmp_path):
    """A folder in the place of the hub; the saved model does not ask for it again."""
    public = hub_cases.mobilenet(tmp_path / "public")
    more = [*SMALL, f"*.model.image.name={public}", *(LISTS if name.startswith("aoq") else ())]
    beside = ",features=regions" if name == "mobilenet" else ""  # which it does not look at
    run, data = tmp_path / "run", f"scenes:images=48{beside}"
    assert main(["train", name, "--data", data, "--folder", str(run), *settings(*more)]) == 0

    last = "adaptive" if name.startswith("aoq") else "online"
    frozen = HFVisionTower(name=public).body.state_dict()
    shutil.rmtree(public)
    model = load_model(run / last)
    tower = next(part for part in model.model.modules() if isinstance(part, HFVisionTower))
    assert all(torch.equal(value, frozen[key]) for key, value in tower.body.state_dict().items())
    assert model.score(Image.new("RGB", (40, 20), "red"), ["a dog", "a star"]).shape == (2,)
    assert main(["evaluate", str(run / last), "--data", data]) == 0
    saved = json.loads((run / last / "model" / "lens.json").read_text())
    assert saved["eye"]["size"] == 48


def test_a_second_training_begins_with_the_first(tmp_path):
    from dataclasses import replace

    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.pipelines.pipeline import Recipe
    from counterfoil.pipelines.run import DataSource, run_pipeline

    public = hub_cases.mobilenet(tmp_path / "public")
    first = photos.photo_recipe("mobilenet", None).stages[0]
    assert isinstance(first, Train)
    again = replace(first, name="again", start="online")
    both = apply_overrides(
        Recipe(name="both", stages=(first, again)), (*SMALL, f"*.model.image.name={public}")
    )
    assert run_pipeline(both, DataSource("scenes:images=36"), tmp_path / "run")
    shutil.rmtree(public)
    dataset = load_dataset("scenes:images=36")
    assert len(load_model(tmp_path / "run" / "again").embed(dataset).images) == 36


def test_protocols_of_own_photos_and_of_flickr8k():
    for name in photos.NAMES:
        mine = photos.own_data_recipe(name, pixels=True)
        assert mine == photos.photo_recipe(name, None)
        tests = [stage for stage in mine.stages if isinstance(stage, Evaluate)]
        assert {stage.protocol for stage in tests} == {"whole"}
        public = photos.photo_recipe(name, "flickr8k")
        assert {s.protocol for s in public.stages if isinstance(s, Evaluate)} == {"flickr-1k"}
        assert [s for s in public.stages if isinstance(s, Train)] == [
            s for s in mine.stages if isinstance(s, Train)
        ]
        assert photos.own_data_recipe(name, pixels=False) == mine, "features are left alone"
