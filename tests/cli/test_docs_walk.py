"""The README from a folder of photos to a page that finds them, command by command."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import hub_cases
import recipes_cases
from counterfoil.cli import main
from counterfoil.data.readers import load_dataset

ROOT = Path(__file__).parents[2]
DATA = os.environ.get("COUNTERFOIL_DATA")
PHOTOS = 300
HEADING = "## The whole walk"


def commands() -> list[list[str]]:
    """Those of the walk in the documentation, in order."""
    text = (ROOT / "docs" / "fine-tune.md").read_text(encoding="utf-8")
    section = text.split(HEADING + "\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line]
    return [shlex.split(line.split("  #")[0])[1:] for line in lines]


def rendered(folder: Path) -> None:
    """Photos of our own, and one that is in no split."""
    dataset = load_dataset(f"scenes:images={PHOTOS}")
    lines = []
    for row in range(PHOTOS):
        dataset.pictures.open(row).resize((96, 96)).save(folder / f"{row}.jpg")
        own = [t for t, image in zip(dataset.texts, dataset.text_to_image.tolist()) if image == row]
        lines.append({"image": f"{row}.jpg", "captions": own})
    written(folder, lines)
    load_dataset("scenes:images=1,seed=9").pictures.open(0).save(folder.parent / "beach.jpg")


def real(folder: Path, data: Path) -> None:
    """Photos of Flickr8k, and one that is not among them."""
    plain = json.loads((data / "flickr8k" / "dataset_flickr8k.json").read_text())["images"]
    chosen = random.Random(0).sample(plain, PHOTOS + 1)
    lines = []
    for image in chosen[1:]:
        shutil.copy(data / "flickr8k" / "images" / image["filename"], folder)
        captions = [sentence["raw"] for sentence in image["sentences"]]
        lines.append({"image": image["filename"], "captions": captions})
    written(folder, lines)
    new = data / "flickr8k" / "images" / chosen[0]["filename"]
    shutil.copy(new, folder.parent / "beach.jpg")


def written(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def posted(address: str, form: bytes, kind: str) -> Any:
    asked = Request(f"{address}/search", data=form, headers={"Content-Type": kind})
    with urlopen(asked, timeout=300) as answer:
        return json.loads(answer.read())


def served(words: list[str], new: Path) -> None:
    """The command stays up until it is told to go; a new picture is dropped on it meanwhile."""
    command = [sys.executable, "-m", "counterfoil.cli", *words, "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            assert running.stdout is not None
            told = ""
            while not (found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", told)):
                line = running.stdout.readline()
                assert line, told
                told += line
            part = (
                b'--x\r\nContent-Disposition: form-data; name="picture"; filename="new.jpg"\r\n'
                b"Content-Type: image/jpeg\r\n\r\n" + new.read_bytes() + b"\r\n--x--\r\n"
            )
            answer = posted(found[0], part, "multipart/form-data; boundary=x")
            assert answer["results"]
            with urlopen(found[0], timeout=300) as page:
                assert "<html" in page.read().decode()
        finally:
            running.terminate()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """my-photos/, a new picture, and public models where their names lead offline."""
    (tmp_path / "my-photos").mkdir()
    clip, mobilenet = (
        tmp_path / name for name in ("openai/clip-vit-base-patch32", "google/mobilenet_v2_1.0_224")
    )
    clip.parent.mkdir()
    recipes_cases.clip_like(clip)
    mobilenet.parent.mkdir()
    if DATA:
        real(tmp_path / "my-photos", Path(DATA))
        mobilenet.symlink_to(Path(DATA) / "backbone_mobilenet_v2")
    else:
        rendered(tmp_path / "my-photos")
        hub_cases.mobilenet(mobilenet)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_command_of_the_walk_works_on_a_folder_of_photos(folder, capsys):
    pytest.importorskip("fastapi")
    walk = commands()
    verbs = [words[0] for words in walk]
    assert verbs[0] == "data"
    assert {"evaluate", "mine", "diagnose", "train", "index", "search", "serve", "explain"} < {
        *verbs
    }
    for words in walk:
        if words[0] == "serve":
            served(words, folder / "beach.jpg")
            continue
        code = main(words)
        shown = capsys.readouterr()
        assert code == 0, f"{words}: {shown.err}"
        with capsys.disabled():
            print(" ".join(words))
    for page in ("diagnosis.html", "report.html", "explained.html"):
        assert (folder / page).is_file(), page


def test_the_documentation_has_a_walk():
    assert len(commands()) > 8
