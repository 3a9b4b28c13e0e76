from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hub_cases
import recipes_cases
from counterfoil.core.config import config as config_
from counterfoil.core.config import lazy
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import SPECIAL, WordTokenizer
from counterfoil.model import identity_of, load_model
from counterfoil.models.layers.pretrained import HFVisionTower
from counterfoil.models.layers.towers import GRU
from counterfoil.models.vsepp import VSEPP
from counterfoil.saved import portable_config, save_model
from counterfoil.scoring.embedding_store import ModelSource
from counterfoil.search.index import build_index, open_index


@pytest.fixture
def clip(tmp_path) -> Path:
    recipes_cases.clip_like(tmp_path / "clip")
    return tmp_path / "clip"


def with_towers(folder: Path, name: str) -> Path:
    torch.manual_seed(0)
    hub_cases.vit(folder.parent / name)
    spec = config_(
        VSEPP,
        image=lazy(HFVisionTower, name=str(folder.parent / name), width=8),
        text=lazy(GRU, words=len(SPECIAL), width=8, word_width=4),
    )
    save_model(
        folder,
        spec=portable_config(spec),
        model=spec.build(),
        processor=Processor(PixelProcessor(16), WordTokenizer(SPECIAL)),
    )
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
    model = load_model(folder)
    model.save_pretrained(tmp_path / "saved")
    folder.rename(tmp_path / "moved")
    for other in ("saved", "moved"):
        assert load_model(tmp_path / other).identity() == model.identity()
        assert load_model(tmp_path / other).source().same(model.source())


def test_towers_under_another_name_are_the_same(tmp_path):
    models = [load_model(with_towers(tmp_path / f"m-{n}", n)) for n in ("one", "two")]
    assert models[0].digest() == models[1].digest()
    assert models[0].identity() == models[1].identity()


def test_the_same_weights_read_or_used_otherwise_are_another_model(clip):
    model = load_model(clip)
    others = [
        identity_of(
            model.model,
            model.spec,
            Processor(replace(model.processor.image_processor, **more), tokenizer),
        )
        for more in (
            {},
            {"size": 48},
            {"crop": not model.processor.image_processor.crop},
            {"mean": (0.1, 0.5, 0.5)},
        )
        for tokenizer in (model.processor.tokenizer, WordTokenizer([*SPECIAL, "a"]))
    ]
    assert others[0] == model.identity()
    assert len(set(others)) == 8
    config = json.loads((clip / "config.json").read_text())
    config["text_config"]["hidden_act"] = "gelu"
    (clip / "config.json").write_text(json.dumps(config))
    bent = load_model(clip)
    assert bent.digest() == model.digest()
    assert bent.identity() != model.identity()
    assert not bent.source().same(model.source())


def test_settings_of_our_own_models_count_and_defaults_need_not_be_said(tmp_path):
    model = load_model(recipes_cases.pixel_model(tmp_path / "a"))
    spec = model.spec
    said = spec.replace(image=spec.arguments["image"].replace(depth=2))
    assert identity_of(model.model, said, model.processor) == model.identity()
    other = spec.replace(image=spec.arguments["image"].replace(depth=1))
    assert identity_of(model.model, other, model.processor) != model.identity()


def test_an_index_takes_its_model_from_wherever_it_lies(clip, tmp_path):
    dataset = load_dataset("scenes:images=36").subset(torch.arange(3))
    build_index(load_model(clip), dataset, tmp_path / "x").close()
    load_model(clip).save_pretrained(tmp_path / "saved")
    clip.rename(tmp_path / "moved")
    for place in ("saved", "moved"):
        with open_index(tmp_path / "x", model=tmp_path / place) as index:
            assert len(index.search("a dog", 3)) == 3


def test_a_source_that_says_less_is_known_by_its_weights():
    old, new = (
        ModelSource(matcher="m", checkpoint="1"),
        ModelSource(matcher="m", checkpoint="1", identity="a"),
    )
    assert old.same(new)
    assert new.same(old)
    assert not new.same(ModelSource(matcher="m", checkpoint="1", identity="b"))
    assert not old.same(ModelSource(matcher="m", checkpoint="2"))
