"""Pretrained pairs of encoders, trained further on a user's own photos."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import recipes_cases
from counterfoil.core import registry
from counterfoil.model import load_model
from counterfoil.models.clip import DualEncoder
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.negatives.generated import ROWS
from counterfoil.pipelines.pipeline import ComputeTargets, Evaluate, Mine, Train
from counterfoil.recipes import clip
from counterfoil.recipes.clip import FineTunedModel, fine_tune_recipe
from counterfoil.training.logging import read_metrics
from recipes_cases import run

SCENES = "scenes:images=36"
SHORT = ("*.epochs=2", "*.steps=4", "*.batch=16")
LISTS = (
    "lists.texts=20",
    "lists.images=5",
    "adaptive.mined.sampling.texts=20",
    "adaptive.mined.sampling.images=5",
)
FRESH = """
import sys
from pathlib import Path
from counterfoil import load_model
model = load_model(sys.argv[1])
print(model.score(Path(sys.argv[2]), ["a dog", "a red circle"]).tolist())
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    return {kind: recipes_cases.clip_like(root / kind, kind) for kind in ("clip", "siglip2")}


def trained(folder: Path, name: str, model: Path, *more: object, settings=SHORT) -> int:
    words = [word for setting in settings for word in ("--set", setting)]
    where = ("--data", SCENES, "--output", folder)
    return run("train", name, "--model", model, *where, *words, *more)


@pytest.mark.parametrize("way", clip.WAYS)
@pytest.mark.parametrize("name", registry.names("training"))
def test_every_loss_on_every_way(name, way, hub):
    host = FineTunedModel(name=str(hub["clip"]), way=way)
    found = fine_tune_recipe(name, host)
    trainings = [stage for stage in found.stages if isinstance(stage, Train)]
    assert all(stage.processor == host.pair.processor for stage in trainings)
    assert all(stage.model == host.model for stage in trainings)
    tests = [stage for stage in found.stages if isinstance(stage, Evaluate)]
    assert tests[-1].models == (host.name,)
    many = {"aoq": 2, "ndgl": 3}
    assert len(trainings) == many.get(name, 1)
    mines = any(isinstance(stage, Mine) for stage in found.stages)
    assert mines == (name in ("aoq", "listwise", "negclip"))
    assert any(isinstance(stage, ComputeTargets) for stage in found.stages) == (name == "ndgl")


@pytest.mark.parametrize("name", registry.names("training"))
def test_every_loss_trains_a_saved_model_on(name, tmp_path):
    """All its trainings begin with the saved weights, and build the saved model."""
    place = str(recipes_cases.pixel_model(tmp_path / "model"))
    found = fine_tune_recipe(name, FineTunedModel(name=place))
    trainings = [stage for stage in found.stages if isinstance(stage, Train)]
    assert [stage.start for stage in trainings] == [place] * len(trainings)
    assert all(stage.model == load_model(place).spec for stage in trainings)


@pytest.mark.parametrize(
    ("kind", "way"), [("clip", "full"), ("clip", "lora"), ("clip", "frozen"), ("siglip2", "full")]
)
def test_a_saved_model_needs_nothing_of_what_it_began_with(way, kind, hub, tmp_path):
    model = tmp_path / "hub"
    shutil.copytree(hub[kind], model)
    more = ("--set", "*.rate=0.01")
    assert trained(tmp_path / "run", "contrastive", model, "--tune", way, *more) == 0
    picture = tmp_path / "red.png"
    Image.new("RGB", (40, 20), "red").save(picture)
    before = load_model(model).score(picture, ["a dog", "a red circle"])
    shutil.rmtree(model)
    found = load_model(tmp_path / "run" / "tuned")
    assert isinstance(found.model, FrozenWithAdapters if way == "frozen" else DualEncoder)
    assert not any(".lora_" in name for name in found.model.state_dict())
    ours = found.score(picture, ["a dog", "a red circle"])
    assert not torch.allclose(ours, before, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("way", clip.WAYS)
def test_a_saved_model_opens_in_a_fresh_process(way, hub, tmp_path):
    assert trained(tmp_path / "run", "contrastive", hub["clip"], "--tune", way) == 0
    picture = tmp_path / "red.png"
    Image.new("RGB", (40, 20), "red").save(picture)
    command = [sys.executable, "-c", FRESH, str(tmp_path / "run" / "tuned"), str(picture)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = load_model(tmp_path / "run" / "tuned").score(picture, ["a dog", "a red circle"])
    assert json.loads(said) == pytest.approx(ours.tolist(), abs=1e-6)


def test_both_rounds_on_frozen_towers_encode_once(hub, tmp_path, capsys, monkeypatch):
    calls = []
    whole = DualEncoder.encode_images
    monkeypatch.setattr(
        DualEncoder,
        "encode_images",
        lambda self, items: calls.append(len(items)) or whole(self, items),
    )
    settings = (*SHORT, *LISTS)
    assert trained(tmp_path / "run", "aoq", hub["clip"], "--tune", "frozen", settings=settings) == 0
    assert sum(calls) == 24 + 6 + 6, "train, dev and test; the original takes what is kept"
    report = (tmp_path / "run" / "report" / "report.html").read_text()
    assert all(name in report for name in ("online", "adaptive", str(hub["clip"])))
    assert trained(tmp_path / "run", "aoq", hub["clip"], "--tune", "frozen", settings=settings) == 0
    assert "adaptive: kept" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["triplet", "contrastive"])
def test_all_captions_in_one_batch(name, hub, tmp_path, capsys):
    more = (
        "--tune",
        "frozen",
        "--batch-size",
        "all",
        "--epochs",
        "3",
        "--lr",
        "2e-4",
        "--seed",
        "4",
    )
    settings = ("*.log_every=1",)
    assert trained(tmp_path / "run", name, hub["clip"], *more, settings=settings) == 0
    assert "the learning rate rises for 50 of 3 steps" in " ".join(capsys.readouterr().err.split())
    steps = [line for line in read_metrics(tmp_path / "run/tuned/metrics.jsonl") if "loss" in line]
    assert [(line["step"], line["epoch"]) for line in steps] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert all("hardest_score" in line for line in steps)
    stored = json.loads((tmp_path / "run" / "tuned.json").read_text())
    assert '"rate": 0.0002' in json.dumps(stored)
    assert '"seed": 4' in json.dumps(stored)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aoq", "the loss AdaptiveQuintuplet, Mined would need it"),
        ("negclip", "the loss InfoNCEWithCandidatesLoss, MinedNeighbours, GeneratedCaptions would"),
    ],
)
def test_what_draws_negatives_has_no_batch_of_all(name, words, hub, tmp_path, capsys):
    more = ("--tune", "frozen", "--batch-size", "all")
    assert trained(tmp_path / "run", name, hub["clip"], *more, settings=("*.epochs=3",)) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not list((tmp_path / "run").glob("*/model")), "refused before any training"


