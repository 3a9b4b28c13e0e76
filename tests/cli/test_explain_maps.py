"""`explain` says where in the picture: in the terminal, on the page and as JSON."""

from __future__ import annotations

import json
import re

import pytest
import torch

from counterfoil.cli import main
from counterfoil.core.config import config, lazy
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.models.filip import FILIP
from counterfoil.models.layers.towers import GRU, PatchTower, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.saved import save_model

DATA = "scenes:images=36,dev=3,test=6,features=regions"
IMAGE, CAPTION = "scene-0-test-00001", "A red circle, left of a star."


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    data, made = load_dataset(DATA), {}
    for name, kind in (("patches", FILIP), ("regions", FILIP), ("vector", VSEPP)):
        pixels = name == "patches"
        processor = ProcessorConfig(images="pixels" if pixels else "features", size=32).fit(data)
        tower = lazy(PatchTower, size=32, patch=16, width=8, channels=8, depth=0)
        if not pixels:
            tower = lazy(Regions, features=data.features.width, width=8)
        words = lazy(GRU, words=processor.tokenizer.size, word_width=8, width=8)
        torch.manual_seed(0)
        spec = config(kind, image=tower, text=words)
        made[name] = tmp_path_factory.mktemp(name) / "model"
        save_model(made[name], spec=spec, model=spec.build(), processor=processor)
    return made


@pytest.mark.parametrize(
    ("name", "place"), [("patches", r"row \d, column \d"), ("regions", r"region \d+")]
)
def test_one_caption(folders, name, place, tmp_path, capsys):
    page, told = tmp_path / "page.html", tmp_path / "told.json"
    options = ("--data", DATA, "--output", str(page), "--json", str(told))
    assert main(["explain", str(folders[name]), IMAGE, CAPTION, *options]) == 0
    out = capsys.readouterr().out
    assert "where, by similarity" in out
    (row,) = (line for line in out.splitlines() if line.strip().startswith("circle"))
    assert re.search(rf"(left|right|middle|top|bottom), {place} \(-?0\.\d+\)", row)
    assert "no proof that the word is seen there" in " ".join(out.split())
    maps = json.loads(told.read_text())["maps"]
    words = [word["text"] for word in maps["words"]]
    assert words == ["A", "red", "circle", "left", "of", "a", "star"]
    assert maps["grid"] == ([2, 2] if name == "patches" else None)
    drawn = page.read_text().count("<rect")
    assert drawn == len(maps["boxes"]) == len(maps["words"][0]["values"])


def test_the_page_of_a_data_set(folders, tmp_path):
    page, told = tmp_path / "page.html", tmp_path / "told.jsonl"
    options = ("--top", "3", "--output", str(page), "--json", str(told))
    assert main(["explain", str(folders["patches"]), "--data", DATA, *options]) == 0
    assert page.read_text().count("<rect") == 3 * 4
    assert "maps" not in json.loads(told.read_text().splitlines()[0])


def test_a_model_of_one_vector_says_so_on_the_page(folders, tmp_path, capsys):
    page = tmp_path / "page.html"
    options = ("--data", DATA, "--output", str(page))
    assert main(["explain", str(folders["vector"]), IMAGE, CAPTION, *options]) == 0
    assert "where, by" not in capsys.readouterr().out
    text = " ".join(page.read_text().split())
    assert "whose score is of another kind (cosine)" in text
    assert "FILIP" in text
    assert "<script" not in text
