from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import recipes_cases
from analysis_cases import REGIONS, reader
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.papers.aoq.figures import query_scores
from counterfoil.papers.tags.captions import draw_captions, score_captions
from counterfoil.pipelines.scorers import open_scorers, score_unit

ASKED = ("--anchors", "5", "--seed", "4")
FEW = (*ASKED, "--masks", "3", "--refills", "3", "--keep", "3")


@pytest.fixture(scope="module")
def uniters(tmp_path_factory) -> Path:
    """Models that read words: "first", "second", and "mute", which fills and scores only."""
    root = tmp_path_factory.mktemp("uniters")
    reader(root / "first")
    reader(root / "second", seed=1)
    reader(root / "mute", outputs=("rank", "fill"))
    return root


@pytest.fixture(scope="module")
def stores(uniters, tmp_path_factory) -> Path:
    """Foils of the test split: "rules", and "tags", written by the second model."""
    root = tmp_path_factory.mktemp("stores")
    few = ("--set", "masks=2", "--set", "refills=3", "--set", "keep=2")
    data = (REGIONS, "--split", "test")
    assert (
        recipes_cases.run(
            "papers", "write", "rules", *data, "--set", "most=2", "--output", root / "rules"
        )
        == 0
    )
    wrote = ("papers", "write", "tags", uniters / "second", *data, *few, "--output", root / "tags")
    assert recipes_cases.run(*wrote) == 0
    return root


def test_triples(uniters, analysed):
    first, second = uniters / "first", uniters / "second"
    few = (*FEW, "--batch", "6", "--level", "0.01", "--judge", second)
    shown, _, numbers = analysed("triples", first, *few, data=REGIONS, figures=2)
    assert "a caption each of 5 images" in shown
    found = {(one["scored_by"], one["negatives"]): one for one in numbers["triples"]}
    assert set(found) == {
        (name, kind)
        for name in ("first", "second")
        for kind in ("batch of 6", "whole set", "written")
    }
    dataset = load_dataset(REGIONS).split("test")
    rows = draw_captions(dataset, 5, seed=4)
    member = load_model(first).embed(dataset)
    scores = query_scores([member], "i2t", dataset.text_to_image[rows]) / score_unit([member])
    whole = found[("first", "whole set")]
    positive = scores.gather(1, rows[:, None])[:, 0]
    assert whole["positive"] == pytest.approx(positive.tolist(), abs=1e-6)
    own = dataset.text_to_image == dataset.text_to_image[rows][:, None]
    hardest = scores.masked_fill(own, -torch.inf).amax(1)
    assert whole["negative"] == pytest.approx(hardest.tolist(), abs=1e-6)
    gaps = [n - p for p, n in zip(whole["positive"], whole["negative"])]
    assert whole["percent_above"]["value"] == pytest.approx(20 * sum(gap > 0 for gap in gaps))
    assert whole["percent_far_below"]["value"] == pytest.approx(20 * sum(g <= -0.01 for g in gaps))
    batch = found[("first", "batch of 6")]["negative"]
    assert all(one <= best + 1e-6 for one, best in zip(batch, hardest))
    again = analysed("triples", first, *few, data=REGIONS, name="again")[2]
    assert again["triples"] == numbers["triples"]


def test_triples_of_stored_captions(uniters, stores, analysed):
    given = (uniters / "mute", "--written", stores / "tags", *ASKED, "--batch", "4")
    shown, _, numbers = analysed("triples", *given, data=REGIONS)
    assert f"written of {stores / 'tags'}" in shown
    foils: dict[str, list[str]] = {}
    for line in (stores / "tags/foils.jsonl").read_text().splitlines():
        one = json.loads(line)
        foils.setdefault(one["text"], []).append(one["foil"])
    dataset = load_dataset(REGIONS).split("test")
    rows = draw_captions(dataset, 5, seed=4).tolist()
    scorer = open_scorers([str(uniters / "mute")])[0]
    wanted = []
    for row in rows:
        texts = foils.get(dataset.text_ids[row], [])
        if texts:
            image = dataset.text_to_image[row].repeat(len(texts))
            wanted.append(float(score_captions(scorer, dataset, image, texts).max()))
    found = numbers["triples"][-1]
    assert found["negatives"] == "written"
    assert found["negative"] == pytest.approx(wanted, abs=1e-6)
    assert found["left_out"] == 5 - len(wanted)


