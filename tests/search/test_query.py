"""Queries with a minus."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import recipes_cases
from counterfoil import Model, load_dataset, load_model
from counterfoil.search.index import build_index
from counterfoil.search.query import WEIGHT, encode_caption, parse_query
from counterfoil.search.rerank import RerankItems
from counterfoil.serve.app import application
from counterfoil.serve.service import SearchService
from counterfoil.serve.settings import ServerSettings
from recipes_cases import run
from serve_cases import got


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(recipes_cases.clip_like(tmp_path_factory.mktemp("hub") / "clip"))


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("cat -cartoon", "cat", ("cartoon",)),
        (
            '-"black and white" a dog  -snow in a park',
            "a dog in a park",
            ("black and white", "snow"),
        ),
        ("a t-shirt - red -5 degrees", "a t-shirt - red -5 degrees", ()),
        ("un chien -été", "un chien", ("été",)),
    ],
)
def test_what_is_wanted_and_what_is_not(text: str, wanted: str, unwanted: tuple[str, ...]) -> None:
    assert parse_query(text) == (wanted, unwanted)


def test_a_query_of_minuses_is_refused() -> None:
    with pytest.raises(ValueError, match="says only what is unwanted"):
        parse_query("-cartoon")


def test_what_is_unwanted_is_subtracted(model: Model) -> None:
    wanted, dog, snow = (model.encode([t]).tokens[:, 0] for t in ("a circle", "dog", "snow"))
    found = encode_caption(model, "a circle -dog -snow")
    expected = wanted - WEIGHT * (dog + snow)
    torch.testing.assert_close(found, expected / expected.norm())
    assert torch.equal(encode_caption(model, "a circle"), wanted)
    assert RerankItems.from_query("a circle -dog").texts == ("a circle",)


def test_search_and_server_rank_alike(model: Model, tmp_path: Path) -> None:
    index = build_index(model, load_dataset("scenes:images=40"), tmp_path / "index")
    plain, minus = "a red circle", "a red circle -blue -square"
    hits = index.search(minus, 40)
    ranks = {hit.id: hit.rank for hit in hits}
    against = model.encode(["blue", "square"]).tokens[:, 0].sum(0)
    rows = index.vectors.images
    likeness = {
        name: float(rows.vectors(torch.tensor([row]))[0] @ against)
        for name, row in rows.rows.items()
    }
    most = sorted(likeness, key=lambda name: -likeness[name])[:10]  # nearest to what is unwanted
    before = {hit.id: hit.rank for hit in index.search(plain, 40)}
    assert sum(ranks[name] for name in most) > sum(before[name] for name in most)
    app = application(SearchService(index), ServerSettings())
    found = got(app, "/search", params={"text": minus, "top": 5}).json()["results"]
    assert [hit["id"] for hit in found] == [hit.id for hit in hits[:5]]
    refused = got(app, "/search", params={"text": "-blue"})
    assert refused.status_code == 422
    assert "says only what is unwanted" in refused.json()["error"]
    index.close()
    assert run("search", tmp_path / "index", minus, "--model", model.name) == 0
    assert run("search", tmp_path / "index", "--model", model.name, "--", "-blue") == 2
