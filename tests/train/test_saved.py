from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import train_cases as cases
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.vse import VSE
from counterfoil.spec import Spec, digest, of, part
from counterfoil.train.saved import load_model, read_card, save_model
from counterfoil.train.tensors import read_tensors, write_tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    spec, lens = written(), cases.lens().lens
    save_model(
        tmp_path / "model",
        spec=spec,
        matcher=spec.build(),
        lens=lens,
        provenance={"recipe": "tiny", "seed": 3},
        metrics={"rsum": 12.5},
    )
    return tmp_path / "model"


def written() -> Spec[VSE]:
    return of(
        VSE,
        image=part(Regions, features=cases.WIDTH, width=4),
        text=part(GRU, words=20, word_width=3, width=4),
    )


def test_a_model_comes_back(folder: Path) -> None:
    saved = load_model(folder)
    weights = saved.matcher.state_dict()
    again = load_model(folder).matcher
    assert not saved.matcher.training
    assert all(torch.equal(value, weights[name]) for name, value in again.state_dict().items())
    assert saved.card.model == written()
    assert saved.card.provenance == {"recipe": "tiny", "seed": 3}
    assert saved.card.metrics == {"rsum": 12.5}
    items = saved.lens.read(["a dog is there"])
    assert saved.matcher.encode_texts(items).tokens.shape == (1, 1, 4)
    assert sorted(path.name for path in folder.iterdir()) == [
        "lens.json",
        "model.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_saved_weights_are_those_of_the_model(tmp_path: Path) -> None:
    spec = written()
    matcher = spec.build()
    save_model(tmp_path / "m", spec=spec, matcher=matcher, lens=cases.lens().lens)
    found = load_model(tmp_path / "m").matcher.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in matcher.state_dict().items())


def change(folder: Path, **values: Any) -> None:
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**card, **values}))


VSE_ = "counterfoil.models.vse:VSE"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": name, **arguments}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (call("os:system", command="true"), "'os:system' is not something this file may call"),
        (call("builtins:eval", source="1"), "is not something this file may call"),
        (
            call("counterfoil.files:write_text", path="x", text="y"),
            "describes write_text, which is no matcher",
        ),
        (
            call(VSE_, image=call("counterfoil.files:write_text")),
            "calls write_text, which is no part of a model",
        ),
        (
            call(VSE_, image=[{"deep": call("counterfoil.files:read_json")}]),
            "calls read_json, which is no part of a model",
        ),
        (call("counterfoil.models.vse:VSF"), "does not exist in this version"),
        (call(VSE_, image=call("counterfoil.files:os")), "which is no part of a model"),
        (call(VSE_, colour=3), "does not fit this version of counterfoil: .*colour"),
        ({"late": "words"}, "not a written call"),
        ("VSE", "not a written call"),
    ],
)
def test_a_folder_may_build_modules_only(folder: Path, model: Any, words: str) -> None:
    change(folder, model=model)
    data, about = read_tensors(folder / "model.safetensors", "x")
    about = {"model": digest(model)}
    write_tensors(folder / "model.safetensors", data, about)
    with pytest.raises(ValueError, match=words):
        load_model(folder)


def test_damage(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-5])
    with pytest.raises(ValueError, match="is damaged and cannot be read as the weights"):
        load_model(folder)
    change(folder, format=7)
    with pytest.raises(ValueError, match="has format 7, and this version of counterfoil reads"):
        read_card(folder)
    change(folder, kind="cake")
    with pytest.raises(ValueError, match="is not the card of a counterfoil model"):
        read_card(folder)
    with pytest.raises(ValueError, match="does not exist; the card of a model is needed"):
        load_model(folder.parent)


def test_weights_of_another_model(folder: Path) -> None:
    plain = written().but(measure="order").plain()
    change(folder, model=plain)
    with pytest.raises(ValueError, match="belong to different models"):
        load_model(folder)
