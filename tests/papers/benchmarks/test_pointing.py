"""Where the maps of words point: counts by hand, intervals, verdicts, and the ledger's page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import pointing
from benchmarks.pages import table_place
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.similarity_maps import SimilarityMaps, WordMap

DOCS = Path(__file__).parents[3] / "docs"
LEFT, RIGHT, BOTTOM = (0.0, 0.0, 0.4, 0.4), (0.6, 0.0, 1.0, 0.4), (0.0, 0.6, 1.0, 1.0)


def test_hits_and_controls_are_counted():
    words = (WordMap("star", 0, 4, (0.9, 0.1, 0.2)), WordMap("moon", 5, 9, (0.8, 0.1, 0.2)))
    maps = SimilarityMaps("similarity", words, (LEFT, RIGHT, BOTTOM))
    named = [pointing.Noun(0, (0.1, 0.1, 0.5, 0.5)), pointing.Noun(5, (0.7, 0.1, 0.9, 0.3))]
    counts = pointing.pointed(maps, named)
    # the star points to the left, as it should, and so does the moon, which is on the right
    assert counts == {
        "nouns": 2,
        "hits": 1,
        "chance": pytest.approx(2 / 3),
        "reachable": 2,
        "pairs": 2,
        "paired": 1,
        "other": 1,
    }
    alone = pointing.pointed(maps, named[:1])
    assert (alone["pairs"], alone["hits"]) == (0, 1)


def ledger(path: Path, gains: dict[str, int]) -> Path:
    rng, lines = np.random.default_rng(0), []
    pictures = {"dev": 30, "test": 60}

    def digits(low: int, high: int) -> dict[str, str]:
        return {
            split: "".join(map(str, rng.integers(low, high, count)))
            for split, count in pictures.items()
        }

    for name in ("FILIP", "SCAN"):
        fixed = {f"{s} {c}": "6" * n for s, n in pictures.items() for c in ("nouns", "pairs")}
        fixed |= {f"{s} reachable": "5" * n for s, n in pictures.items()}
        fixed |= {f"{s} chance": [2000] * n for s, n in pictures.items()}
        lines.append({"model": name, "seed": -1, **fixed})
    for name in pointing.TITLES:
        for seed in pointing.SEEDS:
            gain = gains.get(name, 0)
            found = {"hits": digits(1 + gain, 4 + gain), "paired": digits(1 + gain, 4 + gain)}
            found["other"] = digits(1, 4)
            stored = {f"{s} {c}": row for c, rows in found.items() for s, row in rows.items()}
            lines.append({"model": name, "seed": seed, **stored})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_a_gain_is_confirmed_and_none_is_open(tmp_path):
    told = pointing.table(ledger(tmp_path / "a.jsonl", {"FILIP": 2}))
    assert told.count("**Confirmed**") == 2
    assert told.count("**Open**") == 2
    assert "**Confirmed**: Nouns of FILIP point to what they name more often than a random" in told
    assert "| FILIP, 8 × 8 patches: similarity |" in told
    assert "| 33.3 |" in told  # chance: 2 of 6
    assert "| 83.3 |" in told  # reachable: 5 of 6


def test_intervals_are_of_seeds_and_pictures():
    hits = np.random.default_rng(0).integers(0, 2, (5, 400)).astype(float)
    mean, low, high = pointing.interval(hits, np.ones_like(hits))
    assert low < mean < high
    assert 2 < high - low < 8
    assert pointing.verdict((-1, -2, -0.5), (-1, -3, -0.1)) == "Refuted"
    assert pointing.verdict((1, 0.5, 2), (1, -0.5, 2)) == "Open"


def test_a_run_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(pointing, "EPOCHS", {"FILIP": 1, "SCAN": 1})
    monkeypatch.setattr(pointing, "WIDTH", 8)
    scenes, path = "scenes:images=30,dev=6,test=6,features=regions", tmp_path / "a.jsonl"
    pointing.run(tmp_path / "runs", path, (2,), scenes)
    lines = pointing.read(path)
    assert [(line["model"], line["seed"]) for line in lines] == [
        ("SCAN", -1),
        ("SCAN", 2),
        ("SCAN similarity", 2),
        ("FILIP", -1),
        ("FILIP", 2),
    ]
    whole = path.read_text()
    pointing.run(tmp_path / "runs", path, (2,), scenes)
    assert path.read_text() == whole
    counts = pointing.shares(lines, "SCAN similarity", "dev")
    assert (counts["hits"] <= counts["nouns"]).all()
    assert (counts["paired"] <= counts["pairs"]).all()


def test_the_seeds_were_never_explored():
    assert 0 not in pointing.SEEDS
    assert len(pointing.SEEDS) >= 5
    data = load_dataset("scenes:images=30,dev=6,test=6,features=regions")["dev"]
    named = [
        noun
        for text, row in zip(data.texts, data.text_to_image.tolist(), strict=True)
        for noun in pointing.nouns(text, pointing.graphs(data)[row])
    ]
    assert named
    assert all(0 <= side <= 1 for noun in named for side in noun.box)


def test_the_page_shows_the_table_of_the_ledger():
    page = (DOCS / "results" / "explain.md").read_text("utf-8")
    _, shown, _ = table_place(page, pointing.START, pointing.END)
    path = DOCS / "evidence" / "pointing.jsonl"
    assert shown.strip() == pointing.table(path)
    seeds = {line["seed"] for line in pointing.read(path) if line["seed"] >= 0}
    assert seeds == set(pointing.SEEDS)


def test_the_page_says_what_the_ledger_says():
    lines = pointing.read(DOCS / "evidence" / "pointing.jsonl")
    page = " ".join((DOCS / "results" / "explain.md").read_text("utf-8").split())
    told = {line["model"]: [] for line in lines if "rsum" in line}
    for line in lines:
        if "rsum" in line:
            told[line["model"]].append(round(line["rsum"]["test"]))
    filip = "{}, {}, {}, {} and {}".format(*told["FILIP"])
    said = f"RSum on test: SCAN {min(told['SCAN'])} to {max(told['SCAN'])}, FILIP {filip}."
    assert said in page
    counts = pointing.shares(lines, "FILIP", "test")
    rates = sorted(
        round(pointing.share(hits, named))
        for hits, named in zip(counts["hits"], counts["nouns"], strict=True)
    )
    worst, *others = rates
    assert "{}, {}, {} and {} % of the nouns of test".format(*others[::-1]) in page
    assert f"**{worst} %, less than chance, in the fifth**" in page
    guide = " ".join((DOCS / "explain.md").read_text("utf-8").split())
    for name in ("SCAN", "FILIP"):
        found = pointing.shares(lines, name, "test")
        assert f"{pointing.share(found['hits'], found['nouns']):.1f} % (" in guide, name
    claimed = "".join(line for line in page.split("- **") if line.startswith("Confirmed"))
    assert claimed.count("Nouns of") == len(pointing.CLAIMS)
