"""The walk of docs/embedders.md for a large embedder, on a tiny model of its class."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import sentence_transformer_cases as cases
from counterfoil.cli import main
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import split_words
from counterfoil.model import load_model
from counterfoil.models.sentence_transformers import DenseEmbedder

DATA = "scenes:images=12"
LARGE = ("--weights", "bf16", "--device-map", "auto", "--tokens", "64")


@pytest.fixture
def embedder(tmp_path):
    """A model of vision and language in bfloat16, with last-token pooling."""
    words = sorted({word for text in load_dataset(DATA).texts for word in split_words(text)})
    return cases.dense(tmp_path / "model", words, "llava", dtype=torch.bfloat16)


def test_a_large_embedder_encodes_once_and_continues(embedder, tmp_path, monkeypatch, capsys):
    command = ["encode", str(embedder), DATA, str(tmp_path / "vectors"), *LARGE]
    encoded: list[str] = []
    images, texts = DenseEmbedder.encode_images, DenseEmbedder.encode_texts

    def seen(model, items):
        encoded.append("images")
        assert next(model.parameters()).dtype == torch.bfloat16
        assert model.body._placement_is_delegated
        return images(model, items)

    def stopped(model, items):
        raise KeyboardInterrupt

    monkeypatch.setattr(DenseEmbedder, "encode_images", seen)
    monkeypatch.setattr(DenseEmbedder, "encode_texts", stopped)
    assert main(command) != 0  # stopped after the pictures, as by a signal
    assert not (tmp_path / "vectors").exists()
    monkeypatch.setattr(DenseEmbedder, "encode_texts", texts)
    assert main(command) == 0
    assert encoded == ["images"]  # not a second time
    assert main(command) == 0  # finished: nothing is encoded
    assert encoded == ["images"]
    monkeypatch.setattr(DenseEmbedder, "encode_images", images)
    capsys.readouterr()

    written = load_dataset(str(tmp_path / "vectors"))
    dataset = load_dataset(DATA)
    assert written.texts == [" ".join(text.split()) for text in dataset.texts]
    assert list(written.image_ids) == list(dataset.image_ids)
    assert list(written.splits) == list(dataset.splits)
    model = load_model(embedder, weights="bf16")
    found = model.encode_images([dataset.pictures.open(row) for row in range(3)])
    stored = np.load(tmp_path / "vectors" / "images.npy")[:3]
    np.testing.assert_allclose(stored, found, atol=0.02)
    for verb in (
        ["evaluate", "vectors", "--data", str(tmp_path / "vectors"), "--json", "found.json"],
        ["evaluate", str(embedder), "--data", DATA, "--json", "direct.json"],
        ["mine", "vectors", "--data", str(tmp_path / "vectors"), "--output", "lists"],
    ):
        monkeypatch.chdir(tmp_path)
        assert main(verb) == 0
    one, other = (
        json.loads((tmp_path / name).read_text()) for name in ("found.json", "direct.json")
    )
    assert one.keys() == other.keys()


def test_a_folder_of_other_vectors_is_refused(embedder, tmp_path, capsys):
    folder = str(tmp_path / "vectors")
    assert main(["encode", str(embedder), DATA, folder]) == 0
    capsys.readouterr()
    assert main(["encode", str(embedder), "scenes:images=11", folder]) == 2
    assert "was begun otherwise: data is" in capsys.readouterr().err


def test_single_precision_of_stored_halves(embedder):
    models = (load_model(embedder, weights=weights).model for weights in ("fp32", "stored"))
    dtypes = [next(model.parameters()).dtype for model in models]
    assert dtypes == [torch.float32, torch.bfloat16]
