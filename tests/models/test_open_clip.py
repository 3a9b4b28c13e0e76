from __future__ import annotations

import importlib
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image

import bag_cases
import matcher_cases
import recipes_cases
import vision_cases
from counterfoil.core.config import config
from counterfoil.model import load_model
from counterfoil.models.open_clip import OpenClipModel
from matcher_promises import PROMISES

CAPTIONS = ["a dog in the snow", "A Red circle, and a square!", "it&amp;s  a big blue _square_" * 9]


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", vision_cases.open_clip(tmp_path))
    monkeypatch.setitem(sys.modules, "ftfy", types.SimpleNamespace(fix_text=lambda text: text))


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(promise, kind, tmp_path, stand_in):
    folder = vision_cases.clip_folder(tmp_path / kind, kind)
    spec = config(OpenClipModel, name=str(folder))
    promise(matcher_cases.Case(kind, spec, matcher_cases.pixels, matcher_cases.words))


def test_scale_and_bias_are_not_trained(tmp_path, stand_in):
    model = OpenClipModel(name=str(vision_cases.clip_folder(tmp_path / "siglip", "siglip")))
    still = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert still == {"body.logit_scale", "body.logit_bias"}


def test_a_decoder_that_is_not_used_is_not_trained(tmp_path, stand_in, monkeypatch):
    class CoCa(vision_cases.Clip):
        def __init__(self, **sizes):
            super().__init__(**sizes)
            self.text_decoder = torch.nn.Module()
            self.text_decoder.resblocks = torch.nn.ModuleList([vision_cases.Block(8)])

    monkeypatch.setattr(sys.modules["open_clip"], "CLIP", CoCa)
    folder = str(vision_cases.clip_folder(tmp_path / "clip"))
    for lora in (0, 2):
        model = OpenClipModel(name=folder, pretrained=False, lora=lora)
        moving = {name for name, value in model.named_parameters() if value.requires_grad}
        assert moving
        assert not any(".text_decoder." in name for name in moving)


def test_what_is_refused(tmp_path, stand_in):
    folder = str(vision_cases.clip_folder(tmp_path / "clip"))
    with pytest.raises(ValueError, match="lora=-1 is not possible"):
        OpenClipModel(name=folder, lora=-1)
    long = bag_cases.whole(torch.ones(1, 13).long())
    with pytest.raises(ValueError, match="texts of 13 tokens do not fit a model that reads 12"):
        OpenClipModel(name=folder).encode_texts(long)


def test_adapters_begin_as_nothing_and_are_merged(tmp_path, stand_in):
    folder = str(vision_cases.clip_folder(tmp_path / "clip"))
    plain, adapted = OpenClipModel(name=folder).eval(), OpenClipModel(name=folder, lora=2).eval()
    rng = torch.Generator().manual_seed(0)
    images, texts = matcher_cases.pixels(3, rng), matcher_cases.words(4, rng)

    def vectors(model):
        return model.encode_images(images).tokens, model.encode_texts(texts).tokens

    torch.testing.assert_close(vectors(adapted), vectors(plain))
    adapted.load_state_dict(adapted.adopted(plain.state_dict()))
    moving = [value for value in adapted.parameters() if value.requires_grad]
    with torch.no_grad():
        for value in moving:
            value.add_(1)
    moved = vectors(adapted)
    assert not torch.allclose(moved[0], vectors(plain)[0])
    adapted.merge()
    assert set(adapted.state_dict()) == set(plain.state_dict())
    torch.testing.assert_close(vectors(adapted), moved)


def real() -> types.ModuleType:
    """open_clip itself, where it is installed and works."""
    try:
        return importlib.import_module("open_clip")
    except (ImportError, RuntimeError) as error:  # torchvision of another build of PyTorch
        pytest.skip(f"open_clip cannot be imported: {error}")


@pytest.mark.parametrize("fit", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("kind", ["clip", "siglip", "resnet"])
def test_equals_the_library(kind, fit, tmp_path):
    """From pictures and captions to vectors."""
    library = real()
    folder = _written(tmp_path / kind, kind, fit)
    place = f"local-dir:{folder}"
    body, _, prepared = library.create_model_and_transforms(place)
    body.eval()
    rng = np.random.default_rng(0)
    sides = ((40, 60), (32, 32), (90, 20))
    pictures = [Image.fromarray(rng.integers(0, 256, (*side, 3), np.uint8)) for side in sides]
    model = load_model(folder)
    with torch.inference_mode():
        seen = torch.stack([prepared(picture) for picture in pictures])
        images = body.encode_image(seen, normalize=True)
        texts = body.encode_text(library.get_tokenizer(place)(CAPTIONS), normalize=True)
    torch.testing.assert_close(model.encode(pictures).tokens[:, 0], images)
    torch.testing.assert_close(model.encode(CAPTIONS).tokens[:, 0], texts)


def _written(folder, kind, fit):
    """A tiny folder of the library itself."""
    text = {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
    model = {"embed_dim": 8, "vision_cfg": vision, "text_cfg": text}
    if kind == "resnet":
        model |= {"vision_cfg": vision | {"layers": [1, 1, 1, 1]}, "quick_gelu": True}
    folder.mkdir()
    if kind == "siglip":
        recipes_cases.clip_like(folder / "tokenizer", "siglip")
        for path in (folder / "tokenizer").glob("tokenizer*"):
            path.rename(folder / path.name)
        said = {"hf_tokenizer_name": "x/y", "tokenizer_kwargs": {"clean": "canonicalize"}}
        model["text_cfg"] = text | said | {"no_causal_mask": True, "pool_type": "last"}
        model |= {"init_logit_bias": -10, "custom_text": True}
    form = {"interpolation": "bilinear", "resize_mode": fit}
    vision_cases.filled(folder, model, form, real().create_model)
    return folder
