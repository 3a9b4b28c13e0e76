"""NegCLIP from scratch, killed and gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

import processes
from recipes_cases import SMALL, SMALL_LISTS, run

DATA = "scenes:images=36"
DROPOUT = ("--set", "*.model.text.dropout=0.2", "--set", "*.save_minutes=0")


def negclip(folder: Path) -> int:
    words = ("--data", DATA, "--output", folder, "--smoke", "--resume")
    return run("run", "negclip", *words, *SMALL, *SMALL_LISTS, *DROPOUT)


def results(folder: Path) -> list[bytes]:
    """The weights, and what was measured of them."""
    names = ("joined/model/model.safetensors", "test-joined/evaluation.json")
    return [(folder / name).read_bytes() for name in names]


def begun(folder: Path) -> int:
    return processes.forked(lambda: negclip(folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert negclip(folder) == 0
    return results(folder)


MOMENTS = ("lists/manifest.json", "written/manifest.json", "joined/checkpoints/last.safetensors")


@pytest.mark.slow
def test_killed_it_goes_on_to_the_same_numbers(whole: list[bytes], tmp_path: Path) -> None:
    """While neighbours and written captions join its batches, too."""
    folder = processes.cut(begun, tmp_path, *MOMENTS)
    assert negclip(folder) == 0
    assert not list(folder.rglob(".*")), "something half-written was left"
    assert results(folder) == whole
