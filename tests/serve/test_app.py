from __future__ import annotations

import asyncio
import io
import re
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

import explain_cases
import recipes_cases
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.search.index import build_index, open_index
from counterfoil.serve.app import application
from counterfoil.serve.decoding import PictureDecoder
from counterfoil.serve.service import SearchService
from counterfoil.serve.settings import ServerSettings
from serve_cases import NASTY, asked, content, got, indexed, names, painted, posted, served

IDS = names(12)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return indexed(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def app(root):
    return served(root)


def offline(found) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in found]


def online(answer) -> list[tuple[str, float]]:
    assert answer.status_code == 200, answer.text
    return [(hit["id"], hit["score"]) for hit in answer.json()["results"]]


def test_batching_changes_no_answer(root):
    texts = ["a dog", "the red circle in the snow", "snow", "a picture of a dog"] * 3
    app = served(root, ServerSettings(gather=1.0))  # time for all to come, on a busy machine too

    async def together(client):
        bodies = [{"text": text, "top": 1 + n % 4} for n, text in enumerate(texts)]
        posts = (client.post("/search", json=body) for body in bodies)
        similar = (client.post("/similar", json={"id": name, "top": 3}) for name in IDS)
        found = await asyncio.gather(*posts, *similar)
        return found, (await client.get("/metrics")).text

    found, metrics = asked(app, together)
    with open_index(root / "index") as index:
        want = [offline(index.search(text, 1 + n % 4)) for n, text in enumerate(texts)]
        want += [offline(index.search_id(name, 3, find="images")) for name in IDS]
    assert [online(answer) for answer in found] == want
    assert "counterfoil_queries_total 24" in metrics
    assert "counterfoil_batches_total 1.0\n" in metrics


def test_explanation_by_leaving_words_out(app):
    answer = posted(app, "/explain", json={"id": IDS[3], "caption": "a red dog"}).json()
    assert answer["caption"] == "a red dog"
    assert answer["doubts"] is False
    assert [word["text"] for word in answer["words"]] == ["a", "red", "dog"]
    assert all(word["gain"] is not None for word in answer["words"])
    assert answer["verdict"] == "cannot tell"
    assert "were never compared" in answer["basis"]
    upload = {"picture": ("new.png", content(painted(3)))}
    again = posted(app, "/explain", files=upload, data={"caption": "a red dog"}).json()
    assert again["words"] == answer["words"]


@pytest.mark.papers
@pytest.mark.parametrize("explainer, status", [("pixels", 200), ("regions", 422)])
def test_uploads_need_an_explainer_that_reads_pixels(tmp_path, explainer, status):
    """The model of the index does not matter."""
    dataset = load_dataset(explain_cases.SCENES)
    recipes_cases.pixel_model(tmp_path / "pixels")
    explain_cases.saved(tmp_path / "regions")
    recipes_cases.feature_model(tmp_path / "features", dataset.features.width)
    made = {"pixels": "features", "regions": "pixels"}[explainer]
    build_index(load_model(tmp_path / made), dataset, tmp_path / "index").close()
    found = SearchService(open_index(tmp_path / "index"), load_model(tmp_path / explainer), dataset)
    app = application(found, ServerSettings(gather=0.0))
    assert got(app, "/about").json()["explains_pictures"] is (status == 200)
    files = {"picture": ("new.png", content(painted(3)))}
    answer = posted(app, "/explain", files=files, data={"caption": "a red circle"})
    assert answer.status_code == status, answer.text
    if status == 422:
        said = "the model that explains reads stored features and cannot look at a new picture"
        assert answer.json()["error"] == said


def test_thumbnail_is_a_jpeg(app):
    answer = got(app, "/picture", params={"id": IDS[1]})
    assert answer.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer.content)).size == (24, 24)
    assert got(app, "/picture", params={"id": IDS[1]}).content == answer.content
    full = got(app, "/picture", params={"id": IDS[1], "full": "true"})
    assert full.headers["content-type"] == "image/jpeg"


def test_captions_are_unchanged_in_json(app):
    answer = got(app, "/search", params={"text": "a dog", "top": 100})
    assert answer.headers["content-type"] == "application/json"
    assert {hit["id"]: hit["caption"] for hit in answer.json()["results"]}[IDS[1]] == NASTY


def test_about_health_and_metrics(app):
    told = got(app, "/about").json()
    assert (told["images"], told["model"], told["sees_pictures"]) == (12, "model", True)
    assert got(app, "/health").json()["status"] == "ok"
    text = got(app, "/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=")
    assert "counterfoil_images 12" in text.text


