"""Captions as results, and reranked results."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import explain_cases
import recipes_cases
from corpus_cases import write_folder
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.search.calibrate import Calibration
from counterfoil.search.index import build_index, open_index
from counterfoil.search.rerank import Reranker
from counterfoil.search.vector_index import NewVectors
from counterfoil.serve.app import application
from counterfoil.serve.service import SearchQuery, SearchService
from counterfoil.serve.settings import ServerSettings
from serve_cases import asked, content, got, painted, posted

TEXT = "a red circle"
DEPTH = 12
FREE = ServerSettings(gather=0.0)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("finding")
    recipes_cases.pixel_model(root / "mine")
    recipes_cases.clip_like(root / "clip")
    write_folder(load_dataset("scenes:images=24"), root / "photos")
    build_index(load_model(root / "mine"), load_dataset(root / "photos"), root / "index").close()
    return root


def reranker(root: Path, depth: int = DEPTH) -> Reranker:
    return Reranker(load_model(root / "clip"), depth)


@pytest.fixture(scope="module")
def plain(root):
    return application(SearchService(open_index(root / "index")), FREE)


@pytest.fixture(scope="module")
def ordered(root):
    return application(SearchService(open_index(root / "index"), reranker=reranker(root)), FREE)


def offline(found) -> list[tuple[object, ...]]:
    return [
        (
            *(hit.id, hit.score, hit.captions[0], hit.image_id, hit.probability, hit.columns),
            *(hit.missing, list(hit.same)),
        )
        for hit in found
    ]


def online(answer) -> list[tuple[object, ...]]:
    assert answer.status_code == 200, answer.text
    return [tuple(hit.values()) for hit in answer.json()["results"]]


def upload(**fields: object) -> dict[str, object]:
    files = {"picture": ("new.png", content(painted(3)))}
    return {"files": files, "data": {name: str(value) for name, value in fields.items()}}


@pytest.mark.parametrize("find", ["images", "captions"])
@pytest.mark.parametrize("again", [False, True])
def test_every_search_equals_offline_search(root, plain, ordered, find, again):
    """Only cross-modal results are reranked."""
    app = ordered if again else plain
    image = load_dataset(root / "photos").image_ids[3]
    with (
        open_index(root / "index") as index,
        open_index(root / "index", rerank=reranker(root) if again else None) as other,
    ):
        crossed = {"text": find == "images", "picture": find == "captions"}
        by = {side: other if crosses else index for side, crosses in crossed.items()}
        text = offline(by["text"].search(TEXT, 5, find=find))
        picture = offline(by["picture"].search_image(painted(3), 5, find=find))
        alike = offline(by["picture"].search_id(image, 5, find=find))
    body = {"top": 5, "find": find}
    found = posted(app, "/search", json={"text": TEXT, **body})
    assert online(found) == text
    assert found.json()["find"] == find
    assert found.json()["reranker"] == ("clip" if again and find == "images" else None)
    assert online(got(app, "/search", params={"text": TEXT, **body})) == text
    form = {"text": (None, TEXT), "top": (None, "5"), "find": (None, find)}
    assert online(posted(app, "/search", files=form)) == text
    found = posted(app, "/search", **upload(**body))
    assert online(found) == picture
    assert found.json()["reranker"] == ("clip" if again and find == "captions" else None)
    assert online(posted(app, "/similar", json={"id": image, **body})) == alike
    assert len(text) == len(picture) == len(alike) == 5


def test_reranking_changes_the_order(plain, ordered):
    both = [online(got(app, "/search", params={"text": TEXT})) for app in (plain, ordered)]
    assert len(both[0]) == 20
    assert len(both[1]) == DEPTH  # as many as are looked at, where none are asked for
    assert both[0][:DEPTH] != both[1]
    assert {hit[0] for hit in both[0][:DEPTH]} == {hit[0] for hit in both[1]}


def test_batching_changes_no_answer(root):
    app = application(
        SearchService(open_index(root / "index"), reranker=reranker(root)),
        ServerSettings(gather=0.05),
    )
    texts = ["a blue square", TEXT, "a star", "a green triangle above a red circle"] * 2

    async def together(client):
        posts = [
            client.post("/search", json={"text": t, "top": 1 + n}) for n, t in enumerate(texts)
        ]
        more = [client.post("/search", **upload(find=find)) for find in ("images", "captions")]
        found = await asyncio.gather(*posts, *more)
        return found, (await client.get("/metrics")).text

    found, metrics = asked(app, together)
    with open_index(root / "index", rerank=reranker(root)) as index:
        for number, (text, answer) in enumerate(zip(texts, found, strict=False)):
            assert online(answer) == offline(index.search(text, 1 + number))
    assert "counterfoil_queries_total 10.0\n" in metrics
    assert "counterfoil_reranked_total 9.0\n" in metrics


def test_missing_and_equal_pictures_are_told(root, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for row in range(2):
        (photos / f"{row}.png").write_bytes(content(painted(row)))
    shutil.copy(photos / "0.png", photos / "copy.png")
    build_index(load_model(root / "mine"), load_dataset(photos), tmp_path / "index").close()
    (photos / "1.png").unlink()
    app = application(SearchService(open_index(tmp_path / "index")), FREE)
    hits = {hit["id"]: hit for hit in posted(app, "/search", json={"text": TEXT}).json()["results"]}
    told = {name: (hit["missing"], hit["same"]) for name, hit in hits.items()}
    assert told == {"0.png": (False, ["copy.png"]), "1.png": (True, [])}


def test_about_and_health_name_the_reranker(root, plain, ordered):
    told = got(ordered, "/about").json()
    assert (told["reranker"], told["limits"]["top"]) == ("clip", DEPTH)
    assert (told["images"], told["captions"]) == (24, 120)
    health = {"status": "ok", "model": "the model of index", "reranker": "clip"}
    assert got(ordered, "/health").json() == health
    assert got(plain, "/health").json() == {**health, "reranker": None}
    assert got(plain, "/about").json()["limits"]["top"] == 100
    locked = application(
        SearchService(open_index(root / "index"), reranker=reranker(root)), ServerSettings(key="k")
    )
    assert got(locked, "/health").json() == {"status": "ok"}


def test_top_beyond_the_reranking_depth_is_refused(ordered):
    answer = posted(ordered, "/search", json={"text": TEXT, "top": DEPTH + 1})
    assert answer.status_code == 400
    assert f"give a whole number of 1 to {DEPTH}" in answer.json()["error"]


@pytest.mark.papers
def test_upload_is_not_reranked_by_a_feature_model(root, tmp_path):
    """Its captions stay in the order of the index, and the answer names no reranker."""
    explain_cases.saved(tmp_path / "regions")
    recipes_cases.pixel_model(tmp_path / "mine")
    dataset = load_dataset(explain_cases.SCENES)
    build_index(load_model(tmp_path / "mine"), dataset, tmp_path / "index").close()
    other = Reranker(replace(load_model(tmp_path / "regions"), name="regions"), 8, dataset)
    app = application(SearchService(open_index(tmp_path / "index"), None, dataset, other), FREE)
    new = posted(app, "/search", **upload(find="captions", top=4))
    with open_index(tmp_path / "index") as index:
        assert online(new) == offline(index.search_image(painted(3), 4))
    assert new.json()["reranker"] is None
    known = posted(app, "/similar", json={"id": dataset.image_ids[5], "find": "captions", "top": 4})
    with open_index(tmp_path / "index", rerank=other) as index:
        assert online(known) == offline(index.search_id(dataset.image_ids[5], 4))
    assert known.json()["reranker"] == "regions"


def test_missing_picture_leaves_the_order_of_the_index(root, tmp_path, caplog):
    """The answer does not name the path of the picture."""
    shutil.copytree(root / "photos", tmp_path / "photos")
    build_index(load_model(root / "mine"), load_dataset(tmp_path / "photos"), tmp_path / "mine")
    library = SearchService(open_index(tmp_path / "mine"), reranker=reranker(root))
    app = application(library, FREE)
    query = {"text": TEXT, "top": 5}
    want = posted(app, "/search", json=query)
    assert want.json()["reranker"] == "clip"
    with open_index(tmp_path / "mine") as index:
        hits = index.search(TEXT, DEPTH)
        hits[7].path.unlink()
    found = posted(app, "/search", json=query)
    assert found.json()["reranker"] is None
    assert online(found) == offline(hits[:5])
    assert str(tmp_path) not in found.text
    assert "not re-ranked: " in caplog.text
    assert hits[7].path.name in caplog.text


@pytest.mark.papers
@pytest.mark.parametrize("name", ["clip", "regions"])
def test_reranker_must_read_all_images(root, tmp_path, name):
    explain_cases.saved(tmp_path / "regions")
    dataset = load_dataset(explain_cases.SCENES)
    model = tmp_path / "mine"
    recipes_cases.feature_model(model, dataset.features.width)
    build_index(load_model(model), dataset, tmp_path / "index").close()
    index = open_index(tmp_path / "index")
    if name == "clip":
        some = index.vectors.images.entry(4)
        index.vectors.change(
            images=NewVectors(
                [replace(some, place="")], index.vectors.images.vectors(torch.tensor([4]))
            ),
            remove_images=[4],
        )
        other = reranker(root)
    else:
        part = dataset.subset(torch.arange(1, len(dataset)))
        other = Reranker(load_model(tmp_path / "regions"), 8, part)
    with pytest.raises(ValueError, match=rf"{name} cannot look at 1 of the {len(dataset)} images"):
        SearchService(index, reranker=other)


def test_failing_index_gives_500(root, monkeypatch, caplog):
    def refuses(*_: object, **options: object) -> None:
        raise ValueError("Milvus at db.example.org refuses")

    monkeypatch.setattr("counterfoil.search.vector_index.Collection.search", refuses)
    app = application(SearchService(open_index(root / "index")), FREE)
    answer = posted(app, "/search", json={"text": TEXT})
    assert answer.status_code == 500
    assert "Milvus" not in answer.text
    assert "Milvus at db.example.org refuses" in caplog.text


def test_search_for_captions_without_captions_gives_422(root, tmp_path):
    (bare := tmp_path / "bare").mkdir()
    painted(1).save(bare / "a.png")
    index = build_index(load_model(root / "mine"), load_dataset(bare), tmp_path / "pictures")
    alone = application(SearchService(index), FREE)
    assert got(alone, "/about").json()["captions"] == 0
    answer = posted(alone, "/search", json={"text": "a", "find": "captions"})
    assert answer.status_code == 422
    assert answer.json()["error"] == "the index holds no captions; only images can be found"


def test_query_modalities():
    row, text, picture = SearchQuery(3, 1), SearchQuery("a", 1), SearchQuery(painted(1), 1)
    assert [one.cross_modal for one in (row, text, picture)] == [False, True, False]
    other = [replace(one, find="captions") for one in (row, text, picture)]
    assert [one.cross_modal for one in other] == [True, False, True]
    assert [row.excluded, other[0].excluded, text.excluded] == [3, None, None]


def test_improbable_results_are_left_out(root, plain, tmp_path):
    """Probabilities are those of the offline index; nothing may be left."""
    folder = tmp_path / "index"
    shutil.copytree(root / "index", folder)
    refused = posted(plain, "/search", json={"text": TEXT, "min_probability": 0.5})
    assert refused.status_code == 422
    assert "not calibrated" in refused.json()["error"]
    Calibration((0.5, 0.0, 1.0), 0.0, 50).write(folder)
    app = application(SearchService(open_index(folder)), FREE)
    with open_index(folder) as index:
        hits = index.search(TEXT, 5)
    assert online(posted(app, "/search", json={"text": TEXT, "top": 5})) == offline(hits)
    for least, kept in ((hits[1].probability, 2), (1, 0)):
        body = {"text": TEXT, "top": 5, "min_probability": least}
        assert online(posted(app, "/search", json=body)) == offline(hits[:kept])
    refused = posted(app, "/search", json={"text": TEXT, "find": "captions", "min_probability": 0})
    assert "found by text" in refused.json()["error"]
