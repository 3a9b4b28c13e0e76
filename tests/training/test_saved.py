from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import train_cases as cases
from counterfoil.core import registry
from counterfoil.core.config import Config, config, digest, lazy
from counterfoil.core.registry import register
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.model import load_model
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.saved import open_saved, read_card, save_model


class OwnWords(GRU):
    """A part of another package."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    spec, processor = written(), cases.processor().processor
    save_model(
        tmp_path / "model",
        spec=spec,
        model=spec.build(),
        processor=processor,
        provenance={"recipe": "tiny", "seed": 3},
        metrics={"rsum": 12.5},
    )
    return tmp_path / "model"


def written() -> Config[VSEPP]:
    return config(
        VSEPP,
        image=lazy(Regions, features=cases.WIDTH, width=4),
        text=lazy(GRU, words=20, word_width=3, width=4),
    )


def test_a_model_comes_back(folder: Path) -> None:
    saved = load_model(folder)
    weights = saved.model.state_dict()
    again = load_model(folder).model
    assert not saved.model.training
    assert all(torch.equal(value, weights[name]) for name, value in again.state_dict().items())
    assert saved.card.model == written()
    assert saved.card.provenance == {"recipe": "tiny", "seed": 3}
    assert saved.card.metrics == {"rsum": 12.5}
    items = saved.processor.process_texts(["a dog is there"])
    assert saved.model.encode_texts(items).tokens.shape == (1, 1, 4)
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.json",
        "model.safetensors",
        "processor.json",
        "tokenizer.json",
    ]


def test_saved_weights_are_those_of_the_model(tmp_path: Path) -> None:
    spec = written()
    model = spec.build()
    save_model(tmp_path / "m", spec=spec, model=model, processor=cases.processor().processor)
    found = load_model(tmp_path / "m").model.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in model.state_dict().items())


def change(folder: Path, **values: Any) -> None:
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**card, **values}))


VSE_ = "VSE"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": name, **arguments}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (call("os:system", command="true"), "'os:system' is not something this file may call"),
        (call("builtins:eval", source="1"), "is not something this file may call"),
        (
            call("counterfoil.core.io:write_text", path="x", text="y"),
            "is not something this file may call",
        ),
        (
            call(VSE_, image=call("counterfoil.core.io:write_text")),
            "is not something this file may call",
        ),
        (
            call(VSE_, image=[{"deep": call("counterfoil.core.io:read_json")}]),
            "is not something this file may call",
        ),
        (call("counterfoil.models.vsepp:VSF"), "may call"),
        (call("VSF"), "does not exist in this version"),
        (call(VSE_, image=call("counterfoil.core.io:os")), "may call"),
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
        open_saved(folder.parent)


def test_names_are_stored_with_their_packages(folder: Path, monkeypatch: Any) -> None:
    card = json.loads((folder / "model.json").read_text())
    assert card["packages"] == dict.fromkeys(("VSE", "Regions", "GRU"), "counterfoil")
    with monkeypatch.context() as patched:
        patched.setattr(registry, "_added", {})
        register.part("own-words")(OwnWords)
        spec = written().replace(text=lazy(OwnWords, words=20, word_width=3, width=4))
        save_model(folder, spec=spec, model=spec.build(), processor=cases.processor().processor)
        card = json.loads((folder / "model.json").read_text())
        assert card["packages"]["own-words"] == OwnWords.__module__.partition(".")[0]
        assert isinstance(load_model(folder).model.text, OwnWords)
    with pytest.raises(ValueError, match=r"calls 'own-words' of the package .*; install it, or"):
        load_model(folder)


def test_a_registered_part_has_to_be_a_module(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "_added", {})
    register.part("own-function")(len)
    change(folder, model=call(VSE_, image=call("own-function")))
    with pytest.raises(ValueError, match="calls len, which is no part of a model"):
        load_model(folder)


def test_a_model_of_the_papers_says_that_they_are_missing(folder: Path, monkeypatch: Any) -> None:
    change(folder, model={"call": "SCAN", "direction": "i2t"})
    with monkeypatch.context() as patched:
        patched.setattr(registry, "find_spec", lambda name: None)
        registry._owners.cache_clear()
        with pytest.raises(ValueError, match=r"'SCAN' belongs to counterfoil\.papers, .*; install"):
            load_model(folder)
    registry._owners.cache_clear()


def test_weights_of_another_model(folder: Path) -> None:
    plain = written().replace(measure="order").to_dict()
    change(folder, model=plain)
    with pytest.raises(ValueError, match="belong to different models"):
        load_model(folder)
