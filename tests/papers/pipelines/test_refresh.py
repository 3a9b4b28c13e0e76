"""A run whose second round mines anew.

Killed, resumed and with two processes, mining anew is tried in `tests/training/test_kill.py` and
`tests/distributed/test_fit.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import stage_digests
from counterfoil.recipes.catalogue import find_recipe
from recipes_cases import FEW_CHANNELS, SMALL, SMALL_LISTS, run

DATA = "scenes:images=36"
SETTINGS = (
    *(*SMALL, *FEW_CHANNELS, *SMALL_LISTS),
    *("--set", "*.model.text.dropout=0.2", "--set", "*.epochs=1", "--set", "adaptive.epochs=2"),
    *(
        "--set",
        "online.objective.triplet.steps=4",
        "--set",
        "adaptive.objective.quintuplet.steps=4",
    ),
    *("--set", "adaptive.mined.remine.every=1"),
)


def again(folder: Path, *more: object) -> int:
    words = ("run", "aoq", "--data", DATA, "--output", folder, *SETTINGS)
    return run(*words, *more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert again(folder) == 0
    return folder


def test_the_last_lists_are_kept(whole):
    (place,) = (whole / "adaptive" / "lists").iterdir()
    manifest = json.loads((place / "manifest.json").read_text())
    assert place.name.endswith("-1")
    assert (manifest["texts_per_image"], manifest["images_per_text"]) == (20, 5)
    assert not list(whole.rglob(".*"))
    first, last = (folder / "texts.npy" for folder in (whole / "lists", place))
    assert first.read_bytes() != last.read_bytes()


def test_it_is_another_training_but_not_where_it_is_off():
    recipe = find_recipe("aoq")
    usual = stage_digests(recipe, "d")
    off, on = (apply_overrides(recipe, [f"adaptive.mined.remine.every={n}"]) for n in (0, 2))
    assert stage_digests(off, "d") == usual
    found = stage_digests(on, "d")
    assert [name for name in found if found[name] != usual[name]] == [
        "adaptive", "test-adaptive", "report"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "settings,message",
    [
        (("adaptive.REMINE.every=-1",), "every=-1: it may not be below 0"),
        (("adaptive.REMINE.filters.guided=0.1",), "a guide cannot filter lists"),
        (("adaptive.REMINE.every=1", "adaptive.mined.negatives=none"), "needs them from batch"),
        (("online.REMINE.every=1",), "needs none of it; choose a loss that does"),
        (("adaptive.REMINE.texts=5", "adaptive.mined.sampling.texts=9"), "lists of 5 are mined"),
    ],
)
def test_refused_before_anything_is_done(settings, message, tmp_path, capsys):
    spelt = (setting.replace("REMINE", "mined.remine") for setting in settings)
    words = [word for setting in spelt for word in ("--set", setting)]
    assert again(tmp_path / "run", *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
