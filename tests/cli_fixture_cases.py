"""Models and calls that tests of the command line share."""

from __future__ import annotations

import html
import json
import re
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
    """What an analysis printed in one line, its page and its numbers.

    Of every analysis: the page has the verdict, then the protocol, then `figures` and the tables
    that were printed; the numbers are JSON without NaN and say how to get them.
    """

    def analysed(
        *words: object, data: str | None = SCENES, name: str = "page", figures: int | None = None
    ):
        out = tmp_path / f"{name}.html"
        given = ("--data", data) if data else ()
        code = recipes_cases.run("papers", "analyse", *words, *given, "--output", out)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        numbers = json.loads(out.with_suffix(".json").read_text(), parse_constant=pytest.fail)
        page = html.unescape(out.read_text())
        said = " ".join(shown.out.split())
        verdict = page.index('<p class="headline">')
        assert (
            page.index(f"<h1>{numbers['title']}</h1>") < verdict < page.index(numbers["protocol"])
        )
        first = re.search("<svg|<table|<article", page)
        assert first is None or page.index(numbers["protocol"]) < first.start()
        assert ">nan" not in page
        assert figures in (None, page.count("<svg"))
        headline = re.search('<p class="headline">(.*?)</p>', page, re.DOTALL)[1]
        assert " ".join(headline.split()) in said
        for title in re.findall('<h2 id="table-[0-9]+">(.*?)</h2>', page):
            assert " ".join(title.split()) in said
        assert numbers["provenance"]["command"]
        return said, page, numbers

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
