from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hub_cases
import recipes_cases
from counterfoil import build_index, open_corpus, open_index, open_model
from counterfoil.corpus.lens import Lens, PixelEye
from counterfoil.corpus.words import SPECIAL, Words
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.vision import VisionModel
from counterfoil.models.vse import VSE
from counterfoil.negatives.store import Source
from counterfoil.recipes.identifying import identity_of
from counterfoil.spec import of, part
from counterfoil.train.saved import save_model


@pytest.fixture
def clip(tmp_path) -> Path:
    recipes_cases.clip_like(tmp_path / "clip")
    return tmp_path / "clip"


def with_towers(folder: Path, name: str) -> Path:
    torch.manual_seed(0)
    hub_cases.vit(folder.parent / name)
    spec = of(
        VSE,
        image=part(VisionModel, name=str(folder.parent / name), width=8),
        text=part(GRU, words=len(SPECIAL), width=8, word_width=4),
    )
    save_model(folder, spec=spec, matcher=spec.build(), lens=Lens(PixelEye(16), Words(SPECIAL)))
    return folder


def opened(kind: str, folder: Path) -> Path:
    match kind:
        case "vilt":
            recipes_cases.vilt_like(folder, "ImageAndTextRetrieval")
        case "blip":
            recipes_cases.blip_like(folder)
        case "pixels":
            recipes_cases.pixel_model(folder)
        case "towers":
            with_towers(folder, "tower")
        case _:
            recipes_cases.clip_like(folder, kind)
    return folder


@pytest.mark.parametrize("kind", ["clip", "siglip", "vilt", "blip", "pixels", "towers"])
def test_saved_anew_or_moved_a_model_is_the_same(kind, tmp_path):
    folder = opened(kind, tmp_path / "a")
    model = open_model(folder)
    model.save_pretrained(tmp_path / "saved")
    folder.rename(tmp_path / "moved")
    for other in ("saved", "moved"):
        assert open_model(tmp_path / other).identity() == model.identity()
        assert open_model(tmp_path / other).source().same(model.source())


def test_towers_under_another_name_are_the_same(tmp_path):
    models = [open_model(with_towers(tmp_path / f"m-{n}", n)) for n in ("one", "two")]
    assert models[0].digest() == models[1].digest()
    assert models[0].identity() == models[1].identity()


def test_the_same_weights_read_or_used_otherwise_are_another_model(clip):
    model = open_model(clip)
    others = [
        identity_of(model.matcher, model.spec, Lens(replace(model.lens.eye, **more), tokenizer))
        for more in ({}, {"size": 48}, {"crop": not model.lens.eye.crop}, {"mean": (0.1, 0.5, 0.5)})
        for tokenizer in (model.lens.tokenizer, Words([*SPECIAL, "a"]))
    ]
    assert others[0] == model.identity()
    assert len(set(others)) == 8
    config = json.loads((clip / "config.json").read_text())
    config["text_config"]["hidden_act"] = "gelu"
    (clip / "config.json").write_text(json.dumps(config))
    bent = open_model(clip)
    assert bent.digest() == model.digest()
    assert bent.identity() != model.identity()
    assert not bent.source().same(model.source())


def test_settings_of_our_own_models_count_and_defaults_need_not_be_said(tmp_path):
    model = open_model(recipes_cases.pixel_model(tmp_path / "a"))
    spec = model.spec
    said = spec.but(image=spec.arguments["image"].but(depth=2))
    assert identity_of(model.matcher, said, model.lens) == model.identity()
    other = spec.but(image=spec.arguments["image"].but(depth=1))
    assert identity_of(model.matcher, other, model.lens) != model.identity()


def test_an_index_takes_its_model_from_wherever_it_lies(clip, tmp_path):
    corpus = open_corpus("scenes:images=36").subset(torch.arange(3))
    build_index(open_model(clip), corpus, tmp_path / "x").close()
    open_model(clip).save_pretrained(tmp_path / "saved")
    clip.rename(tmp_path / "moved")
    for place in ("saved", "moved"):
        with open_index(tmp_path / "x", model=tmp_path / place) as index:
            assert len(index.search("a dog", 3)) == 3


def test_a_source_that_says_less_is_known_by_its_weights():
    old, new = (
        Source(matcher="m", checkpoint="1"),
        Source(matcher="m", checkpoint="1", identity="a"),
    )
    assert old.same(new)
    assert new.same(old)
    assert not new.same(Source(matcher="m", checkpoint="1", identity="b"))
    assert not old.same(Source(matcher="m", checkpoint="2"))
