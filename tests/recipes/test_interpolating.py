from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import recipes_cases
from counterfoil import open_model
from counterfoil.corpus.lens import Lens, PixelEye
from counterfoil.models.clip import DualEncoder
from counterfoil.recipes.interpolating import interpolate_with, interpolated
from counterfoil.recipes.run import Source
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
            where = ("--data", SCENES, "--folder", root / way, "--tune", way, "--model", clip)
            assert run("train", "contrastive", *where, *words) == 0
    return root


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))


def both(models: Path, way: str = "full"):
    return open_model(models / "clip"), open_model(models / way / "tuned")


@pytest.mark.parametrize("way", ["full", "lora"])
def test_the_ends_are_the_two_and_the_middle_is_their_mean(way, models):
    original, tuned = both(models, way)
    grids = []
    corpus = Source(SCENES).split("test")
    for model in (original, interpolated(original, tuned, 0), tuned):
        member = model.member(corpus)
        grids.append(member.matcher.grid(member.images, member.texts))
    torch.testing.assert_close(grids[1], grids[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(grids[2], grids[0], atol=1e-3)
    end = interpolated(original, tuned, 1).member(corpus)
    torch.testing.assert_close(
        end.matcher.grid(end.images, end.texts), grids[2], rtol=1e-4, atol=1e-5
    )
    half = interpolated(original, tuned, 0.5).matcher.state_dict()
    first = original.matcher.state_dict()
    last = interpolated(original, tuned, 1).matcher.state_dict()
    for name, tensor in half.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, (first[name] + last[name]) / 2)
    assert half.keys() == first.keys()


def test_the_best_on_dev_is_saved_and_what_is_forgotten_is_said(models, tmp_path, capsys):
    names = str(models / "clip"), str(models / "full" / "tuned")
    chosen = interpolate_with(
        *names,
        tmp_path / "out",
        alphas=(1.0, 0.0, 0.5),
        source=Source(SCENES),
        other=Source("scenes:images=24,seed=9"),
    )
    shown = " ".join(capsys.readouterr().out.split())
    assert list(chosen.rsum) == [0.0, 0.5, 1.0]
    assert chosen.rsum[chosen.alpha] == max(chosen.rsum.values())
    for name in ("tuned", f"alpha {chosen.alpha:g}"):
        assert shown.count(f"scenes: {name} reaches RSum") == 2, "on the photos and elsewhere"
    assert shown.count("than original (95 % interval of the difference") == 4
    assert "scenes test; whole split: 6 images" in shown
    assert "scenes test; whole split: 4 images" in shown
    saved = open_model(tmp_path / "out")
    assert isinstance(saved.matcher, DualEncoder)
    noted = saved.card.provenance["interpolated"]
    assert (noted["original"], noted["alpha"]) == (names[0], chosen.alpha)
    made = interpolated(*both(models), chosen.alpha)
    for name, tensor in saved.matcher.state_dict().items():
        assert torch.equal(tensor, made.matcher.state_dict()[name])


def test_one_alpha_needs_no_data(models, tmp_path):
    command = ("interpolate", models / "clip", models / "lora" / "tuned", "--alpha", "0.25")
    assert run(*command, "--out", tmp_path / "out") == 0
    saved = open_model(tmp_path / "out")
    assert saved.spec.arguments["lora"] == 0
    assert not any(".lora_" in name for name in saved.matcher.state_dict())


def test_what_is_refused(models, tmp_path):
    original, tuned = both(models)
    with pytest.raises(ValueError, match=r"alpha=1.5 is not between the two"):
        interpolated(original, tuned, 1.5)
    with pytest.raises(ValueError, match="is no saved model"):
        interpolated(original, original, 0.5)
    with pytest.raises(ValueError, match="has frozen towers"):
        interpolated(original, open_model(models / "frozen" / "tuned"), 0.5)
    other = open_model(recipes_cases.clip_like(tmp_path / "other", "siglip"))
    with pytest.raises(ValueError, match="does not have the weights of"):
        interpolated(other, tuned, 0.5)
    larger = replace(original, lens=Lens(PixelEye(32), original.lens.tokenizer))
    with pytest.raises(ValueError, match="sees pictures in another way"):
        interpolated(larger, tuned, 0.5)
    names = str(models / "clip"), str(models / "full" / "tuned")
    with pytest.raises(ValueError, match="chosen on dev; name the photos with --data"):
        interpolate_with(*names, tmp_path / "out")
    with pytest.raises(ValueError, match="exists and is left alone"):
        interpolate_with(*names, tmp_path, alphas=(0.5,))
    assert not (tmp_path / "out").exists()
