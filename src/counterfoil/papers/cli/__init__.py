"""``counterfoil papers``: the laboratory's verbs, in a group of their own."""

from __future__ import annotations

import typer

from counterfoil.cli.options import RESEARCH
from counterfoil.papers.cli import analyse, convert, graph, lists, write

app = typer.Typer(
    name="papers",
    no_args_is_help=True,
)
for part in (analyse, write, convert, lists, graph):
    app.add_typer(part.app)


@app.callback(rich_help_panel=RESEARCH)
def papers() -> None:
    """Figures and tables of the papers, generated captions, authors' checkpoints and lists."""
