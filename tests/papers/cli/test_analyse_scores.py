from __future__ import annotations

import pytest

from analysis_cases import SCENES
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.papers.ndgl.figures import (
    margins,
    negative_similarities,
    neighbourhood,
    share_below,
)
from counterfoil.scoring.encode import EmbeddedDataset


def embedded(model: object) -> tuple[ImageTextDataset, list[EmbeddedDataset]]:
    """The test split, and a model's encodings of it."""
    dataset = load_dataset(SCENES).split("test")
    return dataset, [load_model(str(model)).embed(dataset)]


def test_margins(models, analysed):
    first, second = models / "run/online", models / "pixels"
    shown, _, numbers = analysed("margins", first, second, f"{first}+{second}", figures=2)
    assert set(numbers["margins"]) == {"online", "pixels", "online + pixels"}
    assert "online + pixels: ensemble of 2 by mean score" in shown
    dataset, members = embedded(second)
    for side, values in margins(members, dataset.text_to_image).items():
        found, values = numbers["margins"]["pixels"][side], values[~values.isnan()]
        assert found["queries"] == len(values)
        assert found["median"] == float(values.median())
        assert found["percent_below_0"] == share_below(values, 0)
        assert sum(found["counts"]) == pytest.approx(len(values), abs=2)
    assert len(numbers["bins"]) == 49


def test_quantiles(models, analysed):
    shown, _, numbers = analysed(
        "quantiles", models / "pixels", "--top", "4", "--level", "0.1", figures=2
    )
    dataset, members = embedded(models / "pixels")
    by_name = {(one["of"], one["to"]): one for one in numbers["similarities"]}
    sides = negative_similarities(members, dataset.text_to_image, top=4)
    for what, (hardest, top, between) in sides.items():
        found = by_name[(f"{what}, top 4", "query")]
        assert found["count"] == len(top) == 4 * len(hardest)
        assert found["percent_below"] == share_below(top, 0.1)
        assert found["quantiles"][-1] == float(top.max())
        assert by_name[(f"{what}, hardest", "query")]["median"] == float(hardest.median())
        assert by_name[(what, "hardest negative")]["count"] == len(between)
    assert "the 4 hardest negatives of each query" in shown
    assert "bag" not in shown


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_map(models, analysed, method):
    few = ("--negatives", "12", "--seed", "3", "--method", method)
    shown, page, numbers = analysed("map", models / "pixels", *few, figures=2)
    assert "sampling seed 3" in shown
    assert [one["direction"] for one in numbers["maps"]] == ["i2t", "t2i"]
    dataset, members = embedded(models / "pixels")
    for one in numbers["maps"]:
        from_image = one["direction"] == "i2t"
        row = (dataset.image_ids if from_image else dataset.texts).index(one["query"])
        names = dataset.text_ids if from_image else dataset.image_ids
        found = neighbourhood(
            members, dataset.text_to_image, one["direction"], row, negatives=12, method=method
        )
        assert one["wrong"] == [names[place] for place in found.wrong.tolist()]
        assert one["true"] == [names[place] for place in found.true.tolist()]
        assert one["cosines"] == pytest.approx(found.cosines)
        assert one["points"] == pytest.approx(found.points.numpy(), abs=1e-3)
    assert "data:image/" in page


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
