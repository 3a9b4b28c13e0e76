"""ONNX: the code of the README, in the written folder, gives our vectors."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import hub_cases
import recipes_cases
from corpus_cases import random_array
from counterfoil.core.config import config, lazy
from counterfoil.core.types import ModalityBatch
from counterfoil.data.images import ResizeCrop, open_picture
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.tokenizers import WordPieceTokenizer
from counterfoil.export.models import export_model
from counterfoil.export.onnx import example_code
from counterfoil.model import Model, load_model
from counterfoil.models.clip import DualEncoder
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import PatchTower
from counterfoil.models.vsepp import VSEPP
from picture_cases import DEEP

CAPTIONS = ["a Dog", "a big blue square in the snow", "a dog in the snow and " * 9, "red"]
FITS = [
    "squash", "center", "shortest", "shortest-floor", "longest", "squash bicubic 21",
    "shortest bilinear 21", "shortest-floor nearest 19", "shortest-floor lanczos 20",
]  # fmt: skip


def pictures(folder) -> list[str]:
    """Files of several shapes, one of which its EXIF data turn."""
    sizes, paths = [(16, 16), (40, 30), (9, 50)], []
    for number, (width, height) in enumerate(sizes):
        noise = (abs(random_array(height, width, 3, seed=number)) * 80).clip(0, 255)
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 1 else 1
        paths.append(str(folder / f"{number}.png"))
        Image.fromarray(noise.astype("uint8")).save(paths[-1], exif=exif)
    return paths


def tokenizer(folder) -> WordPieceTokenizer:
    recipes_cases.clip_like(folder)
    return WordPieceTokenizer(str(folder), longest=12)


def clip(folder) -> Model:
    model = load_model(recipes_cases.clip_like(folder))
    images = replace(model.processor.image_processor, crop=True)
    return replace(model, processor=replace(model.processor, image_processor=images))


def siglip(folder) -> Model:
    return load_model(recipes_cases.clip_like(folder, "siglip"))


def of_sentence_transformers(folder) -> Model:
    """A folder of sentence-transformers with a CLIP."""
    model = load_model(recipes_cases.clip_like(folder / "clip"))
    to = "sentence-transformers"
    export_model(model.model, model.processor, to, folder / "st", name="clip")
    return load_model(folder / "st")


def towers(folder) -> Model:
    """An image tower of ours beside a BERT, compared by the mean of tokens."""
    text = lazy(BertTextTower, name=hub_cases.bert(folder / "bert"), width=8)
    image = lazy(PatchTower, size=16, patch=8, width=8, channels=4)
    spec = config(VSEPP, image=image, text=text, text_pool="mean+max")
    processor = Processor(PixelProcessor(16, frame="shortest bilinear"), tokenizer(folder / "t"))
    return Model(spec.build(), processor, "towers", spec)


def frozen(folder) -> Model:
    """Adapters behind a CLIP."""
    name = str(recipes_cases.clip_like(folder))
    spec = config(FrozenWithAdapters, body=lazy(DualEncoder, name=name), width=8, hidden=4)
    processor = Processor(PixelProcessor(16, frame="longest bicubic"), tokenizer(folder))
    return Model(spec.build(), processor, "frozen", spec)


def write(model: Model, folder):
    export_model(model.model, model.processor, "onnx", folder, name="mine")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("make", [clip, siglip, of_sentence_transformers, towers, frozen])
def test_the_code_of_the_readme_gives_our_vectors(make, tmp_path, monkeypatch):
    model = make(tmp_path / "began")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    text = (write(model, tmp_path / "out") / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0].rpartition("\n\nscores")[0]
    monkeypatch.chdir(tmp_path / "out")
    names: dict[str, object] = {}
    exec(code, names)
    paths = pictures(tmp_path)
    for items in (paths, paths[:1]):
        found = names["encode_images"](items)
        np.testing.assert_allclose(found, model.encode_images(items), rtol=0, atol=1e-5)
    for items in (CAPTIONS, CAPTIONS[:1]):
        found = names["encode_texts"](items)
        np.testing.assert_allclose(found, model.encode_texts(items), rtol=0, atol=1e-5)
    scores = names["encode_images"](paths) @ names["encode_texts"](CAPTIONS).T
    np.testing.assert_allclose(scores, model.similarity(paths, CAPTIONS), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_model_that_depends_on_the_batch_is_refused(tmp_path):
    model = load_model(recipes_cases.clip_like(tmp_path / "began", "siglip2"))
    with pytest.raises(ValueError, match="images of mine depend on their number"):
        write(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fit", FITS)
def test_pictures_are_resized_as_ours(fit, tmp_path, monkeypatch):
    stub = SimpleNamespace(InferenceSession=lambda file: None)
    monkeypatch.setitem(sys.modules, "onnxruntime", stub)
    monkeypatch.setattr("tokenizers.Tokenizer", SimpleNamespace(from_file=lambda file: None))
    square = ResizeCrop.named(16, fit if " " in fit else f"{fit} bicubic")
    names: dict[str, object] = {}
    exec(example_code(square).rpartition("\n\nscores")[0], names)
    deep = [tmp_path / name for name in DEEP] if fit == "squash" else []
    for path in deep:
        path.write_bytes(DEEP[path.name][0])
    for path in [*pictures(tmp_path), *deep]:
        wanted = square(open_picture(Path(path))).transpose(1, 2, 0)
        np.testing.assert_array_equal(np.asarray(names["resize"](path)), wanted)


@pytest.mark.parametrize(
    "host, reason",
    [
        ("vilt_like", "mine is a ViLT; of models, those of one vector"),
        ("feature_model", "does not read square images"),
        ("pixel_model", "captions of mine are read by a WordTokenizer"),
    ],
)
def test_models_that_are_refused(host, reason, tmp_path):
    getattr(recipes_cases, host)(tmp_path / "model")
    with pytest.raises(ValueError, match=reason):
        write(load_model(tmp_path / "model"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "off, reason", [(1e-3, "texts of mine differ by 0.001"), (0, "does not score by the inner")]
)
def test_a_graph_that_is_not_the_model_is_refused(off, reason, tmp_path, monkeypatch):
    """The graphs are replaced by the encoders of a model whose score is no inner product."""
    text = lazy(BertTextTower, name=hub_cases.bert(tmp_path / "bert"), width=8)
    image = lazy(PatchTower, size=16, patch=8, width=8, channels=4)
    model = config(VSEPP, image=image, text=text, measure="order").build().eval()

    @torch.no_grad()
    def run(path, feed, name):
        values = [torch.from_numpy(array) for array in feed.values()]
        if path.name == "images.onnx":
            pixels = values[0].permute(0, 3, 1, 2) / 127.5 - 1
            items = ModalityBatch(torch.zeros(3), pixels, torch.ones(3, 1, dtype=torch.bool))
            return model.encode_images(items).tokens[:, 0]
        items = ModalityBatch(torch.zeros(3), values[0], values[1].bool())
        return model.encode_texts(items).tokens[:, 0] + off

    monkeypatch.setattr("counterfoil.export.onnx._write_graph", lambda *arguments: None)
    monkeypatch.setattr("counterfoil.export.onnx._run", run)
    processor = Processor(PixelProcessor(16), tokenizer(tmp_path / "t"))
    with pytest.raises(ValueError, match=reason):
        write(Model(model, processor, "mine"), tmp_path / "out")


def test_libraries_that_are_missing(tmp_path, monkeypatch):
    model = load_model(recipes_cases.clip_like(tmp_path / "model"))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r'pip install "counterfoil\[onnx\]"'):
        write(model, tmp_path / "out")
