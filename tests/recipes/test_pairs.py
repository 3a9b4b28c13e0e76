"""Models of open_clip, and towers of timm beside a language model, by name."""

from __future__ import annotations

import json
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

import hub_cases
import recipes_cases
import vision_cases
from counterfoil.data.images import ResizeCrop
from counterfoil.data.readers import load_dataset
from counterfoil.loading import is_open_clip, load_pretrained
from counterfoil.model import load_model
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.open_clip import OpenClipModel
from counterfoil.models.vsepp import VSEPP
from recipes_cases import run

KINDS = ("clip", "siglip", "bert")
CAPTIONS = ["a dog in the snow", "a Red circle, and a square!", "a big blue square" * 9]
SHORT = ("*.epochs=2", "*.steps=4", "*.batch=16", "*.rate=0.01")
LISTS = (
    "lists.texts=20",
    "lists.images=5",
    "adaptive.mined.sampling.texts=20",
    "adaptive.mined.sampling.images=5",
)


@pytest.fixture(autouse=True)
def libraries(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", vision_cases.open_clip(tmp_path))
    monkeypatch.setitem(sys.modules, "timm", vision_cases.timm())
    monkeypatch.setitem(sys.modules, "ftfy", types.SimpleNamespace(fix_text=lambda text: text))


@pytest.fixture
def towers(tmp_path):
    hub_cases.bert(tmp_path / "bert")
    recipes_cases._bert_pieces(tmp_path / "bert")
    return f"timm:resnet8+{tmp_path / 'bert'}"


def pictures():
    rng = np.random.default_rng(0)
    sides = ((40, 60), (16, 16), (20, 9))
    return [Image.fromarray(rng.integers(0, 256, (*side, 3), np.uint8)) for side in sides]


def their_vectors(model, body):
    """What open_clip makes of the same pictures and captions."""
    seen = np.stack([ResizeCrop(16, "longest", "bilinear")(p) for p in pictures()])
    form = vision_cases.MEAN, vision_cases.DEVIATION
    mean, deviation = (torch.tensor(t).view(3, 1, 1) for t in form)
    images = body.encode_image((torch.from_numpy(seen) / 255 - mean) / deviation)
    ids = torch.full((len(CAPTIONS), 12), model.model.filler)
    for row, found in enumerate(model.processor.tokenizer.encode(CAPTIONS)):
        ids[row, : len(found)] = torch.tensor(found)
    return normalize(images, dim=1), normalize(body.encode_text(ids), dim=1)


def trained(folder: Path, name: str, model: str | Path, *more: object, settings=SHORT) -> int:
    words = [word for setting in settings for word in ("--set", setting)]
    where = ("--data", "scenes:images=36", "--output", folder)
    return run("train", name, "--model", model, *where, *words, *more)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_encodes_as_open_clip_does(kind, tmp_path):
    folder = vision_cases.clip_folder(tmp_path / kind, kind)
    model = load_model(folder)
    assert isinstance(model.model, OpenClipModel)
    with torch.inference_mode():
        wanted = their_vectors(model, model.model.body)
    for items, vectors in zip((pictures(), CAPTIONS), wanted):
        torch.testing.assert_close(model.encode(items).tokens[:, 0], vectors)
    assert model.model.filler == {"clip": 0, "siglip": 1, "bert": 0}[kind]
    assert load_model(f"open_clip:{folder}").digest() == model.digest()
    assert all(len(row) <= 12 for row in model.processor.tokenizer.encode(CAPTIONS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_needs_nothing_of_the_folder(kind, tmp_path):
    folder = vision_cases.clip_folder(tmp_path / kind, kind)
    before = load_model(folder)
    before.save_pretrained(tmp_path / "saved")
    shutil.rmtree(folder)
    after = load_model(tmp_path / "saved")
    assert after.processor.image_processor == before.processor.image_processor
    for items in (pictures(), CAPTIONS):
        torch.testing.assert_close(after.encode(items).tokens, before.encode(items).tokens)
    assert str(folder) not in (tmp_path / "saved" / "README.md").read_text().replace("\n", "")


def test_names_tags_and_the_hub(tmp_path, capsys):
    vision_cases.clip_folder(tmp_path / "hub")
    tagged = load_model("open_clip:ViT-T-8/laion_s1")
    hub = load_model("open_clip:hf-hub:user/model")
    assert tagged.digest() == hub.digest() == load_model(tmp_path / "hub").digest()
    assert tagged.model.body.quick_gelu, "as its weights were trained"
    assert not hub.model.body.quick_gelu
    assert tagged.processor.image_processor.mean == vision_cases.MEAN
    assert tagged.processor.image_processor.frame == "shortest bicubic"
    assert "random" not in capsys.readouterr().err
    fresh = [load_model("open_clip:ViT-T-8").digest() for _ in range(2)]
    assert fresh[0] == fresh[1] != tagged.digest()
    assert "random" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, said",
    [
        ("ViT-T-9", r"'open_clip:ViT-T-9' is no model of open_clip.*; near are: ViT-T-"),
        ("ViT-T-8/laion", r"no weights 'laion' of ViT-T-8; there are: laion_s1"),
        ("ViT-T-4/laion", r"no weights 'laion' of ViT-T-4; there are: none"),
        ("ViT-T-8-wide", r"pictures of size \[16, 24\]; only square ones"),
        (
            "hf-hub:user/other",
            r"user/other cannot be fetched .*: user/other is not there$",
        ),
    ],
)
def test_names_that_are_not_known(name, said):
    with pytest.raises(ValueError, match=said):
        load_model(f"open_clip:{name}")


def test_damaged_folders(tmp_path):
    folder = vision_cases.clip_folder(tmp_path / "clip")
    (folder / "open_clip_model.safetensors").rename(folder / "other.safetensors")
    with pytest.raises(ValueError, match=r"no weights; put open_clip_model\.safetensors beside"):
        load_model(folder)
    (folder / "other.safetensors").rename(folder / "model.safetensors")
    config = json.loads((folder / "open_clip_config.json").read_text())
    wider, odd = (config["model_cfg"] | {"embed_dim": width} for width in (10, 9))
    for plain, said in (
        (config | {"model_cfg": wider}, "cannot be loaded as a model of open_clip: Error"),
        (config | {"model_cfg": odd}, "cannot be loaded as a model of open_clip: embed_dim must"),
        ({"model_cfg": {"embed_dim": 8}}, "has no configuration of open_clip"),
        ({"model": 1}, "has no model_cfg"),
    ):
        (folder / "open_clip_config.json").write_text(json.dumps(plain))
        with pytest.raises(ValueError, match=said):
            load_model(folder)


def test_pickles_are_read_as_tensors_alone(tmp_path):
    name = "open_clip_pytorch_model.bin"
    folder = vision_cases.clip_folder(tmp_path / "clip", file=name)
    assert (
        load_model(folder).digest() == load_model(vision_cases.clip_folder(tmp_path / "b")).digest()
    )
    torch.save({"a": Path("/tmp")}, folder / name)
    with pytest.raises(ValueError, match="cannot be loaded as a model of open_clip: Weights only"):
        load_model(folder)


def test_who_opens_a_folder(tmp_path):
    both = vision_cases.clip_folder(tmp_path / "both")
    (both / "config.json").write_text(json.dumps({"architecture": "vit_base"}))
    assert is_open_clip(str(both)), "timm's file"
    (both / "config.json").write_text(json.dumps({"model_type": "clip"}))
    assert not is_open_clip(str(both))
    assert is_open_clip(f"open_clip:{both}")
    assert not is_open_clip(str(tmp_path))


def test_missing_libraries_name_the_extra(tmp_path, monkeypatch, towers):
    folder = vision_cases.clip_folder(tmp_path / "clip")
    for library in ("open_clip", "timm"):
        monkeypatch.setitem(sys.modules, library, None)
    for name in (folder, "open_clip:ViT-T-8", towers):
        with pytest.raises(ValueError, match=r'pip install "counterfoil\[vision\]"'):
            load_model(name)


@pytest.mark.parametrize("way", ["full", "lora", "frozen"])
def test_open_clip_is_trained_further(way, tmp_path):
    folder = vision_cases.clip_folder(tmp_path / "clip")
    before = load_model(folder)
    assert trained(tmp_path / "run", "contrastive", folder, "--tune", way) == 0
    shutil.rmtree(folder)
    after = load_model(tmp_path / "run" / "tuned")
    assert isinstance(after.model, FrozenWithAdapters if way == "frozen" else OpenClipModel)
    assert not any("lora_" in name for name in after.model.state_dict())
    assert not torch.allclose(after.encode(CAPTIONS).tokens, before.encode(CAPTIONS).tokens)
    if way != "full":
        return
    own, other = after.model.state_dict(), before.model.state_dict()
    moved = {name for name in own if not torch.allclose(own[name], other[name])}
    assert moved == set(own) - {"body.logit_scale"}


def test_frozen_towers_of_open_clip_encode_once(tmp_path, monkeypatch):
    folder, calls = vision_cases.clip_folder(tmp_path / "clip"), []
    whole = OpenClipModel.encode_images

    def encode_images(model, items):
        calls.append(len(items))
        return whole(model, items)

    monkeypatch.setattr(OpenClipModel, "encode_images", encode_images)
    assert trained(tmp_path / "run", "contrastive", folder, "--tune", "frozen") == 0
    assert sum(calls) == 24 + 6 + 6, "train, dev and test; the original takes what is kept"


def test_weights_in_between(tmp_path):
    folder, out = vision_cases.clip_folder(tmp_path / "clip"), tmp_path / "between"
    assert trained(tmp_path / "run", "contrastive", folder, "--tune", "lora") == 0
    tuned = tmp_path / "run" / "tuned"
    assert run("interpolate", folder, tuned, "--alpha", 0.5, "--output", out) == 0
    found = (load_model(name).model.state_dict() for name in (folder, tuned, out))
    for one, other, between in zip(*(state.values() for state in found), strict=True):
        torch.testing.assert_close(between, (one + other) / 2)


def test_open_clip_mines_and_is_indexed(tmp_path):
    folder = vision_cases.clip_folder(tmp_path / "clip", "siglip")
    data, lists, index = "scenes:images=20", tmp_path / "lists", tmp_path / "index"
    assert run("evaluate", folder, "--data", data, "--split", "all") == 0
    few = ("--texts-per-image", 5, "--images-per-text", 2)
    assert run("mine", folder, "--data", data, "--split", "all", "--output", lists, *few) == 0
    assert run("index", folder, data, "--output", index) == 0
    assert run("search", index, "a red circle") == 0


@pytest.mark.papers
@pytest.mark.parametrize("way", ["full", "frozen"])
def test_towers_are_trained(way, tmp_path, towers, monkeypatch):
    monkeypatch.setattr("counterfoil.loading.timm.WIDTH", 16)
    before = load_model(towers)
    assert isinstance(before.model, VSEPP)
    settings = (*SHORT, *LISTS)
    assert trained(tmp_path / "run", "aoq", towers, "--tune", way, settings=settings) == 0
    monkeypatch.setattr(sys.modules["timm"], "create_model", refuse_weights())
    shutil.rmtree(tmp_path / "bert")
    after = load_model(tmp_path / "run" / "adaptive")
    assert after.model.image.trained == (way == "full")
    own, other = after.model.state_dict(), before.model.state_dict()
    moved = {name for name in own if not torch.allclose(own[name], other[name])}
    assert {"image.fc.weight", "text.fc.weight"} <= moved
    assert any(".body." in name for name in moved) == (way == "full")
    assert not any("norm.running" in name for name in moved if name.startswith("image"))


def refuse_weights():
    whole = vision_cases.timm().create_model

    def create_model(name, *, pretrained, num_classes):
        assert not pretrained
        return whole(name, pretrained=False, num_classes=num_classes)

    return create_model


def test_towers_save_without_what_they_come_from(tmp_path, towers, monkeypatch):
    before = load_model(towers)
    assert before.digest() == load_model(towers).digest()
    before.save_pretrained(tmp_path / "saved")
    shutil.rmtree(tmp_path / "bert")
    monkeypatch.setattr(sys.modules["timm"], "create_model", refuse_weights())
    after = load_model(tmp_path / "saved")
    for items in (pictures(), CAPTIONS):
        torch.testing.assert_close(after.encode(items).tokens, before.encode(items).tokens)
    assert before.processor.image_processor.mean == vision_cases.MEAN
    assert before.processor.image_processor.size == 16


def test_frozen_towers_look_at_a_picture_once(tmp_path, towers):
    model = load_model(towers)
    still = load_pretrained(towers).trained(frozen=True, lora=0)
    still = still.fill({"pretrained": True, "text config": None})
    matcher = still.build()
    matcher.load_state_dict(model.model.state_dict())
    calls = []
    matcher.image.body.register_forward_hook(lambda *_: calls.append(1))
    frozen, dataset = replace(model, model=matcher.eval()), load_dataset("scenes:images=8")
    first = frozen.embed(dataset).images.tokens
    many = len(calls)
    torch.testing.assert_close(frozen.embed(dataset).images.tokens, first)
    assert many
    assert len(calls) == many
    torch.testing.assert_close(first, model.embed(dataset).images.tokens, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "name, said",
    [
        ("timm:resnet9+BERT", r"'resnet9' is no model of timm; near are: resnet8"),
        (
            "timm:resnet8.none+BERT",
            r"no weights of 'resnet8.none': Invalid pretrained tag",
        ),
        ("timm:widenet+BERT", r"pictures of 16 x 24; only squares"),
        ("timm:resnet8", r"names no two towers; give an image model of timm and a language model"),
        ("timm:+BERT", "names no two towers"),
        ("timm:resnet8+no/bert", "no/bert cannot be loaded as a Hugging Face model"),
    ],
)
def test_towers_that_are_not_known(name, said, tmp_path, towers):
    with pytest.raises(ValueError, match=said):
        load_model(name.replace("BERT", str(tmp_path / "bert")))


def test_towers_have_no_adapters(tmp_path, towers, capsys):
    assert trained(tmp_path / "run", "contrastive", towers, "--tune", "lora") == 2
    assert "cannot have adapters; tune it full, or frozen" in " ".join(
        capsys.readouterr().err.split()
    )


def test_weights_at_random_have_nothing_to_forget(tmp_path, towers, capsys):
    folder = tmp_path / "run"
    assert trained(folder, "contrastive", towers, "--tune", "frozen") == 0
    assert "What is forgotten" not in (folder / "report" / "report.html").read_text()
    more = ("--tune", "frozen", "--other", "scenes:images=20")
    capsys.readouterr()
    for name in (towers, "open_clip:ViT-T-8"):
        assert trained(tmp_path / "other", "contrastive", name, *more) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "begins with weights at random; leave it out" in said
    out = tmp_path / "between"
    assert run("interpolate", towers, folder / "tuned", "--alpha", 0.5, "--output", out) == 2
    assert "begins with weights at random, so there is nothing between" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not out.exists()
