"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from cli_cases import ROOT
from counterfoil.cli.options import DataOptions, Split, current_spelling, data_options


def test_a_command_has_the_data_options_in_place_of_one_parameter():
    seen = []
    app = typer.Typer()

    @app.command()
    @data_options
    def command(
        model: Annotated[str, typer.Argument()], data: DataOptions, split: Split = "test"
    ) -> None:
        """Do something."""
        seen.append((model, data, split))

    words = ["m", "--data", "photos/", "--images", "pictures", "--split", "dev"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, ["m"]).exit_code == 0
    first, second = seen
    assert first == ("m", DataOptions("photos/", images=Path("pictures")), "dev")
    assert second == ("m", DataOptions(), "test")
    assert second[1].source("scenes").data == "scenes"
    with pytest.raises(ValueError, match=r"no data set is given; add --data"):
        second[1].source()
    text = CliRunner().invoke(app, ["--help"]).output
    assert all(option in text for option in ("--features", "--corrections", "Do something."))


@pytest.mark.papers
@pytest.mark.parametrize(
    ("line", "current"),
    [
        ("mine m --out lists --decisions c", "mine m --output lists --corrections c"),
        ("run demo --folder=runs/a", "run demo --output=runs/a"),
        ("diagnose l --html p --out n", "diagnose l --output p --json n"),
        ("diagnose l --page p --json n", "diagnose l --output p --json n"),
        ("evaluate m --out n", "evaluate m --json n"),
        ("papers analyse curves r --out p", "papers analyse curves r --output p"),
        ("search i q --page p --json", "search i q --output p --json"),
        ("plan demo --out p", "plan demo --out p"),
        ("explain m --data d --corrections 2", "explain m --data d --alternatives 2"),
        ("explain m --data d --corrections=c", "explain m --data d --corrections=c"),
    ],
)
def test_options_of_the_last_release_are_accepted(line, current):
    assert current_spelling(ROOT, line.split()) == current.split()
