"""``counterfoil explain`` on one caption and on a data set."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

import explain_cases as cases
from corpus_cases import write_picture
from counterfoil.evaluation import explain
from counterfoil.pipelines import plan
from recipes_cases import run


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    return cases.saved(tmp_path_factory.mktemp("models") / "words")


@pytest.fixture
def explained(capsys, tmp_path, monkeypatch):
    """What was printed in one line, the page, and the JSON or its lines."""
    monkeypatch.setattr(plan.console, "_width", 200)

    def explained(*words: object):
        page, out = tmp_path / "page.html", tmp_path / "out.json"
        capsys.readouterr()
        code = run("explain", *words, "--output", page, "--json", out)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        lines = out.read_text().splitlines()
        plain = json.loads(out.read_text()) if lines[0] == "{" else [*map(json.loads, lines)]
        return " ".join(shown.out.split()), html.unescape(page.read_text()), plain

    return explained


def test_one_caption(words, explained):
    caption = "A blue star [bold]above a square."
    told, page, plain = explained(
        words,
        cases.IMAGE,
        caption,
        "--data",
        cases.SCENES,
        "--threshold",
        0.45,
        "--alternatives",
        2,
    )
    assert plain["caption"] == caption
    assert plain["image"] == cases.IMAGE
    doubted = [word for word in plain["words"] if word["doubt"] >= 0.45]
    assert doubted
    for word in plain["words"]:
        assert len(word["corrections"]) == (2 if word in doubted else 0)
        shown = f"{100 * word['doubt']:.0f} %"
        assert (f"{word['text']} [{shown}]" in told) == (word in doubted)
        assert f" {word['text']} {shown}" in told
    assert plain["corrected"] is not None
    assert f"score {plain['corrected']['score']:.3f}" in told
    assert page.count("data:image/") == 1
    assert "<ins>" in page
    assert "has no head" not in told + page


def test_a_model_without_heads(models, explained):
    told, page, plain = explained(models / "pixels", _picture(models), "a red dog")
    assert "no head that doubts or corrects words" in told
    assert "gain without it" in told
    assert all(word["doubt"] is None for word in plain["words"])
    assert "no probability that a word is wrong" in page


def test_a_data_set_is_ranked(words, explained):
    told, page, plain = explained(
        words, "--data", cases.SCENES, "--split", "dev", "--top", 3, "--threshold", 0.4
    )
    dataset = cases.load_dataset(cases.SCENES).split("dev")
    assert {line["id"] for line in plain} == set(dataset.text_ids)
    worst = [max(word["doubt"] for word in line["words"]) for line in plain]
    assert worst == sorted(worst, reverse=True)
    assert [line["suspicion"] for line in plain] == worst
    assert page.count("<article") == 3
    assert page.index(plain[0]["image"]) <= page.index(plain[2]["image"])
    share = sum(doubt >= 0.4 for doubt in worst)
    assert f"{share} of {len(worst)} captions" in told
    assert f"{len(worst)} captions; greatest doubt first" in told


def test_captions_of_pictures_are_ranked_by_score(models, explained, tmp_path):
    write_picture(tmp_path / "a.png")
    rows = [{"image": "a.png", "captions": ["a red dog", "the snow", "dog " * 70]}]
    cases.write_lines(tmp_path / "captions.jsonl", rows)
    data = ("--data", tmp_path, "--split", "all")
    told, page, plain = explained(models / "pixels", *data)
    scores = [line["score"] for line in plain]
    assert scores == sorted(scores)
    assert page.count("data:image/") == 3
    assert "3 captions; lowest score first; 1 too long for the model" in told
    assert "too long: the model reads it up to" in page
    (cut,) = (line for line in plain if line["unread"] is not None)
    assert cut["caption"].startswith("dog dog")


def test_a_broken_run_leaves_nothing(models, tmp_path):
    write_picture(tmp_path / "a.png")
    rows = [{"image": "a.png", "captions": ["a red star", " "]}]
    cases.write_lines(tmp_path / "captions.jsonl", rows)
    before = sorted(tmp_path.iterdir())
    data = ("--data", tmp_path, "--split", "all")
    out = ("--output", tmp_path / "p.html", "--json", tmp_path / "o.jsonl")
    assert run("explain", models / "pixels", *data, *out) == 2
    assert sorted(tmp_path.iterdir()) == before


def test_a_stopped_audit_goes_on(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(explain, "CAPTION_BATCH", 7)
    data = ("--data", cases.SCENES, "--split", "dev", "--top", 2)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert run("explain", words, *data, "--json", whole) == 0
    shown = capsys.readouterr().out
    made, explain_pairs = [], explain.explain_pairs

    def stopping(*given):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(given[2])
        return explain_pairs(*given)

    monkeypatch.setattr(explain, "explain_pairs", stopping)
    run("explain", words, *data, "--json", out)
    assert not out.exists()
    parts = tmp_path / "out.jsonl.partial"
    assert len(list(parts.iterdir())) == 3
    monkeypatch.setattr(
        explain, "explain_pairs", lambda *given: made.append(given[2]) or explain_pairs(*given)
    )
    capsys.readouterr()
    for more, why in (
        ((), "add --resume to continue"),
        (("--resume", "--threshold", 0.3), "begun otherwise: threshold is"),
        (("--resume", "--split", "test"), "begun otherwise: data is"),
    ):
        assert run("explain", words, *data, "--json", out, *more) == 2
        assert why in " ".join(capsys.readouterr().err.split())
    assert len(made) == 2
    assert run("explain", words, *data, "--json", out, "--resume") == 0
    assert capsys.readouterr().out.replace("out.jsonl", "whole.jsonl") == shown
    assert out.read_bytes() == whole.read_bytes()
    assert not parts.exists()
    dataset = cases.load_dataset(cases.SCENES).split("dev")
    assert sorted(text for part in made for text in part) == sorted(dataset.texts), "each once"


def _picture(models: Path) -> Path:
    path = models / "picture.png"
    if not path.exists():
        write_picture(path)
    return path
