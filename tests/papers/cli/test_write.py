from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import sentence_cases
from analysis_cases import REGIONS, reader
from counterfoil.data.caption_edits import (
    replace_nouns,
    replace_numbers,
    replace_prepositions,
    swap_noun_phrases,
)
from counterfoil.data.phrases import parse_sentence
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import is_true
from counterfoil.negatives.generated import GeneratedStore
from counterfoil.papers.tags import generator
from recipes_cases import run

PAGE = Path(__file__).parents[3] / "docs" / "generated.md"
SCENES = "scenes:images=36"


def test_what_is_written_is_what_is_said(printed, tmp_path):
    shown = printed(
        "papers", "write", "rules", SCENES, "--output", tmp_path / "w", "--set", "most=2"
    )
    train = load_dataset(SCENES).split("train")
    store = GeneratedStore.open(tmp_path / "w", fingerprint=train.fingerprint)
    foils = list(store.foils())
    assert f"{len(foils):,} foils of {len(train.texts)} captions" in shown
    assert all(f"{count:,} {kind}" in shown for kind, count in store.manifest.counts.items())
    assert store.manifest.split == "train"
    assert store.manifest.settings["most"] == 2
    printed("papers", "write", "rules", SCENES, "--output", tmp_path / "again", "--set", "most=2")
    first, again = (tmp_path / name / "foils.jsonl" for name in ("w", "again"))
    assert first.read_bytes() == again.read_bytes()


def test_nouns_of_any_split_are_the_training_splits(printed, tmp_path):
    printed(
        "papers",
        "write",
        "rules",
        SCENES,
        "--output",
        tmp_path / "w",
        "--split",
        "test",
        "--kind",
        "noun",
    )
    train = " ".join(load_dataset(SCENES).split("train").texts).lower()
    rows = [json.loads(line) for line in (tmp_path / "w/foils.jsonl").read_text().splitlines()]
    assert rows
    assert {row["kind"] for row in rows} == {"noun"}
    assert all(row["changed"][-1]["new"].lower() in train for row in rows)


def test_few_foils_of_scenes_are_true(printed, tmp_path):
    printed("papers", "write", "rules", "scenes:images=100", "--output", tmp_path / "w")
    train = load_dataset("scenes:images=100").split("train")
    seen = dict(zip(train.image_ids, graphs(train)))
    store = GeneratedStore.open(tmp_path / "w", fingerprint=train.fingerprint)
    for kind, most in (("noun", 0.02), ("numeral", 0.03), ("relation", 0.2)):
        found = [is_true(f.foil, seen[f.image]) for f in store.foils() if f.kind == kind]
        decided = [true for true in found if true is not None]
        assert len(decided) > 50
        assert sum(decided) < most * len(decided)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return reader(tmp_path_factory.mktemp("reader") / "model")


FEW = ("--set", "masks=2", "--set", "refills=2", "--set", "keep=2")


def tags(model, out, *more):
    return "papers", "write", "tags", model, REGIONS, "--output", out, *FEW, *more


def test_a_model_writes_what_is_said(printed, model, tmp_path):
    shown = printed(*tags(model, tmp_path / "w", "--split", "test", "--seed", 4))
    test = load_dataset(REGIONS).split("test")
    store = GeneratedStore.open(tmp_path / "w", fingerprint=test.fingerprint)
    foils = list(store.foils())
    assert f"{len(foils):,} foils of {len(test.texts)} captions" in shown
    assert all(f"{count:,} {kind}" in shown for kind, count in store.manifest.counts.items())
    assert (store.manifest.split, store.manifest.seed) == ("test", 4)
    assert store.manifest.writer == "UNITER (TAGS)"
    assert store.manifest.settings["rules"] == ("captions",)
    assert {foil.writer for foil in foils} == {"tags"}
    assert all(set(foil.scores) == {"foil", "caption"} for foil in foils)


def test_filters_are_named(printed, model, tmp_path):
    more = ("--split", "dev", "--rule", "captions", "--rule", "lemmas", "--guide", model)
    printed(*tags(model, tmp_path / "w", *more, "--set", "slack=0.01", "--set", "singles=only"))
    settings = json.loads((tmp_path / "w" / "manifest.json").read_text())["settings"]
    assert settings["rules"] == ["captions", "lemmas"]
    assert settings["guide_checkpoint"] == settings["checkpoint"]
    assert (settings["slack"], settings["singles"]) == (0.01, "only")
    rows = [json.loads(line) for line in (tmp_path / "w/foils.jsonl").read_text().splitlines()]
    assert all(row["scores"]["foil"] < row["scores"]["caption"] - 0.009 for row in rows)
    assert "encoder" not in settings
    printed(*tags(model, tmp_path / "n", "--split", "dev", "--rule", "none"))
    assert json.loads((tmp_path / "n" / "manifest.json").read_text())["settings"]["rules"] == []


def test_an_encoder_is_asked_too(printed, model, tmp_path):
    pytest.importorskip("sentence_transformers")
    folder = sentence_cases.encoder(tmp_path / "encoder", ["a", "red", "circle", "square", "and"])
    some = ("--split", "dev", "--set", "masks=3", "--set", "refills=3")
    printed(*tags(model, tmp_path / "all", *some))
    printed(*tags(model, tmp_path / "none", *some, "--encoder", folder, "--set", "slack=3"))
    printed(*tags(model, tmp_path / "few", *some, "--encoder", folder))
    settings = json.loads((tmp_path / "few" / "manifest.json").read_text())["settings"]
    assert settings["encoder"] == folder
    left = [len((tmp_path / n / "foils.jsonl").read_text().split("\n")) for n in ("all", "few")]
    assert left[0] > left[1] > 1
    assert not (tmp_path / "none" / "foils.jsonl").read_text()


def test_stopped_and_gone_on_with(printed, model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generator, "CAPTIONS", 4)
    printed(*tags(model, tmp_path / "whole", "--split", "dev"))
    assert run(*tags(model, tmp_path / "w", "--split", "dev", "--minutes", 0.01)) in (0, 3)
    if not (tmp_path / "w").exists():
        assert "add --resume to continue" in " ".join(capsys.readouterr().err.split())
        assert run(*tags(model, tmp_path / "w", "--split", "dev", "--resume", "--seed", 1)) == 2
        assert "begun otherwise: seed is" in capsys.readouterr().err
        printed(*tags(model, tmp_path / "w", "--split", "dev", "--resume"))
    found, whole = (tmp_path / name / "foils.jsonl" for name in ("w", "whole"))
    assert found.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_foils_of_the_page_are_the_rules():
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    (_, caption), *shown = rows
    found = parse_sentence(caption)
    made = {
        "noun": list(replace_nouns(found, lambda word: ("bird",))),
        "numeral": list(replace_numbers(found)),
        "relation": [*swap_noun_phrases(found), *replace_prepositions(found)],
    }
    assert {kind for kind, _ in shown} == set(made)
    for kind, foils in shown:
        for foil in foils.replace("*", "").split("   "):
            assert foil in [edit.apply(caption) for edit in made[kind]]
