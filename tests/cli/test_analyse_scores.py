from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from analysis_cases import SCENES, dense
from corpus_cases import random_array
from counterfoil.analysis.ndgl import maps
from counterfoil.data.readers import load_dataset
from counterfoil.pipelines.run import DataSource


def margins_of(scores, text_to_image):
    """Margins of images and of texts, line by line."""
    true = text_to_image == torch.arange(len(scores)).unsqueeze(1)
    sides = ((scores, true), (scores.T, true.T))
    return [
        [float(line[mark].max() - line[~mark].max()) for line, mark in zip(lines, marks)]
        for lines, marks in sides
    ]


def test_margins(models, analysed):
    first, second = models / "run/online", models / "pixels"
    shown, page, numbers = analysed("margins", first, second, f"{first}+{second}")
    assert set(numbers["margins"]) == {"online", "pixels", "online + pixels"}
    assert "online + pixels: ensemble of 2 by mean score" in shown
    assert page.count("<svg") == 2
    dataset, scores = dense(second, "test")
    for side, values in zip(("i2t", "t2i"), margins_of(scores, dataset.text_to_image)):
        found = numbers["margins"]["pixels"][side]
        assert found["queries"] == len(values)
        assert found["median"] == pytest.approx(sorted(values)[(len(values) - 1) // 2], abs=1e-5)
        below = 100 * sum(value < 0 for value in values) / len(values)
        assert found["percent_below_0"] == pytest.approx(below)
        inside = [v for v in values if numbers["bins"][0] <= v <= numbers["bins"][-1]]
        assert sum(found["counts"]) == pytest.approx(len(inside), abs=1)
    assert len(numbers["bins"]) == 49


def test_quantiles(models, analysed):
    shown, page, numbers = analysed("quantiles", models / "pixels", "--top", "4", "--level", "0.1")
    dataset, scores = dense(models / "pixels", "test")
    true = dataset.text_to_image == torch.arange(len(dataset)).unsqueeze(1)
    wrong = scores.masked_fill(true, -torch.inf)
    by_name = {(one["of"], one["to"]): one for one in numbers["similarities"]}
    for what, lines in (("texts", wrong), ("images", wrong.T)):
        top = lines.topk(4, 1).values
        found = by_name[(f"{what}, top 4", "query")]
        assert found["count"] == top.numel()
        share = 100 * float((top < 0.1).double().mean())
        assert found["percent_below"] == pytest.approx(share, abs=0.5)
        assert found["quantiles"][-1] == pytest.approx(float(top.max()), abs=1e-5)
        hardest = by_name[(f"{what}, hardest", "query")]
        assert hardest["median"] == pytest.approx(
            float(top[:, 0].sort().values[(len(top) - 1) // 2])
        )
        assert by_name[(what, "hardest negative")]["count"] == 3 * len(top)
    assert "the 4 hardest negatives of each query" in shown
    assert "bag" not in shown
    assert page.count("<svg") == 2


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_map(models, analysed, method):
    few = ("--negatives", "12", "--seed", "3", "--method", method)
    shown, page, numbers = analysed("map", models / "pixels", *few)
    assert "sampling seed 3" in shown
    assert [one["direction"] for one in numbers["maps"]] == ["i2t", "t2i"]
    dataset, scores = dense(models / "pixels", "test")
    for one in numbers["maps"]:
        asks_image = one["direction"] == "i2t"
        ids = dataset.image_ids if asks_image else dataset.texts
        row = ids.index(one["query"])
        line = scores[row] if asks_image else scores[:, row]
        mark = (
            dataset.text_to_image == row
            if asks_image
            else torch.arange(6) == dataset.text_to_image[row]
        )
        names = dataset.text_ids if asks_image else dataset.image_ids
        best = line.masked_fill(mark, -torch.inf).sort(descending=True, stable=True).indices
        many = min(12, int((~mark).sum()))
        assert one["wrong"] == [names[place] for place in best[:many].tolist()]
        assert one["true"] == [names[place] for place in mark.nonzero().flatten().tolist()]
        assert len(one["points"]) == 1 + len(one["true"]) + len(one["wrong"])
        assert one["cosines"]["to_true"] == pytest.approx(float(line[mark].mean()), abs=1e-5)
    assert page.count("<svg") == 2
    assert "data:image/" in page


def test_a_map_without_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(ValueError, match=r"counterfoil\[maps\]"):
        maps("nowhere", DataSource("scenes"))


def test_map_of_given_queries(models, analysed):
    dataset = load_dataset(SCENES).split("test")
    asked = ("--query", dataset.texts[7], "--query", dataset.image_ids[2])
    pair = f"{models / 'pixels'}+{models / 'run/online'}"
    shown, page, numbers = analysed("map", pair, *asked)
    found = [(one["direction"], one["query"]) for one in numbers["maps"]]
    assert found == [("t2i", dataset.texts[7]), ("i2t", dataset.image_ids[2])]
    assert numbers["seed"] is None
    assert "sampling seed" not in shown
    assert f"The text “{dataset.texts[7]}” and its nearest images" in page


def test_vectors_without_pictures(analysed, tmp_path):
    data = tmp_path / "vectors"
    data.mkdir()
    np.save(data / "images.npy", random_array(6, 8))
    np.save(data / "texts.npy", random_array(18, 8))
    for what in ("margins", "quantiles", "map"):
        analysed(what, "vectors", "--split", "all", data=data, name=what)
