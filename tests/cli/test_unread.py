"""No option is taken and left unread, and decisions are honoured wherever data are read."""

from __future__ import annotations

import pytest

from cli_cases import VERBS
from counterfoil.cli import main

SPOKEN = {
    "plan --set online.seed=1": ("--set is", "with a recipe"),
    "export a --to hf --output b --data scenes": ("--data is", "with negatives", "a holds none"),
    "export a --to hf --output b --split dev --images p": ("--images and --split are", "them out"),
    "export a --to hf --output b --most 2 --features f": ("--features and --most", "negatives"),
    "export a --to hf --output b --corrections d": ("--corrections is", "leave it out"),
    "report a --images p": ("--images is", "with --data"),
    "report a --features p --corrections d": ("--features and --corrections are", "with --data"),
    "interpolate a b --output c --alpha 1 --images p": ("--images is", "with --data"),
    "interpolate a b --output c --alpha 1 --corrections p": ("--corrections is", "with --data"),
    "train vsepp --tune full --written w": ("--tune and --written are", "with --model"),
    "mine a --output b --proposals 3": ("--proposals is", "with --propose"),
    "audit scenes --output a --split dev": ("--split is", "with --model or --explainer"),
    "audit scenes --output a --alike 0.5": ("--alike is", "with --negatives"),
    "sweep --seed 1 --dry": ("--seed and --dry are", "with a recipe"),
    "sweep demo --over *.seed=1,2 --seed 3": ("--seed is", "with --draw"),
    "sweep demo --over *.seed=1,2 --dry --data x --test-best": (
        "--data and --test-best are",
        "without --dry",
    ),
    "write rules scenes --output a --kind numeral --synonyms wordnet": ("--synonyms is", "nouns"),
    "write tags a scenes --output b --slack 0.1": ("--slack is", "with --guide"),
    "explain a b c --resume --top 3": ("--top and --resume are", "with --data alone"),
    "explain a b c --images p": ("--images is", "with --data"),
    "explain a b c --data scenes --split dev": ("--split is", "with --data alone"),
    "explain a --corrections d": ("--corrections is", "with --data"),
    "index --half --backend milvus": ("--backend and --half are", "with a model"),
    "index --output a --delete b --split dev": ("--split is", "with a model and data"),
    "serve a --images p": ("--images is", "with --data"),
    "serve a b --features p --corrections d": ("--features and --corrections are", "with --data"),
    "foils a scenes --examples 3": ("--examples is", "with --output"),
    "foils a b.json --split dev": ("--split is", "with foils of scenes"),
    "foils a scenes --blind b.txt --corrections d": ("--corrections is", "with --blind and data"),
    "foils a scenes --images p": ("scenes renders its own pictures", "--images"),
    "evaluate vectors --data scenes:images=12 --images p": ("has its own pictures", "--images p"),
    "analyse map a --output c.html --query d --count 2 --seed 1": (
        "--count and --seed are",
        "--query",
    ),
    "analyse triples a --output c.html --written w --masks 3": ("--masks is", "without --written"),
    "analyse discrimination a --output c.html --foils w --no-rules --keep 3": (
        "--keep is",
        "--writer",
    ),
    "analyse discrimination a --output c.html --foils w --masks 3": ("--masks is", "--writer"),
    "analyse true-rate a --output c.html --slack 0.1": ("--slack is", "with --guide"),
}


@pytest.mark.parametrize("line", SPOKEN)
def test_what_nothing_would_read_is_refused(line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    for fragment in SPOKEN[line]:
        assert fragment in error
    assert not list(tmp_path.iterdir())


def test_what_counts_is_that_it_was_typed_not_what_it_says(capsys):
    assert main(["export", "a", "--to", "hf", "--output", "b", "--split", "train"]) == 2
    assert "--split is read only with negatives" in capsys.readouterr().err


def reads_data(command) -> bool:
    names = {parameter.name for parameter in command.params}
    return ("images" in names and "data" in {*names, "source"}) or "blind" in names


WITH_DATA = [words for words, command in VERBS.items() if reads_data(command)]


def test_verbs_that_read_data_are_many():
    assert len(WITH_DATA) > 25


@pytest.mark.parametrize("words", WITH_DATA, ids=" ".join)
def test_every_verb_that_reads_data_takes_decisions(words):
    found = [one for one in VERBS[words].params if one.name == "corrections"]
    assert len(found) == 1
    assert (
        found[0].help == "Corrections from an audit; default `corrections.jsonl` beside the data."
    )
