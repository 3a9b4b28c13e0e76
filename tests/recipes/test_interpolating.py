from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import recipes_cases
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.hub import interpolate, interpolate_models
from counterfoil.model import load_model
from counterfoil.models.clip import DualEncoder
from counterfoil.pipelines.run import DataSource
from recipes_cases import run

SCENES = "scenes:images=36"
SHORT = ("*.epochs=1", "*.steps=3", "*.batch=16", "*.rate=0.01")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A CLIP, and what it became by each way."""
    root = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTERFOIL_CACHE", str(root / "cache"))
        clip = recipes_cases.clip_like(root / "clip")
        for way, more in (("full", ()), ("lora", ("tuned.model.apart=true",)), ("frozen", ())):
            words = [word for one in (*SHORT, *more) for word in ("--set", one)]
            where = ("--data", SCENES, "--output", root / way, "--tune", way, "--model", clip)
            assert run("train", "contrastive", *where, *words) == 0
    return root


def both(models: Path, way: str = "full"):
    return load_model(models / "clip"), load_model(models / way / "tuned")


@pytest.mark.parametrize("way", ["full", "lora"])
def test_the_ends_are_the_two_and_the_middle_is_their_mean(way, models):
    original, tuned = both(models, way)
    grids = []
    dataset = DataSource(SCENES).split("test")
    for model in (original, interpolate_models(original, tuned, 0), tuned):
        member = model.embed(dataset)
        grids.append(member.model.score_matrix(member.images, member.texts))
    torch.testing.assert_close(grids[1], grids[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(grids[2], grids[0], atol=1e-3)
    end = interpolate_models(original, tuned, 1).embed(dataset)
    torch.testing.assert_close(
        end.model.score_matrix(end.images, end.texts), grids[2], rtol=1e-4, atol=1e-5
    )
    half = interpolate_models(original, tuned, 0.5).model.state_dict()
    first = original.model.state_dict()
    last = interpolate_models(original, tuned, 1).model.state_dict()
    for name, tensor in half.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, (first[name] + last[name]) / 2)
    assert half.keys() == first.keys()


def test_the_best_on_dev_is_saved_and_what_is_forgotten_is_said(models, tmp_path, capsys):
    names = str(models / "clip"), str(models / "full" / "tuned")
    alpha = interpolate(
        *names,
        tmp_path / "out",
        alphas=(1.0, 0.0, 0.5),
        source=DataSource(SCENES),
        other=DataSource("scenes:images=24,seed=9"),
    )
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("tuned", f"alpha {alpha:g}"):
        assert shown.count(f"scenes: {name} reaches RSum") == 2, "on the photos and elsewhere"
    assert shown.count("than original (95 % interval of the difference") == 4
    assert "scenes test; whole split: 6 images" in shown
    assert "scenes test; whole split: 4 images" in shown
    saved = load_model(tmp_path / "out")
    assert isinstance(saved.model, DualEncoder)
    noted = saved.card.provenance["interpolated"]
    assert (noted["original"], noted["alpha"]) == (names[0], alpha)
    assert set(noted["dev_rsum"]) == {"0", "0.5", "1"}
    assert noted["dev_rsum"][f"{alpha:g}"] == max(noted["dev_rsum"].values())
    made = interpolate_models(*both(models), alpha)
    for name, tensor in saved.model.state_dict().items():
        assert torch.equal(tensor, made.model.state_dict()[name])


def test_one_alpha_needs_no_data(models, tmp_path):
    command = ("interpolate", models / "clip", models / "lora" / "tuned", "--alpha", "0.25")
    assert run(*command, "--output", tmp_path / "out") == 0
    saved = load_model(tmp_path / "out")
    assert saved.spec.arguments["lora"] == 0
    assert not any(".lora_" in name for name in saved.model.state_dict())


def test_what_is_refused(models, tmp_path):
    original, tuned = both(models)
    with pytest.raises(ValueError, match=r"alpha=1.5 is not between the two"):
        interpolate_models(original, tuned, 1.5)
    with pytest.raises(ValueError, match="is no saved model"):
        interpolate_models(original, original, 0.5)
    with pytest.raises(ValueError, match="has frozen towers"):
        interpolate_models(original, load_model(models / "frozen" / "tuned"), 0.5)
    other = load_model(recipes_cases.clip_like(tmp_path / "other", "siglip"))
    with pytest.raises(ValueError, match="does not have the weights of"):
        interpolate_models(other, tuned, 0.5)
    larger = replace(
        original, processor=Processor(PixelProcessor(32), original.processor.tokenizer)
    )
    with pytest.raises(ValueError, match="preprocesses images in another way"):
        interpolate_models(larger, tuned, 0.5)
    names = str(models / "clip"), str(models / "full" / "tuned")
    with pytest.raises(ValueError, match="chosen on dev; name the photos with --data"):
        interpolate(*names, tmp_path / "out")
    with pytest.raises(ValueError, match="exists and is left alone"):
        interpolate(*names, tmp_path, alphas=(0.5,))
    assert not (tmp_path / "out").exists()
