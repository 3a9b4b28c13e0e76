"""Hostile model folders: one sentence; nothing is imported, downloaded or allocated."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recipes_cases
from counterfoil.core.config import digest
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.model import load_model

SECONDS = 3  # of a card; the largest took half an hour before sizes were bounded
CALL = "is not something this file may call"
UNKNOWN = "does not exist in this version"
LARGE = "describes a much larger model than its weights are"
ELSEWHERE = "asks for weights or a configuration from elsewhere"
REPOSITORY = "somebody/repository"


def bert(**changes: object) -> str:
    plain = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 1, "vocab_size": 20}
    return json.dumps(plain | {"num_hidden_layers": 1, "intermediate_size": 8} | changes)


def image(**call: object) -> dict[str, Any]:
    return {"image": call}


def text(**call: object) -> dict[str, Any]:
    return {"text": call}


def gru(**changes: object) -> dict[str, Any]:
    return text(**({"call": "GRU", "width": 8, "word_width": 4, "words": 13} | changes))


def patches(**changes: object) -> dict[str, Any]:
    size = {"channels": 4, "patch": 8, "size": 16, "width": 8}
    return image(**({"call": "Patches"} | size | changes))


CARDS: dict[str, tuple[dict[str, Any], str]] = {  # changes of the model's call; the sentence
    "a module that runs on import": ({"call": "counterfoil.cli.__main__:x"}, CALL),
    "a function of the server": ({"call": "counterfoil.serve.run:serve"}, CALL),
    "a module by its path": ({"call": "counterfoil.model:Model"}, CALL),
    "a class inside a module that is no part": (
        image(call="counterfoil.data.images:open_picture"), CALL,
    ),
    "the system": ({"call": "os:system"}, CALL),
    "the system, inside": (image(call="os:system", command="true"), CALL),
    "an attribute of an attribute": ({"call": "counterfoil.model:Model.save"}, CALL),
    "no module": ({"call": ":VSE"}, CALL),
    "a name of a later version": ({"call": "Newest"}, UNKNOWN),
    "a name that is no callable": ({"call": "annotations"}, UNKNOWN),
    "a module as a call": ({"call": "triplet"}, UNKNOWN),
    "a loss as the model": ({"call": "InfoNCELoss"}, CALL),
    "a tower as the model": ({"call": "GRU", "words": 3, "width": 8}, "no retrieval model"),
    "a loss by its module": (
        {"call": "counterfoil.losses.contrastive:InfoNCELoss"}, CALL,
    ),
    "a helper by its module": ({"call": "counterfoil.losses.base:hinge"}, CALL),
    "a function as a tower": (image(call="weighted_sum"), UNKNOWN),
    "a parser as a tower": (image(call="RulePhraseParser"), CALL),
    "a file reader as a tower": (image(call="PhraseFile", path="/etc/passwd"), CALL),
    "a text tower on the hub": (text(call="Bert", width=8, name=REPOSITORY), ELSEWHERE),
    "an image tower on the hub": (image(call="VisionModel", width=8, name=REPOSITORY), ELSEWHERE),
    "a configuration on the hub": (
        text(call="Bert", width=8, name=REPOSITORY, pretrained=False), ELSEWHERE,
    ),
    "a network of timm on the hub": (
        image(call="TimmModel", name=f"hf-hub:{REPOSITORY}", pretrained=False), ELSEWHERE,
    ),
    "a network of timm from a folder": (
        image(call="TimmModel", name="local-dir:/etc", pretrained=False), ELSEWHERE,
    ),
    "an embedder on the hub, in a list": (
        image(call="FILIP", image=[{"call": "DenseEmbedder", "name": REPOSITORY}]), "is missing",
    ),
    "an embedder on the hub, in a mapping": (
        {"image": {"one": {"call": "DenseEmbedder", "name": REPOSITORY}}}, "is missing",
    ),
    "weights of timm": (image(call="TimmModel", name="resnet18"), ELSEWHERE),
    "code of a repository": (
        text(
            call="Bert", width=8, name=REPOSITORY, pretrained=False,
            config=bert(auto_map={"AutoModel": f"{REPOSITORY}--evil.Model"}),
        ),
        "does not fit the model",
    ),
    "a kernel of a repository": (
        text(
            call="Bert", width=8, name=REPOSITORY, pretrained=False,
            config=bert(attn_implementation=REPOSITORY),
        ),
        "as attn_implementation; allowed is",
    ),
    "a kind of its own": (
        text(
            call="Bert", width=8, name=REPOSITORY, pretrained=False,
            config=json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.C"}}),
        ),
        "cannot be loaded as a Hugging Face model",
    ),
    "a million layers": (
        text(
            call="Bert", width=8, name=REPOSITORY, pretrained=False,
            config=bert(num_hidden_layers=10**6),
        ),
        "at most 1,000 is possible",
    ),
    "a hundred million wide": (
        text(
            call="Bert", width=8, name=REPOSITORY, pretrained=False,
            config=bert(hidden_size=10**8),
        ),
        "at most 16,777,216 is possible",
    ),
    "a billion words": (gru(words=10**9), LARGE),
    "a billion wide": (gru(word_width=10**9), LARGE),
    "more than an integer": (gru(words=10**30), "model.json"),
    "a negative width": (gru(width=-1), "width=-1"),
    "a width of letters": (gru(width="x"), "model.json"),
    "a width too many": (gru(word_width=16), "does not fit the model"),
    "a billion pixels": (patches(size=10**9), "model.json"),
    "a million channels": (patches(channels=10**7), LARGE),
    "an argument too many": (gru(extra=1), "does not fit this version"),
    "an argument too few": ({"text": {"call": "GRU"}}, "does not fit this version"),
    "no tower": ({"image": None}, "does not fit"),
    "a deep value": (gru(words=json.loads("[" * 400 + "]" * 400)), "model.json"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    pytest.importorskip("transformers").BertModel  # importing it takes seconds; no card does
    return recipes_cases.pixel_model(tmp_path_factory.mktemp("cards") / "model")


@pytest.fixture
def offline(monkeypatch) -> list[object]:
    """Addresses that were asked for; none may be."""
    asked: list[object] = []

    def refuse(*address: object, **_: object) -> None:
        asked.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return asked


def with_card(saved: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy with another card, to which the weights are bound as an attacker would."""
    shutil.copytree(saved, folder)
    card = json.loads((folder / "model.json").read_text())
    change(card["model"])
    (folder / "model.json").write_text(json.dumps(card))
    tensors, about = read_tensors(folder / "model.safetensors", "weights")
    write_tensors(folder / "model.safetensors", tensors, about | {"model": digest(card["model"])})
    return folder


