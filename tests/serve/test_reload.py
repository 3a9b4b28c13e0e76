"""An index that changes on disk is served without a restart."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import threading
from dataclasses import replace

import pytest
import torch

import recipes_cases
from artifact_cases import resealed
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import PictureFiles
from counterfoil.evaluation.caption_check import CaptionCheck
from counterfoil.model import load_model
from counterfoil.search.index import open_index
from counterfoil.serve.service import SearchService
from counterfoil.serve.settings import ServerSettings
from serve_cases import asked, content, got, indexed, names, painted, posted, served

AT_ONCE = ServerSettings(gather=0.0, reload=0.0)


@pytest.fixture
def root(tmp_path):
    return indexed(tmp_path)


def more(root, *rows: int) -> ImageTextDataset:
    """Further pictures, with a caption each."""
    for row in rows:
        (root / "photos" / f"{row}.png").write_bytes(content(painted(row)))
    return ImageTextDataset(
        name="more",
        image_ids=[f"new {row}" for row in rows],
        text_ids=[f"new {row}#0" for row in rows],
        texts=["a dog in the snow"] * len(rows),
        text_to_image=torch.arange(len(rows)),
        splits=[""] * len(rows),
        pictures=PictureFiles([root / "photos" / f"{row}.png" for row in rows]),
    )


def add(root, *rows: int) -> None:
    with open_index(root / "index") as index:
        index.add(more(root, *rows))


def found(app, top: int = 50) -> dict[str, float]:
    answer = posted(app, "/search", json={"text": "a dog", "top": top})
    assert answer.status_code == 200, answer.text
    return {hit["id"]: hit["score"] for hit in answer.json()["results"]}


def test_added_and_deleted_images_are_served(root):
    app = served(root, AT_ONCE)
    before = found(app)
    assert len(before) == 12
    add(root, 20, 21)
    after = found(app)
    assert set(after) == {*before, "new 20", "new 21"}
    with open_index(root / "index") as index:
        assert after == {hit.id: hit.score for hit in index.search("a dog", 50)}
        index.delete([names(12)[0], "new 20"])
    assert set(found(app)) == {*before, "new 21"} - {names(12)[0]}
    assert got(app, "/about").json()["images"] == 12
    assert "counterfoil_images 12.0" in got(app, "/metrics").text
    assert got(app, "/picture", params={"id": "new 21"}).status_code == 200
    assert posted(app, "/similar", json={"id": "new 20"}).status_code == 404


def test_an_index_that_does_not_change_is_not_opened_again(root, monkeypatch):
    app = served(root, AT_ONCE)
    monkeypatch.setattr(SearchService, "reopened", lambda self: pytest.fail("opened again"))
    assert found(app) == found(app)
    slow = served(root, replace(AT_ONCE, reload=60))
    add(root, 20)
    assert len(found(slow)) == 12, "nobody looks before the time"


def test_a_calibration_is_served(root):
    app = served(root, AT_ONCE)
    assert posted(app, "/search", json={"text": "dog"}).json()["results"][0]["probability"] is None
    rows = range(20, 150)
    with open_index(root / "index") as index:
        index.add(more(root, *rows))
        index.calibrate(more(root, *rows))
    hits = posted(app, "/search", json={"text": "dog"}).json()["results"]
    assert all(0 <= hit["probability"] <= 1 for hit in hits)


def test_verdicts_on_captions_are_served(root):
    app = served(root, AT_ONCE)
    name = next(iter(found(app)))
    ask = {"id": name, "caption": "a red dog"}
    plain = posted(app, "/explain", json=ask).json()
    assert plain["verdict"] == "cannot tell"
    with open_index(root / "index") as index:
        model = index.model.identity()
    for low, high, verdict in (
        (plain["score"] + 0.1, None, "does not fit"),
        (None, plain["score"] - 0.1, "fits"),
        (plain["score"] - 0.1, plain["score"] + 0.1, "cannot tell"),
    ):
        check = CaptionCheck(low, high, (0.1, 0.25), 60, 300, "photos (dev)", model)
        check.write(root / "index")
        told = posted(app, "/explain", json=ask).json()
        assert (told["verdict"], told["score"]) == (verdict, plain["score"])
        assert told["basis"] == check.basis
    CaptionCheck(9, 9, (0.1, 0.25), 60, 300, "d", "another").write(root / "index")
    assert "were never compared" in posted(app, "/explain", json=ask).json()["basis"]


def test_a_correction_of_hubness_is_served(root):
    app = served(root, AT_ONCE)
    before = found(app)
    with open_index(root / "index") as index:
        index.correct_hubness(more(root, *range(20, 40)))
        wanted = {hit.id: hit.score for hit in index.search("a dog", 50)}
    assert before != found(app) == wanted


def test_requests_under_way_keep_the_old_index(root, monkeypatch):
    """A row of the old index is not looked up in the new one, where it is another image."""
    app = served(root, AT_ONCE)
    wanted = posted(app, "/similar", json={"id": names(12)[5], "top": 3}).json()["results"]
    entered, go = threading.Event(), threading.Event()
    search = SearchService.search

    def waiting(self, queries):
        entered.set()
        go.wait(10)
        return search(self, queries)

    monkeypatch.setattr(SearchService, "search", waiting)

    async def both(client):
        first = asyncio.ensure_future(client.post("/similar", json={"id": names(12)[5], "top": 3}))
        await asyncio.to_thread(entered.wait, 10)
        with open_index(root / "index") as index:
            index.delete(names(12)[:3])
        assert (await client.get("/about")).json()["images"] == 9
        go.set()
        return (await first).json()["results"]

    assert asked(app, both) == wanted


@pytest.mark.parametrize("fault", ["damaged", "gone", "of another model"])
def test_an_index_that_cannot_be_opened_leaves_the_old_one(root, fault, caplog):
    app = served(root, AT_ONCE)
    before = found(app)
    state = root / "index" / "manifest.json"
    whole = state.read_text()
    if fault == "damaged":
        state.write_text(whole[:50])
    elif fault == "gone":
        state.unlink()
    else:
        recipes_cases.pixel_model(root / "other")
        state.write_text(json.dumps(json.loads(whole) | {"identity": "0" * 16}))
        resealed(root / "index")
    with caplog.at_level(logging.WARNING, "counterfoil.serve"):
        assert found(app) == found(app) == before
    assert [record.message for record in caplog.records if "not opened again" in record.message]
    assert len(caplog.records) == 1, "said once"
    state.write_text(whole)
    add(root, 20)
    assert set(found(app)) == {*before, "new 20"}


def test_a_folder_that_is_made_anew_is_served(root):
    app = served(root, AT_ONCE)
    model = load_model(root / "model")
    from counterfoil.search.index import build_index

    build_index(model, more(root, 30, 31), root / "next").close()
    shutil.rmtree(root / "index")
    (root / "next").rename(root / "index")
    assert set(found(app)) == {"new 30", "new 31"}
