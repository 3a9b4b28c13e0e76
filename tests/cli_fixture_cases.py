"""Models and calls that tests of the command line share."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

import recipes_cases

SCENES = "scenes:images=36"


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A folder with the model folders "pixels", "regions" and "clip"."""
    root = tmp_path_factory.mktemp("models")
    recipes_cases.pixel_model(root / "pixels")
    recipes_cases.feature_model(root / "regions")
    recipes_cases.clip_like(root / "clip")
    return root


@pytest.fixture
def analysed(capsys, tmp_path):
    """What an analysis printed in one line, its page and its numbers."""

    def analysed(*words: object, data: str | None = SCENES, name: str = "page"):
        out = tmp_path / f"{name}.html"
        given = ("--data", data) if data else ()
        code = recipes_cases.run("papers", "analyse", *words, *given, "--output", out)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        numbers = json.loads(out.with_suffix(".json").read_text())
        page = html.unescape(out.read_text())
        assert numbers["protocol"] in page
        assert numbers["provenance"]["command"]
        return " ".join(shown.out.split()), page, numbers

    return analysed


@pytest.fixture
def printed(capsys):
    """Run a command and return its output in one line; the exit code must be `code`."""

    def printed(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        actual = recipes_cases.run(*words)
        shown = capsys.readouterr()
        assert actual == code, shown.err
        return " ".join(shown.out.split())

    return printed