def test_openapi_describes_the_routes_and_the_key(app, root):
    schema = got(app, "/openapi.json").json()
    assert set(schema["paths"]) == {
        "/search", "/similar", "/explain", "/picture", "/about", "/health", "/metrics",
    }  # fmt: skip
    body = schema["paths"]["/search"]["post"]["requestBody"]["content"]
    assert set(body["application/json"]["schema"]["properties"]) == {
        "text", "find", "top", "more", "less", "where", "min_probability",
    }  # fmt: skip
    text, picture = body["multipart/form-data"]["schema"]["oneOf"]  # one of the two
    assert text["properties"]["text"]["maxLength"] == 1000
    assert picture["properties"]["picture"]["format"] == "binary"
    assert {*text["properties"]} - {"text"} == {*picture["properties"]} - {"picture"}
    assert (text["required"], picture["required"]) == (["text"], ["picture"])
    names = [one["name"] for one in schema["paths"]["/similar"]["get"]["parameters"]]
    assert set(names) == {"id", "find", "top", "more", "less", "where"}
    assert set(schema["paths"]["/search"]["get"]["responses"]) == {"200", "default"}
    locked = served(root, ServerSettings(key="secret"))
    schema = got(locked, "/openapi.json", headers={"X-API-Key": "secret"}).json()
    assert schema["components"]["securitySchemes"]["APIKeyHeader"]["name"] == "X-API-Key"


@pytest.mark.parametrize("route", ["/", "/health", "/search?text=a"])
def test_head_has_the_headers_of_get(app, route):
    answer = asked(app, lambda client: client.head(route))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == got(app, route).headers["content-type"]


@pytest.mark.parametrize("route", ["/", "/page.css", "/page.js", "/search?text=a", "/nothing"])
def test_every_answer_has_security_headers(app, route):
    headers = got(app, route).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"


def test_page_is_self_contained(app):
    parts = {path: got(app, path).text for path in ("/", "/page.css", "/page.js")}
    assert "<style" not in parts["/"]
    assert "style=" not in parts["/"]
    assert not re.search(r"<script(?! src)|\son\w+=", parts["/"])
    assert not [text for text in parts.values() if "http:" in text or "https:" in text]
    assert "--run-1" in parts["/page.css"]
    for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in parts["/page.js"]


def test_internal_error_is_logged_and_answered(root, monkeypatch, caplog):
    monkeypatch.setattr("counterfoil.serve.service.SearchService.search", lambda *_: 1 / 0)
    app = served(root)
    answer = posted(app, "/search", json={"text": "a dog"})
    assert answer.status_code == 500
    assert answer.json() == {"error": "the server failed at this request; its log says why"}
    assert "ZeroDivisionError" in caplog.text
    assert got(app, "/health").status_code == 200


