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
    ran(*counterfoil, *mined, "--texts", "4", "--images-per-text", "2", path=paths)
    shown = ran(*counterfoil, "evaluate", run / "trained", "--data", photos, path=paths)
    assert "cosine" in shown or "inner product" in shown
    # without the package the folder is refused in a sentence
    done = subprocess.run(
        [sys.executable, *counterfoil, "evaluate", run / "trained", "--data", "scenes:images=20"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "own-mean" in done.stderr


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