@pytest.mark.parametrize("name", CARDS)
def test_a_hostile_card_gets_one_sentence(name, saved, tmp_path, offline, monkeypatch):
    changes, sentence = CARDS[name]
    if "TimmModel" in str(changes) and "asks for" not in sentence:
        pytest.importorskip("timm")
    # what a question on the terminal would read
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    folder = with_card(saved, tmp_path / "model", lambda model: model.update(changes))
    before, start = set(sys.modules), time.process_time()
    with pytest.raises(ValueError, match=sentence) as caught:
        load_model(folder)
    assert time.process_time() - start < SECONDS
    assert "\n" not in str(caught.value)
    assert offline == []
    imported = {module for module in set(sys.modules) - before if "counterfoil" in module}
    assert not imported & {"counterfoil.cli.__main__", "counterfoil.serve.run"}


def test_the_card_itself_opens(saved, tmp_path, offline):
    folder = with_card(saved, tmp_path / "model", lambda model: None)
    assert load_model(folder).similarity(np.zeros((16, 16, 3), np.uint8), "a dog").shape == (1, 1)


# Folders of Hugging Face.


def damaged(folder: Path, rng: np.random.Generator) -> str:
    """Cut a file short, or change one of its bytes; the file's name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = files[int(rng.integers(len(files)))]
    content = bytearray(file.read_bytes())
    place = int(rng.integers(len(content)))
    if rng.random() < 0.5:
        content = content[:place]
    else:
        content[place] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)
    return f"{file.name}, at {place} of {len(content)}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_damaged_folder_opens_or_gets_a_sentence(kind, tmp_path, offline):
    pytest.importorskip("transformers")
    whole, rng = recipes_cases.clip_like(tmp_path / "whole", kind), np.random.default_rng(0)
    for place in range(60):
        folder = Path(shutil.copytree(whole, tmp_path / str(place)))
        change = damaged(folder, rng)
        with suppress(ValueError):
            load_model(str(folder))
        assert offline == [], change
        shutil.rmtree(folder)


@pytest.mark.parametrize("place", ["evil.Model", f"{REPOSITORY}--evil.Model"])
def test_code_of_a_folder_is_never_run(place, tmp_path, offline, monkeypatch):
    pytest.importorskip("transformers")
    folder = recipes_cases.clip_like(tmp_path / "clip")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    mark = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Model: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": place, "AutoModel": place}}
    (folder / "config.json").write_text(json.dumps(config))
    load_model(str(folder))  # a known kind opens with the library's own class
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "evil"}))
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_model(str(folder))
    assert not mark.exists()
    assert offline == []


@pytest.mark.parametrize("change", [{"num_hidden_layers": 10**6}, {"hidden_size": 10**8}])
def test_sizes_of_a_folder_are_bounded(change, tmp_path, offline):
    folder = recipes_cases.clip_like(tmp_path / "clip")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    start = time.process_time()
    with pytest.raises(ValueError, match=r"at most .* is possible"):
        load_model(str(folder))
    assert time.process_time() - start < SECONDS