def test_time_limit_of_an_answer(root, monkeypatch):
    monkeypatch.setattr(
        "counterfoil.serve.service.SearchService.search", lambda *_: time.sleep(0.5)
    )
    app = served(root, ServerSettings(seconds=0.1))
    answer = posted(app, "/search", json={"text": "a dog"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "took too long" in answer.json()["error"]
    assert got(app, "/health").status_code == 200


def test_limit_of_decoded_pictures(root, monkeypatch):
    """A file of some kilobytes may decode to 70 MB."""
    decoded, gate = [], threading.Event()
    answer, upload = SearchService.search, PictureDecoder.upload

    def decoding(*words):
        decoded.append(1)
        return upload(*words)

    def waiting(*words):
        gate.wait(60)
        return answer(*words)

    monkeypatch.setattr(PictureDecoder, "upload", decoding)
    monkeypatch.setattr(SearchService, "search", waiting)
    app = served(root, ServerSettings(pictures=3))
    files = {"picture": ("new.png", content(painted(1)))}

    async def together(client):
        waiting = [asyncio.create_task(client.post("/search", files=files)) for _ in range(9)]
        while len(decoded) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # time for one too many
        before = len(decoded)
        gate.set()
        return before, await asyncio.gather(*waiting)

    before, answers = asked(app, together)
    assert (before, len(decoded)) == (3, 9)
    assert len({tuple(online(one)) for one in answers}) == 1


def test_uploads_beyond_a_limit_get_503(root, monkeypatch):
    """The files of those that wait are in memory."""
    begun, gate = threading.Semaphore(0), threading.Event()
    real = PictureDecoder.upload

    def waiting(*words):
        begun.release()
        gate.wait(60)
        return real(*words)

    monkeypatch.setattr(PictureDecoder, "upload", waiting)
    app = served(root, ServerSettings(uploads=2, gather=0.0))
    files = {"picture": ("new.png", content(painted(1)))}
    said = {"caption": "a red dog"}

    async def together(client):
        first = [
            asyncio.create_task(client.post("/search", files=files)),
            asyncio.create_task(client.post("/explain", files=files, data=said)),
        ]
        for _ in first:
            await asyncio.to_thread(begun.acquire, timeout=60)
        refused = [
            await client.post("/search", files=files),
            await client.post("/explain", files=files, data=said),
        ]
        words = await client.post("/search", json={"text": "a dog"})
        gate.set()
        return (
            refused,
            words,
            await asyncio.gather(*first),
            await client.post("/search", files=files),
        )

    refused, words, answered, last = asked(app, together)
    for answer in refused:
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"] == "too many pictures are waiting; try again in a moment"
    assert {answer.status_code for answer in (words, *answered, last)} == {200}


def test_no_picture_is_opened_in_the_process_of_the_server(root, monkeypatch):
    """Nothing ends a decoder in a thread."""
    app = served(root)

    def broken(*_, **__):
        raise AssertionError

    monkeypatch.setattr(Image, "open", broken)
    files = {"picture": ("new.png", content(painted(1)))}
    for answer in (
        posted(app, "/search", files=files),
        posted(app, "/explain", files=files, data={"caption": "a red dog"}),
        posted(app, "/explain", json=EXPLAINED),
        got(app, "/picture", params={"id": IDS[4]}),
    ):
        assert answer.status_code == 200, answer.text


EXPLAINED = {"id": IDS[3], "caption": "a red dog"}


def test_full_queue_of_explanations_gives_503(root, monkeypatch):
    begun, gate = threading.Event(), threading.Event()
    real = SearchService.explain

    def waiting(*words):
        begun.set()
        gate.wait(20)
        return real(*words)

    monkeypatch.setattr(SearchService, "explain", waiting)
    app = served(root, ServerSettings(explaining=2))

    async def together(client):
        asked = [asyncio.create_task(client.post("/explain", json=EXPLAINED))]
        await asyncio.to_thread(begun.wait, 20)
        asked += [asyncio.create_task(client.post("/explain", json=EXPLAINED)) for _ in range(5)]
        refused, waiting = await asyncio.wait(asked[1:], return_when=asyncio.FIRST_COMPLETED)
        while len(refused) < 3:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            refused |= more
        gate.set()
        return [one.result() for one in refused], await asyncio.gather(asked[0], *waiting)

    refused, answered = asked(app, together)
    assert [answer.status_code for answer in refused] == [503] * 3
    assert refused[0].headers["retry-after"] == "1"
    (told,) = {answer.json()["error"] for answer in refused}
    assert told == "too many explanations are waiting; try again in a moment"
    assert [answer.status_code for answer in answered] == [200] * 3


def test_searches_pass_between_explanations(root, monkeypatch):
    """A search waits for at most the current explanation and the next one."""
    begun, turns = threading.Event(), threading.Semaphore(0)
    real = SearchService.explain

    def waiting(*words):
        begun.set()
        turns.acquire(timeout=20)
        return real(*words)

    monkeypatch.setattr(SearchService, "explain", waiting)
    app = served(root, ServerSettings(gather=0.0))

    async def together(client):
        asked = [asyncio.create_task(client.post("/explain", json=EXPLAINED)) for _ in range(6)]
        await asyncio.to_thread(begun.wait, 20)
        search = asyncio.create_task(client.post("/search", json={"text": "a dog"}))
        turns.release(2)
        found = await search
        before = sum(one.done() for one in asked)
        turns.release(4)
        return found, before, await asyncio.gather(*asked)

    found, before, explained = asked(app, together)
    assert len(online(found)) == 12
    assert before <= 2
    assert {answer.status_code for answer in explained} == {200}


def test_thumbnail_of_a_missing_picture(tmp_path):
    root = indexed(tmp_path, 4)
    app = served(root)
    (root / "photos" / "3.png").unlink()
    (root / "photos" / "2.png").write_bytes(b"secret")
    for row in (2, 3):
        answer = got(app, "/picture", params={"id": names(4)[row]})
        assert answer.status_code == 404
        assert "cannot be read any more" in answer.json()["error"]
        assert str(root) not in answer.text
    assert len(online(got(app, "/search", params={"text": "a dog"}))) == 4


def test_an_answer_says_that_no_word_is_known(app, capfd):
    known = posted(app, "/search", json={"text": "a red circle"}).json()
    assert known["note"] is None
    unknown = posted(app, "/search", json={"text": "xyzzy plugh"}).json()
    assert unknown["note"].startswith("the model knows no word of 'xyzzy plugh'")
    cut = posted(app, "/search", json={"text": "a dog " * 50}).json()
    assert cut["note"].startswith("the query is longer than the 62 tokens that the model reads")
    assert "xyzzy" not in capfd.readouterr().err  # a query is not logged
