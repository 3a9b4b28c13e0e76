"""A frozen public vision model and a text tower on one's own photos."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
import transformers
from PIL import Image

import hub_cases
from corpus_cases import write_folder
from counterfoil import evaluate
from counterfoil.cli import main
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.models.layers.pretrained import FrozenPatches, HFVisionTower
from counterfoil.models.layers.towers import MLPRegions, Regions
from counterfoil.papers import photos
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Evaluate, Train
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.recipes.catalogue import find_recipe
from counterfoil.training.logging import read_metrics

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
    assert main(["train", name, "--data", data, "--output", str(run), *settings(*more)]) == 0

    last = "adaptive" if name.startswith("aoq") else "online"
    frozen = HFVisionTower(name=public).body.state_dict()
    shutil.rmtree(public)
    model = load_model(run / last)
    tower = next(part for part in model.model.modules() if isinstance(part, HFVisionTower))
    assert all(torch.equal(value, frozen[key]) for key, value in tower.body.state_dict().items())
    assert model.score(Image.new("RGB", (40, 20), "red"), ["a dog", "a star"]).shape == (2,)
    assert main(["evaluate", str(run / last), "--data", data]) == 0
    saved = json.loads((run / last / "model" / "processor.json").read_text())
    assert saved["image_processor"]["size"] == 48


def test_a_second_training_begins_with_the_first(tmp_path):
    from counterfoil.pipelines.pipeline import Recipe

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
        # as published, but for the length on few photos and the rate
        own, published = ([s for s in r.stages if isinstance(s, Train)] for r in (mine, public))
        assert all(stage.plan.least_steps for stage in own)
        assert not any(stage.plan.least_steps for stage in published)
        assert own == [replace(s, plan=o.plan) for s, o in zip(published, own, strict=True)]
        assert [s.plan.epochs for s in own] == [s.plan.epochs for s in published]
        assert photos.own_data_recipe(name, pixels=False) == mine, "features are left alone"


# Patches of a frozen tower in place of regions.


@pytest.fixture
def tower(tmp_path):
    """A tiny random ViT with its picture format."""
    hub_cases.processor(
        tmp_path / "vit",
        image_processor_type="ViTImageProcessor",
        size={"height": 16, "width": 16},
        image_mean=[0.4, 0.5, 0.6],
        image_std=[0.2, 0.3, 0.4],
    )
    return hub_cases.vit(tmp_path / "vit")


def trained(*words: str) -> int:
    return main(["train", *words, "--batch-size", "16", *settings(*QUICK)])


QUICK = ("*.model.image.width=16", "*.model.text.width=16", "*.steps=3", "*.epochs=1")


def test_patches_feed_scan_chan_and_gpo_and_are_made_once(tower, tmp_path, monkeypatch):
    encoded: list[int] = []
    original = FrozenPatches.states

    def counting(self, images):
        encoded.append(len(images.values))
        return original(self, images)

    monkeypatch.setattr(FrozenPatches, "states", counting)
    for name in photos.PATCH_MODELS:
        run = tmp_path / name
        place = ("--data", "scenes:images=40", "--tower", tower, "--output", str(run))
        assert trained(name, *place) == 0
    assert sum(encoded) == 40, "every picture is encoded once, for all models and splits"
    shutil.rmtree(tower)
    for name in photos.PATCH_MODELS:
        model = load_model(tmp_path / name / "online")
        patches = next(p for p in model.model.modules() if isinstance(p, FrozenPatches))
        assert isinstance(patches.regions, MLPRegions if name == "gpo" else Regions)
        assert model.score(Image.new("RGB", (40, 20), "red"), ["a dog", "a star"]).shape == (2,)
        saved = tmp_path / name / "online" / "model" / "processor.json"
        settings = json.loads(saved.read_text())["image_processor"]
        assert (settings["size"], settings["mean"]) == (16, [0.4, 0.5, 0.6])


def test_one_recipe_trains_all_three_on_the_same_patches(tower, tmp_path):
    recipe = find_recipe("patches", tower=tower)
    stages = [stage for stage in recipe.stages if isinstance(stage, Train)]
    assert [stage.name for stage in stages] == list(photos.PATCH_MODELS)
    assert {stage.processor.images for stage in stages} == {"pixels"}
    assert {stage.model.arguments["image"].arguments["name"] for stage in stages} == {tower}
    default = find_recipe("patches")
    assert {
        (s.processor.size, s.processor.frame) for s in default.stages if isinstance(s, Train)
    } == {(224, "squash bilinear")}
    small = apply_overrides(recipe, (*QUICK, "*.batch=16", "*.protocol=whole"))
    assert run_pipeline(small, DataSource("scenes:images=40"), tmp_path / "run")
    assert {"test-gpo", "report"} <= {path.name for path in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("dive",), "has no tower of regions that patches could stand for; use scan-t2i"),
        (("mobilenet",), "mobilenet-own has no tower of regions"),
        (("contrastive", "--model", "x"), "x has a tower of its own"),
    ],
)
def test_a_tower_beside_another_one_is_refused(words, wanted, tower, capsys):
    assert main(["train", *words, "--data", "scenes:images=40", "--tower", tower]) == 2
    assert re.search(wanted, " ".join(capsys.readouterr().err.split()))


@pytest.mark.slow
def test_fifty_photos_are_trained_until_they_are_learned(tmp_path, capsys):
    """Seven passes over fifty photos are some steps; the default goes on for as many as it takes.

    Other scenes are told apart far better, and a training that goes on is hardly better.
    """
    torch.manual_seed(0)
    shape = hub_cases.VISION | {"image_size": 48, "hidden_size": 64, "intermediate_size": 64}
    body = transformers.ViTModel(transformers.ViTConfig(**shape | {"num_hidden_layers": 1}))
    body.save_pretrained(tmp_path / "public")
    write_folder(load_dataset("scenes:images=50"), tmp_path / "photos")
    small = ["*.model.image.width=32", "*.model.text.width=32", "*.model.text.word_width=16"]
    small += ["*.model.image.grid=0", "*.processor.size=48", "*.batch=32"]
    small += [f"*.model.image.name={tmp_path / 'public'}"]
    other = load_dataset("scenes:images=150,dev=0,test=0")
    reached = {}
    for name, length in {
        "default": (),
        "passes": ("--epochs", "7"),
        "long": ("--set", "*.least_steps=600", "--set", "*.evaluate_every=600"),
    }.items():
        words = ["--data", str(tmp_path / "photos"), "--output", str(tmp_path / name)]
        assert main(["train", "mobilenet", *words, *settings(*small), *length]) == 0
        reached[name] = evaluate(load_model(tmp_path / name), other).rsum
    steps = max(line["step"] for line in read_metrics(tmp_path / "default/online/metrics.jsonl"))
    assert photos.STEPS <= steps < photos.STEPS + 5
    assert "too few to choose an epoch by" in capsys.readouterr().err
    assert reached["default"] > reached["passes"] + 50
    assert reached["default"] > 0.9 * reached["long"]
