"""``counterfoil report``: a page that compares finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import RESEARCH, DataOptions, data_options, example

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    rich_help_panel=RESEARCH,
    epilog=example(
        "counterfoil report runs/mine --data my-photos/ --output report.html",
        "counterfoil report runs/a/test-online runs/b/test-online --foils a.json --foils b.json",
        "counterfoil report runs/mine/best other-model/ --data my-photos/ --output report.html",
    ),
)
@data_options
def report(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs, of single evaluations, or, with --data, of models to evaluate."
        ),
    ],
    data: DataOptions,
    foils: Annotated[
        list[Path] | None,
        typer.Option(help="JSON file that `counterfoil foils --json` wrote; repeatable."),
    ] = None,
    page: Annotated[
        Path, typer.Option("--output", help="HTML page to write; its numbers go beside it.")
    ] = Path("report.html"),
) -> None:
    """Compare finished runs on one page: tests, curves, hardness, foils, cost, examples."""
    source = data.optional_source(context)
    from counterfoil.analysis.runs import report as compare
    from counterfoil.core.console import output
    from counterfoil.pipelines.publishing import check_page_path

    check_page_path(page)
    analysis = compare(runs, source=source, foils=foils or ())
    analysis.publish(page)
    if apart := analysis.numbers["apart"]:
        names = ", ".join(apart)
        output(f"not compared, as they were measured on other data or by another protocol: {names}")
