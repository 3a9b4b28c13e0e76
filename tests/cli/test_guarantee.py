"""From mined lists over a judged sample to lists of which few pairs are true."""

from __future__ import annotations

import json

import pytest

from cli_fixture_cases import SCENES
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import is_true
from counterfoil.negatives.store import NegativeStore
from recipes_cases import run


@pytest.fixture
def sampled(models, printed, tmp_path):
    """Lists, and the verdicts of somebody who judged the page of a random sample."""
    words = ("--data", SCENES, "--texts-per-image", 30, "--images-per-text", 10)
    lists, page, file = tmp_path / "lists", tmp_path / "page", tmp_path / "judged.jsonl"
    printed("mine", models / "pixels", *words, "--output", lists)
    asked = ("--negatives", lists, "--set", "order=random", "--set", "top=150", "--output", page)
    printed("audit", SCENES, *asked)
    dataset = load_dataset(SCENES).split("train")
    shown = dict(zip(dataset.image_ids, graphs(dataset)))
    found = json.loads((page / "audit.json").read_text())["found"]["sample"]
    items = [item for find in found["finds"] for item in find["items"]]
    assert found["found"] == found["shown"] == len(items) <= 300
    lines = [
        {"do": "true" if is_true(item["was"], shown[item["image"]]) else "keep"}
        | {key: item[key] for key in ("image", "caption", "was")}
        for item in items
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lists, file


def test_a_judged_sample_filters_the_lists(sampled, printed, tmp_path):
    lists, file = sampled
    out = tmp_path / "filtered"
    words = ("--data", SCENES, "--judgements", file, "--set", "sample=150", "--output", out)
    shown = printed("negatives", "filter", lists, *words, "--at-most-true", 0.2)
    assert "at most 20 % are true with 95 % confidence, by judged.jsonl (a sample of 150" in shown
    assert "texts of images: threshold" in shown
    assert "150 pairs judged" in shown
    dataset = load_dataset(SCENES).split("train")
    before, after = (
        NegativeStore.open(folder, fingerprint=dataset.fingerprint, relation=dataset.relation)
        for folder in (lists, out)
    )
    assert 0 < int((after.lists.texts >= 0).sum()) <= int((before.lists.texts >= 0).sum())
    assert "at most 20 % are true" in after.manifest.filters[-1]
    scenes = graphs(dataset)
    pairs = [(i, t) for i, row in enumerate(after.lists.texts.tolist()) for t in row if t >= 0]
    true = sum(is_true(dataset.texts[text], scenes[image]) for image, text in pairs)
    assert true / len(pairs) <= 0.2


def test_what_cannot_be_promised_is_one_sentence_and_writes_nothing(sampled, capsys, tmp_path):
    lists, file = sampled
    out = tmp_path / "filtered"
    words = ("--data", SCENES, "--judgements", file, "--output", out)
    for more, said in (
        (("--at-most-true", 0.001), "at least 2,995 are needed"),
        (("--set", "sample=300"), "no threshold keeps texts of images"),
        (("--by", "gap"), "'gap' is not a measure"),
    ):
        capsys.readouterr()
        assert run("negatives", "filter", lists, *words, *more) == 2
        assert said in " ".join(capsys.readouterr().err.split())
        assert not out.exists()
