"""Filters by columns over HTTP."""

from __future__ import annotations

import pytest

from counterfoil.cli import main
from counterfoil.search.index import open_index
from counterfoil.serve.app import application
from counterfoil.serve.service import SearchService
from counterfoil.serve.settings import ServerSettings
from serve_cases import asked, content, got, painted, posted, with_columns


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    root = with_columns(tmp_path_factory.mktemp("columns"), 24)
    return application(SearchService(open_index(root / "index")), ServerSettings(gather=0.0))


def test_results_pass_the_filter_and_have_their_columns(app):
    body = {"text": "a dog", "top": 50}
    every = posted(app, "/search", json=body).json()["results"]
    where = ["album=sea", "year>=2013"]
    found = posted(app, "/search", json={**body, "where": where}).json()["results"]
    assert found == [
        hit for hit in every if hit["columns"]["album"] == "sea" and hit["columns"]["year"] >= 2013
    ]
    assert len(found) == 7
    one = posted(app, "/search", json={**body, "where": "note~NOTE 7"}).json()["results"]
    assert [hit["columns"] for hit in one] == [{"album": "home", "year": 2017, "note": "note 7"}]


def test_every_route_and_form_of_request(app):
    async def ask(client):
        query = {"text": "a dog", "where": ["album=sea", "year<2013"]}
        form = {"picture": ("a.png", content(painted(2)), "image/png")}
        return [
            (await client.get("/search", params=query)).json(),
            (await client.post("/search", files=form, data={"where": query["where"]})).json(),
            (await client.post("/similar", json={"id": "00.png", "where": "year<=2011"})).json(),
            (
                await client.post(
                    "/search", json={**query, "find": "captions", "where": ["album=sea"], "top": 50}
                )
            ).json(),
        ]

    texts, pictures, similar, captions = asked(app, ask)
    assert [hit["id"] for hit in texts["results"]] == ["00.png"]
    assert [hit["id"] for hit in pictures["results"]] == ["00.png"]
    assert [hit["id"] for hit in similar["results"]] == ["01.png"]
    assert len(captions["results"]) == 8
    assert {hit["columns"]["album"] for hit in captions["results"]} == {"sea"}


def test_examples_and_filters_together(app):
    body = {"text": "a dog", "more": ["03.png"], "where": ["album=sea"], "top": 50}
    found = posted(app, "/search", json=body).json()["results"]
    assert len(found) == 7
    assert "03.png" not in {hit["id"] for hit in found}


def test_about_lists_the_columns(app):
    assert got(app, "/about").json()["columns"] == [
        {"name": "album", "numeric": False, "date": False, "values": ["Sea 2", "home", "sea"]},
        {"name": "year", "numeric": True, "date": False, "values": []},
        {"name": "note", "numeric": False, "date": False, "values": []},
    ]
    schema = got(app, "/openapi.json").json()
    fields = schema["paths"]["/search"]["get"]["parameters"]
    assert next(field for field in fields if field["name"] == "where")["schema"]["type"] == "array"


@pytest.mark.parametrize(
    ("where", "status", "words"),
    [
        (["albun=x"], 422, "did you mean 'album'? Known: album, note, year."),
        (["album"], 422, "'album' is no condition; write a column, one of = != < <= > >= ~"),
        (["year=>3"], 422, "has an operator that does not exist"),
        ([""], 400, "where is ''"),
        (["year>1"] * 21, 400, "at most 20 items"),
        ([3], 400, "where is '3'"),
    ],
)
def test_refused_filters(app, where, status, words):
    answer = posted(app, "/search", json={"text": "a dog", "where": where})
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_a_column_of_dates_is_known_as_one(tmp_path):
    root = with_columns(tmp_path, 6)
    lines = (root / "photos" / "captions.csv").read_text().splitlines()
    days = [
        "2024-05-30",
        "2024-05-31 23:59",
        "2024-06-01",
        "2024-06-02",
        "2025-01-01",
        "2023-01-01",
    ]
    head, *rows = lines
    dated = [
        f"{head},taken,serial",
        *(f"{row},{day},{day[:4]}-123" for row, day in zip(rows, days)),
    ]
    (root / "photos" / "captions.csv").write_text("\n".join(dated))
    words = ("index", root / "model", root / "photos", "--output", root / "dated")
    assert main([str(word) for word in words]) == 0
    app = application(SearchService(open_index(root / "dated")), ServerSettings(gather=0.0))
    dates = {one["name"]: one["date"] for one in got(app, "/about").json()["columns"]}
    assert [name for name, date in dates.items() if date] == ["taken"]
    body = {"text": "a dog", "where": ["taken>=2024-05-31", "taken<2024-06-02"]}  # as the page asks
    found = posted(app, "/search", json=body).json()["results"]
    assert {hit["columns"]["taken"] for hit in found} == {"2024-05-31 23:59", "2024-06-01"}
