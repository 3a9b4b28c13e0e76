"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.testing import CliRunner

from counterfoil.cli.options import DataOptions, Split, data_options


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
    assert second[1].source().data == "scenes"
    text = CliRunner().invoke(app, ["--help"]).output
    assert all(option in text for option in ("--features", "--corrections", "Do something."))
