"""Rankings as TREC runs: recalls counted from the files are those of `evaluate`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import export_cases
from counterfoil.core.types import Pairs
from counterfoil.data.scenes import scenes
from counterfoil.evaluation.evaluate import evaluate
from counterfoil.export.rankings import export_rankings
from counterfoil.model import load_model
from recipes_cases import pixel_model, run

DIRECTIONS = {"i2t": "image-to-text", "t2i": "text-to-image"}


def read(folder, direction) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """Documents of each query by falling score, as tools sort them, and the true ones."""
    scored: dict[str, list[tuple[float, str]]] = {}
    for line in (folder / f"{direction}.run").read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        scored.setdefault(query, []).append((float(score), document))
    true: dict[str, set[str]] = {}
    for line in (folder / f"{direction}.qrels").read_text().splitlines():
        query, _, document, grade = line.split()
        assert grade == "1"
        true.setdefault(query, set()).add(document)
    ranked = {query: [d for _, d in sorted(rows, reverse=True)] for query, rows in scored.items()}
    return ranked, true


@pytest.fixture
def models(tmp_path):
    first, second = (load_model(pixel_model(tmp_path / name)) for name in ("a", "b"))
    with torch.no_grad():
        for parameter in second.model.parameters():
            parameter.mul_(1.5)
    return [first, second]


def test_recalls_of_the_files_are_those_of_evaluate(models, tmp_path):
    data = scenes(images=20, dev=2, test=12).split("test")
    judged = Pairs(torch.tensor([0, 4]), torch.tensor([12, 3]))
    data = replace(data, extra_positives=judged)
    lines = export_rankings(models, tmp_path / "out", data, depth=10)
    queries = len(data.texts)
    assert lines[0] == "image-to-text.run: 120 ranked"
    assert lines[3] == f"text-to-image.qrels: {queries + 2} true"
    expected = evaluate(models, data).to_dict()
    for side, direction in DIRECTIONS.items():
        ranked, true = read(tmp_path / "out", direction)
        assert true.keys() == ranked.keys()
        for k in (1, 5, 10):
            hits = [bool(true[query] & set(ranked[query][:k])) for query in ranked]
            assert 100 * sum(hits) / len(hits) == pytest.approx(expected[side][f"r{k}"])


def test_texts_and_images_without_an_answer_are_no_queries(models, tmp_path):
    """Image a1 has no caption, and the last caption is nobody's; both are ranked."""
    data = export_cases.dataset(tmp_path / "photos")
    export_rankings(models[:1], tmp_path / "out", data)
    ranked, _ = read(tmp_path / "out", "text-to-image")
    assert list(ranked) == data.text_ids[:6]
    assert all(set(row) == {"a%200%25", "a1", "a2", "a3"} for row in ranked.values())
    ranked, true = read(tmp_path / "out", "image-to-text")
    assert true == {
        "a%200%25": {"a0#0", "a0#1"},
        "a2": {"a2#0"},
        "a3": {"a3#0", "a3#1", "a3#2"},
    }
    assert len(ranked["a2"]) == 7


def test_on_the_command_line(models, capsys, tmp_path):
    asked = ("export", tmp_path / "a", "--to", "trec", "--data", "scenes:images=36")
    out = tmp_path / "out"
    assert run(*asked, "--output", out, "--most", 2, "--split", "dev") == 0
    assert (out / "image-to-text.run").read_text().count(" Q0 ") == 2 * len(
        scenes(images=36).split("dev")
    )
    capsys.readouterr()
    assert run(*asked, "--output", out) == 2
    assert "exists and is left alone" in capsys.readouterr().err
