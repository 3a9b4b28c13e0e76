"""Folders of sentence-transformers go through every verb, from the folder to a search."""

from __future__ import annotations

import json

import pytest

import sentence_transformer_cases as cases
from counterfoil.cli import main
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import split_words

DATA = "scenes:images=36"
FEW = "scenes:images=12"  # a cross-encoder reads every pair
LISTS = ("--texts-per-image", "5", "--images-per-text", "3")
SHORT = ("--epochs", "1", "--batch-size", "16")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    load_dataset(DATA).pictures.open(0).save("seen.png")

    def called(*words):
        assert main([str(word) for word in words]) == 0, words
        return capsys.readouterr().out

    return called


def words():
    return sorted({word for text in load_dataset(DATA).texts for word in split_words(text)})


def hits(written):
    return [hit["id"] for hit in json.loads(written)["results"]]


def walked(run, folder, way):
    """Load, evaluate, mine, train on the lists, index, search and explain."""
    caption = load_dataset(DATA).texts[0]
    assert "R@10" in run("evaluate", folder, "--data", DATA)
    run("mine", folder, "--data", DATA, "--output", "lists", *LISTS)
    start = ("train", "triplet", "--model", folder, "--tune", way, "--data", DATA)
    run(*start, "--negatives", "lists", "--output", "run", *SHORT)
    assert "R@10" in run("evaluate", "run/best", "--data", DATA)
    run("index", "run/best", DATA, "--output", "index")
    assert len(hits(run("search", "index", caption, "--json"))) == 10
    assert len(hits(run("search", "index", "seen.png", "--json"))) == 10
    assert "gain without it" in run("explain", "run/best", "seen.png", caption)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "way"), [("clip", "full"), ("llava", "lora")])
def test_a_dense_embedder(run, tmp_path, kind, way):
    walked(run, cases.dense(tmp_path / "model", words(), kind), way)


@pytest.mark.slow
def test_a_multi_vector_embedder(run, tmp_path):
    walked(run, cases.multi(tmp_path / "model", words()), "full")


@pytest.mark.slow
def test_a_cross_encoder_judges_reranks_and_is_trained(run, tmp_path):
    judge = cases.judge(tmp_path / "judge", words())
    embedder = cases.dense(tmp_path / "model", words())
    caption = load_dataset(FEW).texts[0]
    assert "R@10" in run("evaluate", judge, "--data", FEW)
    run("mine", embedder, "--data", FEW, "--output", "lists", *LISTS)
    run("judge", judge, "--negatives", "lists", "--data", FEW, "--output", "corrections.jsonl")
    start = ("train", "triplet", "--model", judge, "--data", FEW, "--output", "run")
    run(*start, "--epochs", "1", "--batch-size", "4")
    run("index", embedder, FEW, "--output", "index")
    orders = []
    for model in (None, judge, "run/tuned"):
        rerank = () if model is None else ("--rerank", model, "--depth", "20")
        orders.append(hits(run("search", "index", caption, *rerank, "--json")))
    assert orders[0] != orders[1]
    assert [len(order) for order in orders] == [10, 10, 10]
    assert "gain without it" in run("explain", "run/tuned", "seen.png", caption)
