"""``counterfoil encode``, ``export`` and ``cache``."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import sentence_transformer_cases as cases
from counterfoil.core.types import Pairs
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import split_words
from counterfoil.export.negatives import FORMATS
from counterfoil.model import load_model
from counterfoil.models.sentence_transformers import DenseEmbedder
from recipes_cases import run

DATA = "scenes:images=12"
LARGE = ("--weights", "bf16", "--device-map", "auto", "--tokens", "64")


@pytest.fixture
def embedder(tmp_path):
    """A model of vision and language in bfloat16, with last-token pooling."""
    words = sorted({word for text in load_dataset(DATA).texts for word in split_words(text)})
    return cases.dense(tmp_path / "model", words, "llava", dtype=torch.bfloat16)


def test_a_large_embedder_encodes_once_and_continues(embedder, tmp_path, monkeypatch, capsys):
    command = ("encode", embedder, DATA, tmp_path / "vectors", *LARGE)
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
    assert run(*command) != 0  # stopped after the pictures, as by a signal
    assert not (tmp_path / "vectors").exists()
    monkeypatch.setattr(DenseEmbedder, "encode_texts", texts)
    assert run(*command) == 0
    assert encoded == ["images"]  # not a second time
    assert run(*command) == 0  # finished: nothing is encoded
    assert encoded == ["images"]
    monkeypatch.setattr(DenseEmbedder, "encode_images", images)
    capsys.readouterr()

    written = load_dataset(str(tmp_path / "vectors"))
    dataset = load_dataset(DATA)
    assert written.fingerprint == dataset.fingerprint  # ids and texts, so that lists fit both
    assert list(written.splits) == list(dataset.splits)
    model = load_model(embedder, weights="bf16")
    found = model.encode_images([dataset.pictures.open(row) for row in range(3)])
    stored = np.load(tmp_path / "vectors" / "images.npy")[:3]
    np.testing.assert_allclose(stored, found, atol=0.02)
    monkeypatch.chdir(tmp_path)
    assert run("evaluate", "vectors", "--data", "vectors", "--json", "found.json") == 0
    assert run("evaluate", embedder, "--data", DATA, "--json", "direct.json") == 0
    assert run("mine", "vectors", "--data", "vectors", "--output", "lists") == 0
    one, other = (
        json.loads((tmp_path / name).read_text()) for name in ("found.json", "direct.json")
    )
    assert one.keys() == other.keys()


def test_vectors_have_the_judged_pairs_of_the_data(embedder, tmp_path):
    dataset = load_dataset(DATA)
    image, text = torch.tensor([0, 1]), torch.tensor([9, 2])
    judged = replace(
        dataset,
        extra_positives=Pairs(image[:1], text[:1]),
        extra_weights=torch.tensor([0.5]),
        ambiguous=Pairs(image[1:], text[1:]),
    )
    written = load_model(embedder).write_vectors(judged, tmp_path / "vectors")
    assert written.fingerprint == judged.fingerprint != dataset.fingerprint


def test_a_folder_of_other_vectors_is_refused(embedder, tmp_path, capsys):
    folder = tmp_path / "vectors"
    assert run("encode", embedder, DATA, folder) == 0
    capsys.readouterr()
    assert run("encode", embedder, "scenes:images=11", folder) == 2
    assert "was begun otherwise: data is" in capsys.readouterr().err


def test_single_precision_of_stored_halves(embedder):
    models = (load_model(embedder, weights=weights).model for weights in ("fp32", "stored"))
    dtypes = [next(model.parameters()).dtype for model in models]
    assert dtypes == [torch.float32, torch.bfloat16]


SCENES = "scenes:images=36"


@pytest.mark.parametrize("to", FORMATS)
def test_mined_negatives_of_a_run(to, models, printed, tmp_path):
    out = tmp_path / "out"
    asked = ("--to", to, "--data", SCENES, "--output", out, "--most", "3")
    shown = printed("export", models / "run/lists", *asked)
    assert shown.endswith(str(out))
    files = [path.name for path in out.iterdir()]
    assert "README.md" in files
    assert all(name.split(":")[0] in files for name in shown.split() if name.endswith("l:"))
    if to == "flagembedding":
        lines = (out / "text-to-image.jsonl").read_text().splitlines()
        assert {len(json.loads(line)["neg"]) for line in lines} == {3}


def test_lists_mined_from_plain_embeddings(printed, tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "vectors"
    folder.mkdir()
    np.save(folder / "images.npy", rng.standard_normal((6, 4)).astype(np.float32))
    np.save(folder / "texts.npy", rng.standard_normal((12, 4)).astype(np.float32))
    (folder / "image_ids.json").write_text(json.dumps([f"photo{n}.jpg" for n in range(6)]))
    (folder / "captions.txt").write_text("".join(f"caption {n}\n" for n in range(12)))
    data = ("--data", folder, "--split", "all")
    assert run("mine", "vectors", *data, "--output", tmp_path / "lists") == 0
    shown = printed(
        "export", tmp_path / "lists", "--to", "flagembedding", *data, "--output", tmp_path / "out"
    )
    assert "vectors has no pictures; images are given by their names" in shown
    line = json.loads((tmp_path / "out/image-to-text.jsonl").read_text().splitlines()[1])
    assert line["query"] == "photo1.jpg"
    assert line["pos"] == ["caption 2", "caption 3"]
    images, texts = (np.load(folder / f"{side}.npy") for side in ("images", "texts"))
    scores = images[1] @ (texts / np.linalg.norm(texts, axis=1, keepdims=True)).T
    order = [n for n in np.argsort(-scores) if n not in (2, 3)][:8]
    assert line["neg"] == [f"caption {n}" for n in order]


def test_a_model_for_others_and_for_us(models, printed, tmp_path):
    for to in ("sentence-transformers", "counterfoil"):
        out = tmp_path / to
        assert printed("export", models / "clip", "--to", to, "--output", out) == str(out)
        assert load_model(out).digest() == load_model(models / "clip").digest()
    shown = printed("export", models / "pixels", "--to", "onnx", "--output", tmp_path / "o", code=2)
    assert not shown


def test_evaluations_are_in_the_card(models, printed, tmp_path):
    measured = tmp_path / "test.json"
    assert run("evaluate", models / "pixels", "--data", SCENES, "--json", measured) == 0
    asked = ("--to", "counterfoil", "--output", tmp_path / "out", "--evaluation", measured)
    printed("export", models / "pixels", *asked)
    protocol = json.loads(measured.read_text())["protocol"]
    assert protocol in (tmp_path / "out" / "README.md").read_text()


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A cache of its own: an old and a new file, a folder, and a file that is not ours."""
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path))
    (tmp_path / "pixels").mkdir()
    for name, days in (("old.npy", 40), ("new.npy", 0)):
        (tmp_path / "pixels" / name).write_bytes(b"x" * 1_000_000)
        when = time.time() - days * 24 * 3600
        os.utime(tmp_path / "pixels" / name, (when, when))
    (tmp_path / "states" / "a").mkdir(parents=True)
    (tmp_path / "states" / "a" / "part.npy").write_bytes(b"x" * 500_000)
    (tmp_path / "mine.txt").write_text("not of the cache")
    return tmp_path


def test_listed_with_sizes(cached, printed):
    shown = printed("cache")
    assert "pixels (decoded pictures): 2 entries, 2.0 MB, the oldest 40 days old" in shown
    assert "states (outputs of frozen models): 1 entry, 0.5 MB" in shown
    assert "tokens (tokenised captions): 0 entries, 0.0 MB" in shown
    assert (cached / "pixels" / "old.npy").exists()


def test_old_files_of_a_kind_are_deleted(cached, printed):
    shown = printed("cache", "--clear", "pixels", "--days", 30)
    assert "deleted 1 entry, 1.0 MB" in shown
    assert [path.name for path in (cached / "pixels").iterdir()] == ["new.npy"]
    assert (cached / "states" / "a" / "part.npy").exists()


def test_all_is_deleted_but_what_is_not_ours(cached, printed):
    outside = cached.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_text("x")
    (cached / "states" / "link").symlink_to(outside)
    printed("cache", "--clear", "all")
    assert not [path for kind in ("pixels", "states") for path in (cached / kind).iterdir()]
    assert (cached / "mine.txt").exists()
    assert (outside / "kept").exists()
