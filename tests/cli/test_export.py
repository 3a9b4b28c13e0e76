from __future__ import annotations

import json

import numpy as np
import pytest

from counterfoil.export.negatives import FORMATS
from counterfoil.model import load_model
from recipes_cases import run

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
