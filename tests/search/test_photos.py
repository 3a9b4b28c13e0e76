"""A query in a folder of photos, with a tiny CLIP in the place of the public one."""

from __future__ import annotations

import importlib.util
import json
import shutil
import webbrowser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlparse

import huggingface_hub
import pytest
from PIL import Image

import recipes_cases
from counterfoil.data.readers import load_dataset
from counterfoil.search import index as index_module
from counterfoil.search.at_hand import announce_download, models_at_hand
from counterfoil.search.photos import FOLDER, MODEL, open_photos

TINY = Path(__file__).parents[2] / "examples" / "_tiny.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A cache of the hub that holds a tiny CLIP under the name of the default model."""
    spec = importlib.util.spec_from_file_location("_tiny", TINY)
    tiny = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    root = tmp_path_factory.mktemp("hub")
    folder = root / f"models--{MODEL.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    tiny.tiny_clip(snapshot)
    return root


@pytest.fixture
def hub(cache, monkeypatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("COUNTERFOIL_MODEL", raising=False)
    return cache


@pytest.fixture
def photos(tmp_path, hub, monkeypatch) -> Path:
    """A folder of twelve pictures, which is the current one."""
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    scenes = load_dataset("scenes:images=12").pictures
    for row in range(12):
        scenes.open(row).save(folder / ("trip" if row > 8 else "") / f"{row}.png")
    monkeypatch.chdir(folder)
    return folder


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def searched(*words: object) -> None:
    assert recipes_cases.run("search", "a red circle", *words) == 0


def test_one_command_in_a_folder_of_photos(photos, capsys, monkeypatch):
    searched("--top", 3)
    shown = capsys.readouterr()
    assert f"indexing 12 photos by {MODEL}, once" in " ".join(shown.err.split())
    assert shown.out.count(".png") == 3
    assert "caption" not in shown.out
    assert sorted(path.name for path in photos.iterdir() if path.suffix != ".png") == [
        FOLDER,
        "trip",
    ]

    def refused(*_: object) -> None:
        raise AssertionError("an image is encoded")

    with monkeypatch.context() as patch:
        patch.setattr(index_module, "encode_images", refused)
        searched("--top", 3)
        again = capsys.readouterr()
        assert (again.out, again.err) == (shown.out, "")
        Path("0.png").rename("first.png")
        searched()
        assert "12 photos; since the last search, 1 renamed" in said(capsys)
    Path("1.png").unlink()
    Image.new("RGB", (40, 40), "navy").save("2.png")
    Image.new("RGB", (40, 40), "red").save("trip/new.png")
    for name in ("damaged.png", "3.png"):
        Path(name).write_bytes(b"no picture")
    searched("--json", "--top", 20)
    shown = capsys.readouterr()
    told = " ".join(shown.err.split())
    assert "11 photos; since the last search, 1 new, 1 changed, 1 deleted, 1 no longer" in told
    assert "left out 2 unreadable pictures" in told
    names = {hit["id"] for hit in json.loads(shown.out)["results"]}
    kept = {
        "first.png",
        *(f"{n}.png" for n in (2, *range(4, 9))),
        *(f"trip/{n}.png" for n in (9, 10, 11)),
    }
    assert names == {*kept, "trip/new.png"}


def test_another_folder_a_page_and_a_picture_as_query(photos, tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.chdir(tmp_path)
    searched("--photos", "photos", "--open", "--top", 2)
    page = Path(urlparse(opened[0]).path)
    assert str(page) in capsys.readouterr().out
    assert page.read_text().count("data:image/") >= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]
    words = ("search", "photos/3.png", "--photos", "photos", "--json")
    assert recipes_cases.run(*words) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["id"] == "3.png"


def test_an_index_of_each_model_which_is_made_again_where_it_does_not_fit(
    photos, cache, tmp_path, capsys, monkeypatch
):
    place = next((cache / f"models--{MODEL.replace('/', '--')}" / "snapshots").iterdir())
    own = shutil.copytree(place, tmp_path / "mine")
    monkeypatch.setenv("COUNTERFOIL_MODEL", str(own))
    searched()
    assert f"indexing 12 photos by {own}" in said(capsys)
    searched("--model", MODEL)
    assert f"indexing 12 photos by {MODEL}" in said(capsys)
    assert len([*(photos / FOLDER).iterdir()]) == 2
    settings = json.loads((own / "preprocessor_config.json").read_text())
    (own / "preprocessor_config.json").write_text(json.dumps(settings | {"image_mean": [0.4] * 3}))
    searched()
    assert "indexing 12 photos" in said(capsys)  # by what is another model now
    for manifest in (photos / FOLDER).glob("*/manifest.json"):
        manifest.write_text("{")
    searched()
    assert "indexing 12 photos" in said(capsys)


def test_what_cannot_be_searched(photos, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    refused = {
        ("a dog", "--photos", tmp_path / "empty"): "holds no pictures",
        ("a", "dog", "in", "the", "snow"): "5 words are given; write the query in quotes",
        ("a dog", "--split", "dev"): "--split is read only with an index or a model",
        ("trip",): 'counterfoil search "a dog in the snow" --photos trip',
        ("trip", "a dog"): 'counterfoil search "a dog" --photos trip',
        ("x", "a dog", "--photos", "trip"): "--photos is read only with a query alone",
    }
    for words, told in refused.items():
        assert recipes_cases.run("search", *words) == 2
        assert told in said(capsys)
    assert not (photos / FOLDER).exists()
    (photos / FOLDER).symlink_to(tmp_path / "empty")
    with pytest.raises(ValueError, match="is a link, which is not followed"):
        open_photos(photos)


def test_a_model_that_is_not_at_hand(photos, tmp_path, capsys, monkeypatch):
    assert models_at_hand() == [MODEL]
    assert recipes_cases.run("search", "a dog", "--model", "nobody/nothing") == 2
    told = said(capsys)
    assert "nobody/nothing is not on this machine, and the hub cannot be reached" in told
    assert f"at hand: {MODEL}" in told
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "none"))
    assert recipes_cases.run("search", "a dog") == 2
    assert "no model is at hand: go online once" in said(capsys)
    assert not (photos / FOLDER).exists()


def test_a_download_is_announced_with_its_size(hub, capsys, monkeypatch):
    files = {"config.json": 4000, "model.safetensors": 605_000_000, "pytorch_model.bin": 6e8}

    class Hub:
        def model_info(self, name: str, *, files_metadata: bool) -> SimpleNamespace:
            assert files_metadata
            files_here = [SimpleNamespace(rfilename=n, size=size) for n, size in files.items()]
            return SimpleNamespace(siblings=files_here)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    announce_download("somebody/clip")
    assert "downloading somebody/clip from the Hugging Face hub, 605 MB, once" in said(capsys)
    announce_download(MODEL)  # it is there
    assert said(capsys) == ""
