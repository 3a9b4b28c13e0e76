"""A judge's corrections of mined negatives, from the lists to the next mining."""

from __future__ import annotations

import json

import torch

from counterfoil.data.corrections import read_corrections
from counterfoil.data.readers import load_dataset
from counterfoil.negatives.store import NegativeStore
from recipes_cases import run

SCENES = "scenes:images=36"


def pairs_of(lists):
    """All pairs of lists, by rows."""
    texts = {(image, text) for image, row in enumerate(lists.texts.tolist()) for text in row}
    images = {(image, text) for text, row in enumerate(lists.images.tolist()) for image in row}
    return texts | images


def test_lists_are_judged_and_mined_again_without_the_pairs(models, printed, capsys, tmp_path):
    file = tmp_path / "corrections.jsonl"
    lists = ("--negatives", models / "run/lists")
    shown = printed("judge", models / "run/online", *lists, "--data", SCENES, "--output", file)
    assert str(file) in shown
    corrections = read_corrections(file)
    plain = load_dataset(SCENES).split("train")
    mined = NegativeStore.open(models / "run/lists", fingerprint=plain.fingerprint).lists
    images = {name: row for row, name in enumerate(plain.image_ids)}
    texts = {name: row for row, name in enumerate(plain.text_ids)}
    judged = [(images[one.image], texts[one.caption]) for one in corrections]
    assert len(set(judged)) == len(judged)
    assert set(judged) <= pairs_of(mined)
    assert {one.do for one in corrections} == {"true", "drop"}
    promoted = [one for one in corrections if one.do == "true"]
    assert f"{len(pairs_of(mined)):,} pairs judged" in shown
    assert f"{len(promoted):,} promoted" in shown
    assert all(one.was == plain.texts[texts[one.caption]] for one in corrections)
    data = load_dataset(SCENES, decisions=file).split("train")
    assert len(data.extra_positives.image) == len(promoted)
    assert len(data.ambiguous.image) == len(corrections) - len(promoted)
    again = tmp_path / "lists"
    words = ("--texts", 20, "--images-per-text", 5, "--corrections", file, "--output", again)
    printed("mine", models / "run/online", "--data", SCENES, *words)
    left = NegativeStore.open(again, fingerprint=data.fingerprint).lists
    assert not pairs_of(left) & set(judged)
    # the old lists are not those of the corrected data
    words = ("--data", SCENES, "--corrections", file, "--output", tmp_path / "more.jsonl")
    assert run("judge", models / "run/online", *lists, *words) == 2
    assert "with the same corrections" in " ".join(capsys.readouterr().err.split())


def test_earlier_corrections_are_written_again_and_honoured(models, printed, tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    name, text = next(zip(load_dataset(SCENES).text_ids, load_dataset(SCENES).texts))
    earlier = {"do": "fix", "caption": name, "text": "A blue star.", "was": text}
    first.write_text(json.dumps(earlier) + "\n")
    lists = tmp_path / "lists"
    common = ("--data", SCENES, "--corrections", first)
    short = ("--texts", 5, "--images-per-text", 2)
    printed("mine", models / "run/online", *common, *short, "--output", lists)
    asked = (models / "run/online", "--negatives", lists, *common, "--output", second)
    assert "with 1 earlier corrections" in printed("judge", *asked)
    lines = [json.loads(line) for line in second.read_text().splitlines()]
    assert lines[0] == earlier
    assert len(lines) > 1
    both = load_dataset(SCENES, decisions=second)
    assert both.texts[0] == "A blue star."
    assert both.corrections.startswith("1 caption rewritten, ")
    assert torch.equal(both.text_to_image, load_dataset(SCENES).text_to_image)
