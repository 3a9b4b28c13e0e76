"""A package of one's own, installed beside counterfoil: its parts train, save, open and mine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from counterfoil.core import registry
from counterfoil.data.readers import load_dataset

PACKAGE = Path(__file__).parents[2] / "examples" / "own_parts"


@pytest.mark.slow
def test_an_installed_package_adds_parts(tmp_path):
    site, photos = tmp_path / "site", tmp_path / "photos"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    ran(*install, "--no-index", "--target", site, PACKAGE)
    photos.mkdir()
    data = load_dataset("scenes:images=60")
    lines = []
    for row, name in enumerate(data.image_ids):
        data.pictures.open(row).save(photos / f"{name}.png")
        own = (text for text, owner in zip(data.texts, data.text_to_image.tolist()) if owner == row)
        lines += [f"{name}.png\t{text}" for text in own]
    (photos / "scenes.pairs").write_text("\n".join(lines))
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    counterfoil = ("-m", "counterfoil.cli")
    run = tmp_path / "run"
    ran(*counterfoil, "run", "own-parts", "--data", photos, "--output", run, path=paths)
    card = json.loads((run / "trained" / "model" / "model.json").read_text())
    assert card["model"]["call"] == "own-mean"
    mined = ("mine", run / "trained", "--data", photos, "--output", tmp_path / "lists")
    ran(*counterfoil, *mined, "--texts-per-image", "4", "--images-per-text", "2", path=paths)
    shown = ran(*counterfoil, "evaluate", run / "trained", "--data", photos, path=paths)
    assert "cosine" in shown or "inner product" in shown
    assert ran(*counterfoil, "count", photos, path=paths) == "5.0 captions an image\n"
    index = ("index", run / "trained", photos, "--output", tmp_path / "index")
    shown = ran(*counterfoil, *index, "--backend", "own-signs", path=paths)
    assert "own-signs" in shown
    assert list((tmp_path / "index").glob("*.engine"))
    search = ("search", tmp_path / "index", "a red circle", "--top", "3")
    assert "score" in ran(*counterfoil, *search, path=paths)
    assert "'own-signs', which is no engine here" in refused(
        "index", "--output", tmp_path / "index"
    )
    # without the package the folder is refused in a sentence
    folder = ("evaluate", run / "trained", "--data", "scenes:images=20")
    assert "own-mean" in refused(*folder)


def refused(*words: object) -> str:
    """What is said without the package."""
    done = subprocess.run(
        [sys.executable, "-m", "counterfoil.cli", *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    return " ".join(done.stderr.split())


def ran(*words: object, path: str | None = None) -> str:
    environment = os.environ | ({} if path is None else {"PYTHONPATH": path})
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_name_has_one_owner():
    @registry.register.training("of a test")
    def mine() -> None: ...

    assert registry.find("training", "of a test") is mine
    assert "of a test" in registry.names("training")
    assert registry.find("training", "of a test") is mine
    with pytest.raises(ValueError, match="there is a training 'triplet' already"):
        registry.register.training("triplet")(mine)
    with pytest.raises(ValueError, match="did you mean 'triplet'"):
        registry.find("training", "triplets")
    del registry._added["training", "of a test"]


def test_calls_in_files_do_not_say_a_kind_so_their_names_are_of_one():
    with pytest.raises(ValueError, match="there is a loss 'InfoNCELoss' already"):
        registry.register.part("InfoNCELoss")(Path)
    with pytest.raises(ValueError, match=r"'InfoNCELoss' is not .* the kinds model and part"):
        registry.find_called("InfoNCELoss", registry.SAVED)
    registry.register.engine("InfoNCELoss")(Path)  # no file calls an engine
    del registry._added["engine", "InfoNCELoss"]
