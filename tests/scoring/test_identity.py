from __future__ import annotations

import json
import sys
import types

import pytest
import torch
from torch import nn

import hub_cases
import vision_cases
from counterfoil.models.clip import DualEncoder
from counterfoil.models.open_clip import OpenClipModel
from counterfoil.scoring.embedding_store import model_digest


@pytest.fixture
def folder(tmp_path):
    hub_cases.clip(tmp_path / "clip")
    return tmp_path / "clip"


def digest(folder) -> str:
    return model_digest(DualEncoder(name=str(folder)))


def changed(folder, name: str, value: object, part: str | None = None) -> str:
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    (whole[part] if part else whole)[name] = value
    path.write_text(json.dumps(whole))
    return digest(folder)


def test_the_place_and_the_version_do_not_count(folder, tmp_path):
    before = digest(folder)
    assert changed(folder, "transformers_version", "4.0.0") == before
    assert changed(folder, "_name_or_path", "elsewhere") == before
    folder.rename(tmp_path / "moved")
    assert digest(tmp_path / "moved") == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_attention_heads", 4), ("hidden_act", "gelu"), ("layer_norm_eps", 0.1)],
)
def test_what_computes_with_the_weights_counts(folder, name, value):
    assert digest(folder) != changed(folder, name, value, "vision_config")


def test_weights_and_activations_of_any_module_count():
    torch.manual_seed(0)
    layer, bound = nn.Linear(3, 3), nn.LeakyReLU(0.1)
    one = model_digest(nn.Sequential(layer, bound))
    assert model_digest(nn.Sequential(layer, nn.LeakyReLU(0.1))) == one
    others = [nn.LeakyReLU(0.2), nn.Tanh(), nn.Identity()]
    assert len({one, *(model_digest(nn.Sequential(layer, other)) for other in others)}) == 4
    with torch.no_grad():
        layer.bias.add_(1)
    assert model_digest(nn.Sequential(layer, bound)) != one


def test_what_does_nothing_in_use_does_not_count():
    assert model_digest(nn.Sequential(nn.Dropout(0.1))) == model_digest(
        nn.Sequential(nn.Dropout(0.5))
    )


def test_what_a_model_of_open_clip_is_built_from_counts_and_its_place_does_not(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "open_clip", vision_cases.open_clip(tmp_path))
    monkeypatch.setitem(sys.modules, "ftfy", types.SimpleNamespace(fix_text=lambda text: text))
    folder = vision_cases.clip_folder(tmp_path / "a")
    model = OpenClipModel(name=str(folder))
    folder.rename(tmp_path / "moved")
    assert model_digest(OpenClipModel(name=str(tmp_path / "moved"))) == model_digest(model)
    plain = json.loads(model.config_json)
    plain["model"]["quick_gelu"] = not plain["model"].get("quick_gelu", False)
    other = OpenClipModel(name="other", pretrained=False, config=json.dumps(plain))
    other.load_state_dict(model.state_dict())
    assert model_digest(other) != model_digest(model)