def test_teachers_are_any_models(hub, tmp_path):
    more = ("--tune", "frozen", "--teacher", hub["siglip2"], "--teacher", hub["clip"])
    assert trained(tmp_path / "run", "ndgl", hub["clip"], *more) == 0
    assert (tmp_path / "run" / "student" / "model" / "model.json").is_file()
    assert trained(tmp_path / "own", "ndgl", hub["clip"], "--tune", "frozen") == 0
    assert (tmp_path / "own" / "teacher-2" / "model" / "model.json").is_file()


@pytest.mark.parametrize(("name", "way"), [("contrastive", "full"), ("aoq", "frozen")])
def test_written_captions_join(name, way, hub, tmp_path):
    written = tmp_path / "written"
    assert run("papers", "write", "rules", SCENES, "--output", written) == 0
    settings = (*SHORT, *LISTS) if name == "aoq" else SHORT
    more = ("--tune", way, "--written", written)
    assert trained(tmp_path / "run", name, hub["clip"], *more, settings=settings) == 0
    stage = "adaptive" if name == "aoq" else "tuned"
    lines = (tmp_path / "run" / stage / "metrics.jsonl").read_text().splitlines()
    assert "written_above" in json.loads(lines[0]), "foils were scored"
    assert ("loss_written" in json.loads(lines[0])) == (name == "aoq")


def test_adapters_may_stay_apart(hub, tmp_path):
    settings = (*SHORT, "tuned.model.apart=true", "tuned.model.lora=2")
    assert (
        trained(tmp_path / "run", "contrastive", hub["clip"], "--tune", "lora", settings=settings)
        == 0
    )
    found = load_model(tmp_path / "run" / "tuned").model
    assert isinstance(found, DualEncoder)
    assert found.lora == 2
    assert any(".lora_" in name for name in found.state_dict())


def test_what_is_refused(hub):
    host = FineTunedModel(name=str(hub["clip"]))
    with pytest.raises(ValueError, match="did you mean 'triplet'"):
        fine_tune_recipe("tripelt", host)
    with pytest.raises(ValueError, match="'aoq' learns from no teachers"):
        fine_tune_recipe("aoq", host, teachers=("a",))
    with pytest.raises(ValueError, match="did you mean 'frozen'"):
        FineTunedModel(name="a", way="frozn")
    with pytest.raises(ValueError, match="looks at pictures, and these data have none"):
        fine_tune_recipe("aoq", host, pictures=False)


@pytest.mark.parametrize("way", ["full", "frozen"])
def test_negclip_mines_writes_and_trains(way, hub, tmp_path):
    settings = (*SHORT, "lists.texts=20")
    folder = tmp_path / "run"
    more = ("--tune", way)
    assert trained(folder, "negclip", hub["clip"], *more, settings=settings) == 0
    kinds = [
        stage.kind
        for stage in fine_tune_recipe("negclip", FineTunedModel(name=str(hub["clip"]))).stages
    ]
    assert kinds[:3] == ["mine", "rewrite", "train"]
    assert np.load(folder / "lists" / "images.npy").shape == (120, 3)
    assert len((folder / "written" / ROWS).read_text().splitlines()) > 120, "of 120 captions"
    line = json.loads((folder / "tuned" / "metrics.jsonl").read_text().splitlines()[0])
    assert "written_above" in line, "foils were scored"


def test_negclip_reads_what_was_written_before(hub, tmp_path):
    written = tmp_path / "written"
    assert run("papers", "write", "rules", SCENES, "--output", written) == 0
    settings = (*SHORT, "lists.texts=20")
    more = ("--written", written)
    assert trained(tmp_path / "run", "negclip", hub["clip"], *more, settings=settings) == 0
    assert not (tmp_path / "run" / "written").exists()