def test_discrimination(uniters, stores, analysed):
    first, second = uniters / "first", uniters / "second"
    told = (first, second, "--foils", stores / "tags", "--foils", stores / "rules", *ASKED)
    shown, _, numbers = analysed("discrimination", *told, "--no-rules", data=REGIONS, figures=3)
    found = numbers["foils"]
    kinds = {"rules, noun", "rules, numeral", "rules, relation"}
    assert {"tags", "random captions"} <= set(found) <= {"tags", "random captions", *kinds}
    assert all(set(models) == {"first", "second", "blind"} for models in found.values())
    assert "blind: 3-gram model of" in shown
    dataset = load_dataset(REGIONS).split("test")
    rows = draw_captions(dataset, 5, seed=4).tolist()
    names = {dataset.text_ids[row]: row for row in rows}
    lines = [json.loads(ln) for ln in (stores / "tags/foils.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["text"] in names]
    image = dataset.text_to_image[[names[line["text"]] for line in lines]]
    scorer = open_scorers([str(second)])[0]
    true = score_captions(scorer, dataset, image, [line["caption"] for line in lines])
    false = score_captions(scorer, dataset, image, [line["foil"] for line in lines])
    right = (true > false).tolist()
    mine = found["tags"]["second"]
    assert mine["pairs"]["value"] == pytest.approx(100 * sum(right) / len(right))
    texts = [line["text"] for line in lines]
    first_ones = [won for n, won in enumerate(right) if texts.index(texts[n]) == n]
    assert mine["hardest"]["value"] == pytest.approx(100 * sum(first_ones) / len(first_ones))
    assert found["random captions"]["second"]["hardest"] is None


def test_discrimination_of_what_is_written_now(uniters, models, analysed):
    data = f"{REGIONS}"
    asked_of = (uniters / "first", uniters / "mute")
    numbers = analysed("discrimination", *asked_of, *FEW, "--others", "0", data=data)[2]
    names = set(numbers["foils"])
    assert {"by first", "by mute"} <= names
    assert any(name.startswith("rules") for name in names)
    assert "random captions" not in names
    by = analysed(
        "discrimination", models / "pixels", "--writer", uniters / "first", "--no-rules", *FEW,
        data=data, name="pixels",
    )[2]  # fmt: skip
    assert set(by["foils"]) == {"by first", "random captions"}
    written = numbers["foils"]["by first"]["blind"]
    assert by["foils"]["by first"]["blind"]["pairs"]["count"] == written["pairs"]["count"]


def test_words(uniters, analysed):
    shown, _, numbers = analysed("words", uniters / "first", *FEW, data=REGIONS, figures=3)
    found = {(one["task"], one["of"]): one for one in numbers["readings"]}
    wrong, right = (found[("doubt", f"{side} tokens")] for side in ("wrong", "right"))
    every = found[("doubt", "tokens")]
    assert every["all"]["count"] == wrong["all"]["count"] + right["all"]["count"]
    hits = sum(one["all"]["value"] * one["all"]["count"] for one in (wrong, right))
    assert every["all"]["value"] == pytest.approx(hits / every["all"]["count"])
    assert every["idle"] == pytest.approx(100 * right["all"]["count"] / every["all"]["count"])
    assert found[("correct", "tokens that were hidden")]["hardest"]["count"] > 0
    assert "captions written for 5 captions" in shown


def test_words_that_another_wrote(uniters, analysed):
    given = (uniters / "first", "--writer", uniters / "mute")
    shown, _, numbers = analysed("words", *given, *FEW, data=REGIONS)
    assert "written by mute" in shown
    assert numbers["writer"] == str(uniters / "mute")


def test_difficulty(analysed, tmp_path):
    for name, filler in (("own", None), ("static", "pretrained")):
        folder = tmp_path / "run" / name
        folder.mkdir(parents=True)
        lines = [
            {"step": step, "written_above": 50.0, "written_gap": 0.1, "loss_written": 0.2}
            | {f"written_gap_p{level}": level / 100 for level in (10, 25, 50, 75, 90)}
            for step in (10, 20, 30)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(ln) + "\n" for ln in lines))
        sources = [{"filler": filler}] if filler else []
        stage = {"name": name, "sources": sources, "plan": {"seed": 3}}
        note = {"kind": "train", "state": "done", "stage": stage, "data": {"name": "scenes"}}
        (tmp_path / "run" / f"{name}.json").write_text(json.dumps(note))
    (tmp_path / "run" / "pretrained").mkdir()
    (tmp_path / "run" / "pretrained" / "metrics.jsonl").write_text('{"step": 1, "loss": 1}\n')
    shown, _, numbers = analysed("difficulty", tmp_path / "run", data=None, figures=3)
    found = {one["training"]: one for one in numbers["trainings"]}
    assert set(found) == {"own", "static"}
    assert found["own"]["writer"] == "dynamic"
    assert found["static"]["writer"] == "static: pretrained"
    assert found["own"]["last"]["percent_above"]["value"] == 50
    assert "seed 3" in shown
