from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import recipes_cases
from corpus_cases import write_folder
from counterfoil.data.readers import load_dataset
from counterfoil.search.index import open_index


@pytest.fixture(scope="module")
def here(tmp_path_factory, models) -> Path:
    """A folder with my-photos/, and an index of it."""
    root = tmp_path_factory.mktemp("here")
    write_folder(load_dataset("scenes:images=36"), root / "my-photos")
    made = ("index", models / "pixels", root / "my-photos", "--output", root / "my-index")
    assert recipes_cases.run(*made) == 0
    return root


@pytest.fixture
def photos(here, tmp_path, monkeypatch) -> Path:
    """The same, to work in."""
    shutil.copytree(here, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def found(printed, *words: object) -> list[dict[str, object]]:
    """The results of a search."""
    return json.loads(printed("search", *words, "--json"))["results"]


def test_search_prints_what_python_finds(photos, printed):
    before = sorted(photos.rglob("*"))
    assert "36 images and 180 captions" in printed("index", "--output", "my-index/")
    picture = Path("my-photos/images/03.png")
    shown = printed("search", "my-index", "a red circle", "--top", "3")
    with open_index("my-index") as index:
        for hit in index.search("a red circle", 3):
            assert f"{hit.score:.3f}" in shown
            assert hit.path.name in shown.replace(" ", "")
            assert hit.captions[0].split()[1] in shown
        hits = index.search("a red circle", 4)
        assert found(printed, "my-index", "a red circle", "--top", 4) == [h.to_dict() for h in hits]
        (hit, _) = index.search_image(picture, 2)
    assert hit.captions[0][:20] in printed("search", "my-index/", picture, "--top", "2")
    shown = printed("search", "my-index/", picture, "--top", "1", "--find", "images")
    assert "03.png" in shown
    assert "1.000" in shown
    assert sorted(photos.rglob("*")) == before  # no page unless it is named


def test_json_alone_goes_to_standard_output(photos):
    """Nothing else does, and the index is asked by a fresh process."""
    words = ("search", "my-index", "my-photos/images/03.png", "--json", "--output", "found.html")
    done = subprocess.run(
        [sys.executable, "-m", "counterfoil.cli", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(done.stdout)["results"]) == 10
    assert Path("found.html").is_file()


def test_an_id_or_a_caption_that_looks_like_one(photos, printed):
    name = load_dataset("my-photos").image_ids[3]
    plain = json.loads(printed("search", "my-index", name, "--json"))
    assert (plain["as"], plain["find"]) == ("id", "captions")
    text = plain["results"][0]["id"]
    assert json.loads(printed("search", "my-index", text, "--json"))["find"] == "images"
    plain = json.loads(printed("search", "my-index", name, "--as", "caption", "--json"))
    assert (plain["as"], plain["find"], plain["query"]) == ("caption", "images", name)


def test_a_page_of_thumbnails(photos, printed):
    query = "<b>a red circle</b> [bold]"
    assert query in printed("search", "my-index", query, "--top", "3", "--output", "found.html")
    page = Path("found.html").read_text()
    assert page.count("data:image/") >= 3
    assert "<b>a red" not in page
    assert "[bold]" in page
    (photos / "my-photos" / "images" / "03.png").unlink()  # moved since
    printed("search", "my-index", "a red circle", "--top", "36", "--output", "more.html")


def test_add_and_delete(photos, printed, models):
    (photos / "more").mkdir()
    for n in range(3):
        shutil.copy(f"my-photos/images/0{n}.png", f"more/new-{n}.png")
    shown = printed("index", models / "pixels", "more/", "--output", "my-index", "--add")
    assert "added 3 images and 0 captions" in shown
    assert "39 images" in shown
    shown = printed("index", models / "pixels", "more/", "--output", "my-index", "--add")
    assert "added 0 images and 0 captions; 3 images known before" in shown
    shutil.copy("my-photos/images/05.png", "more/new-1.png")
    shown = printed("index", models / "pixels", "more/", "--output", "my-index", "--add")
    assert "added 1 image and 0 captions, 1 exchanged; 2 images known before" in shown
    shown = printed("index", "--output", "my-index", "--verify")
    assert "my-index is whole: all parts fit their checksums" in shown
    shown = printed(
        *("index", "--output", "my-index", "--delete", "new-0.png", "--delete", "new-2.png")
    )
    assert "deleted 2 images and 0 captions" in shown
    asked = ("my-index", "more/new-0.png", "--find", "images", "--top", "50")
    hits = found(printed, *asked)
    assert len(hits) == 36  # one of them is twice in the index
    ids = [name for hit in hits for name in (hit["id"], *hit.get("same", ()))]
    assert len(ids) == 37
    assert "new-1.png" in ids
    assert not {"new-0.png", "new-2.png"} & set(ids)


def test_pruned_renamed_missing_and_equal_pictures(models, tmp_path, printed, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_folder(load_dataset("scenes:images=4"), tmp_path / "made")
    shutil.copytree("made/images", "photos")
    shutil.copy("photos/3.png", "photos/copy.png")
    made = ("index", models / "pixels", "photos", "--output", "photos/index")
    assert "5 images" in printed(*made)
    Path("photos/0.png").unlink()
    Path("photos/1.png").rename("photos/first.png")
    asked = ("search", "photos/index", "a red circle")
    shown = printed(*asked)
    assert "0.png (its file is gone)" in shown
    assert "(+1 the same)" in shown
    assert "missing" in printed(*asked, "--json")
    shown = printed(*made, "--add")
    assert "1 image known under another name or place; kept 1 image whose files are gone" in shown
    assert "(--prune drops them)" in shown
    shown = printed(*made, "--add", "--prune")
    assert "4 images known before" in shown
    assert "--prune drops" not in shown
    assert "dropped 1 image whose files are gone" in shown
    assert "gone" not in printed(*asked)
    assert recipes_cases.run(*made[:-1], "x", "--prune") == 2
    assert "--prune is read only with --add" in capsys.readouterr().err
    assert recipes_cases.run("search", "photos/index", "a dog " * 50) == 0
    assert "the query is longer than the 62 tokens" in " ".join(capsys.readouterr().err.split())


def test_decisions_about_pictures_alone_are_honoured(photos, printed, models, capsys):
    bare = photos / "bare"
    bare.mkdir()
    for path in sorted((photos / "my-photos").rglob("*.png"))[:3]:
        shutil.copy(path, bare)
    first = min(path.name for path in bare.iterdir())
    drop = json.dumps({"do": "drop", "image": first, "was": ""})
    (bare / "corrections.jsonl").write_text(drop)
    assert "2 images" in printed("index", models / "pixels", bare, "--output", "x")
    (bare / "corrections.jsonl").rename(photos / "d.jsonl")
    assert "3 images" in printed("index", models / "pixels", bare, "--output", "y")
    named = ("index", models / "pixels", f"{bare}:corrections=d.jsonl", "--output", "z")
    assert "2 images" in printed(*named)
    assert recipes_cases.run(*named[:2], f"{bare}:images=my-photos", *named[3:]) == 2
    assert "bare holds no captions that could name pictures of my-photos" in capsys.readouterr().err


def test_reranked(photos, printed, models):
    asked = ("my-index", "a red circle", "--top")
    first = {hit["id"] for hit in found(printed, *asked, 12)}
    hits = found(printed, *asked, 3, "--rerank", models / "clip", "--depth", "12")
    assert {hit["id"] for hit in hits} <= first
    assert [hit["score"] for hit in hits] == sorted((h["score"] for h in hits), reverse=True)


def test_faiss(photos, printed, models):
    shown = printed(
        *(
            "index",
            models / "clip",
            "my-photos",
            "--output",
            "x",
            "--backend",
            "faiss-hnsw",
            "--half",
        )
    )
    assert "faiss-hnsw" in shown
    assert list(Path("x").glob("*.engine"))
    assert printed("search", "x", "a red circle", "--top", "1")


@pytest.mark.slow
def test_milvus_file(photos, printed, models):
    shown = printed("index", models / "pixels", "my-photos", "--output", "x", "--backend", "milvus")
    assert "36 images and 180 captions" in shown
    exact = found(printed, "my-index", "a red circle")
    hits = found(printed, "x", "a red circle")
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in exact]
    printed("index", "--output", "x", "--delete", hits[0]["id"])
    again = found(printed, "x", "a red circle")
    assert [hit["id"] for hit in again[:9]] == [hit["id"] for hit in exact[1:]]


@pytest.mark.parametrize("captions", [True, False])
def test_an_unreadable_picture_is_left_out_and_named(models, photos, printed, capsys, captions):
    folder = photos / "my-photos"
    if not captions:
        for file in folder.iterdir():
            if file.suffix in (".jsonl", ".json", ".csv", ".txt"):
                file.unlink()
    damaged = sorted(folder.rglob("*.png"))[0]
    damaged.write_bytes(damaged.read_bytes()[:200])
    make = ("index", models / "pixels", "my-photos", "--output", "new-index")
    assert recipes_cases.run(*make[:2], "my-photos:unreadable=stop", *make[3:]) == 2
    assert damaged.name in capsys.readouterr().err
    assert not Path("new-index").exists()
    assert "35 images" in printed(*make)
    with open_index(Path("new-index")) as index:
        assert damaged.name not in {Path(name).name for name in index.vectors.images.rows}
    lists = printed("data", "check", "my-photos", code=2).replace("my-photos/images/", "my-photos/")
    assert f"unreadable: my-photos/{damaged.name}" in lists


def test_evaluation_of_readable_pictures_is_asked_for(models, photos, printed, capsys):
    picture = sorted((photos / "my-photos").rglob("*.png"))[0]
    picture.write_bytes(picture.read_bytes()[:200])
    words = ("evaluate", models / "pixels", "--split", "all", "--data")
    assert recipes_cases.run(*words, "my-photos") == 2
    assert picture.name in capsys.readouterr().err
    shown = printed(*words, "my-photos:unreadable=skip")
    assert "35 images" in shown


def test_filters_by_columns(models, tmp_path, printed, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(load_dataset("scenes:images=36"), tmp_path / "photos")
    lines = Path("photos/captions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for number, row in enumerate(rows):
        row |= {"album": ("sea", "home")[number % 2], "year": 2000 + number}

    def write() -> None:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        Path("photos/captions.jsonl").write_text(lines, encoding="utf-8")

    write()
    made = ("index", models / "pixels", "photos", "--output", "index")
    assert "columns for --where: album, split, year" in printed(*made)
    where = ("--where", "album=sea", "--where", "year>=2020")
    wanted = {row["image"] for row in rows if row["album"] == "sea" and row["year"] >= 2020}
    hits = found(printed, "index", "a red circle", "--top", 36, *where)
    assert {hit["id"] for hit in hits} == wanted or len(hits) == len(wanted)
    assert all(hit["columns"]["album"] == "sea" for hit in hits)
    shown = printed("search", "index", "a red circle", "--top", 2, *where)
    assert "album" in shown
    assert "sea" in shown
    nothing = printed("search", "index", "a red circle", "--where", "album=x", "--where", "year>1")
    assert "no images of index fulfil album=x and year>1" in nothing
    for number in (0, 2):
        rows[number]["album"] = "moved"
    write()
    assert "columns of 2 images updated" in printed(*made, "--add")
    assert len(found(printed, "index", "a red circle", "--where", "album=moved")) == 2
    for bad, words in (("albun=x", "did you mean 'album'?"), ("album", "is no condition")):
        capsys.readouterr()
        assert recipes_cases.run("search", "index", "a dog", "--where", bad) == 2
        assert words in capsys.readouterr().err
    with_model = ("search", models / "pixels", "a dog", "--data", "photos", "--where", "year>1")
    assert recipes_cases.run(*with_model) == 2
    assert "--where is read only with an index" in capsys.readouterr().err


def test_the_dev_split_of_its_own_data_is_new_to_a_model(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = "scenes:images=200,dev=60,test=10"
    clip = ("contrastive", "--model", models / "clip", "--tune", "frozen", "--epochs", 1)
    assert recipes_cases.run("train", *clip, "--data", data, "--output", "run") == 0
    assert recipes_cases.run("index", "run", data, "--output", "index") == 0
    capsys.readouterr()
    assert recipes_cases.run("index", "--output", "index", "--calibrate", data) == 0
    shown = capsys.readouterr()
    assert "captions are judged by 60 photos with 300 captions of scenes (dev)" in shown.out
    assert "trained on some of these photos" not in shown.out
    assert "too sure" not in shown.err
