"""More like these, less like those: queries that are refined by images of the index."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from counterfoil.search.index import open_index
from counterfoil.serve.service import LESS, MORE
from serve_cases import asked, content, indexed, names, painted, posted, served

IDS = names(12)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return indexed(tmp_path_factory.mktemp("refined"))


@pytest.fixture(scope="module")
def app(root):
    return served(root)


def scores(app, route="/search", **body) -> dict[str, float]:
    answer = posted(app, route, json={"top": 50, **body})
    assert answer.status_code == 200, answer.text
    return {hit["id"]: hit["score"] for hit in answer.json()["results"]}


def wanted(root, query, more, less) -> dict[str, float]:
    """Rocchio's formula in a slow loop over the images."""
    with open_index(root / "index") as index:
        images = index.vectors.images
        of = {name: images.vectors(torch.tensor([images.rows[name]]))[0] for name in IDS}
        base = of[query] if query in of else index.model.encode([query]).tokens[0, 0]
    vector = base / base.norm()
    for ids, weight in ((more, MORE), (less, -LESS)):
        for name in ids:
            vector = vector + weight * of[name] / of[name].norm() / len(ids)
    vector = base.norm() * vector / vector.norm()
    return {name: float(vector @ of[name]) for name in IDS if name not in (query, *more, *less)}


@pytest.mark.parametrize(("more", "less"), [(IDS[2:4], []), ([], IDS[5:6]), (IDS[1:2], IDS[7:10])])
def test_scores_of_a_refined_query(root, app, more, less):
    for route, query in (("/search", {"text": "a dog"}), ("/similar", {"id": IDS[0]})):
        found = scores(app, route, **query, more=more, less=less)
        slow = wanted(root, *query.values(), more, less)
        assert found.keys() == slow.keys(), "examples are no results"
        assert found == pytest.approx(slow, abs=1e-5)
        assert list(found.values()) == sorted(found.values(), reverse=True)


def test_results_move_towards_good_and_away_from_bad_examples(root, app):
    with open_index(root / "index") as index:
        images = index.vectors.images
        vectors = normalize(images.vectors(torch.arange(12)), dim=1)
        ids = [images.entry(row).id for row in range(12)]
    order = (vectors @ vectors[3]).argsort(descending=True).tolist()
    near = ids[order[1]]
    plain = list(scores(app, text="a dog"))
    closer = list(scores(app, text="a dog", more=[ids[3]]))
    further = list(scores(app, text="a dog", less=[ids[3]]))
    plain.remove(ids[3])
    assert closer.index(near) <= plain.index(near) <= further.index(near)
    assert closer.index(near) < further.index(near)


def test_top_counts_results_without_the_examples(app):
    answer = posted(app, "/search", json={"text": "a dog", "top": 3, "more": IDS[:5]})
    assert len(answer.json()["results"]) == 3


def test_an_uploaded_picture_is_refined(app):
    form = {"picture": ("a.png", content(painted(2)), "image/png")}
    plain = posted(app, "/search", files=form, data={"top": 50}).json()["results"]
    refined = posted(
        app, "/search", files=form, data={"top": 50, "more": [IDS[6], IDS[7]], "less": IDS[8]}
    ).json()["results"]
    assert {hit["id"] for hit in plain} - {hit["id"] for hit in refined} == set(IDS[6:9])


def test_addresses_name_examples_too(app):
    async def ask(client):
        query = {"text": "a dog", "top": 50, "more": [IDS[4], IDS[5]]}
        return (await client.get("/search", params=query)).json()["results"]

    found = {hit["id"]: hit["score"] for hit in asked(app, ask)}
    assert found == scores(app, text="a dog", more=[IDS[4], IDS[5]])


def test_captions_are_refined_too(app):
    answer = posted(app, "/similar", json={"id": IDS[0], "find": "captions", "more": [IDS[1]]})
    assert [hit["id"] for hit in answer.json()["results"]] == ["caption"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"more": ["none"]}, 404, "the index has no image 'none'"),
        ({"less": [""]}, 400, "less"),
        ({"more": ["a"] * 21}, 400, "more"),
        ({"more": [IDS[0]], "min_probability": 0.5}, 422, "without a re-ranker or examples"),
    ],
)
def test_examples_that_are_refused(app, body, status, words):
    answer = posted(app, "/search", json={"text": "a dog", **body})
    assert answer.status_code == status
    assert words in answer.json()["error"]
