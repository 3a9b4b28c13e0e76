"""``counterfoil report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Decisions, Features, Images, example, refuse_without

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil report runs/demo --data scenes --out report.html",
        "counterfoil report runs/a/test-online runs/b/test-online --foils a.json --foils b.json",
    )
)
def report(
    context: typer.Context,
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or of single evaluations in them.")
    ],
    data: Annotated[
        str | None, typer.Option(help="The runs' data, to show queries on which they differ.")
    ] = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    foils: Annotated[
        list[Path] | None, typer.Option(help="What `counterfoil foils --json` wrote; many times.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page; its numbers go beside it.")] = Path(
        "report.html"
    ),
) -> None:
    """Compare finished runs on one page: tests, curves, hardness, foils, cost, pictures."""
    from counterfoil.analysis.runs import ReportPlan, report_with
    from counterfoil.pipelines.run import DataSource

    refuse_without(context, "data", ("features", "images", "decisions"))
    source = DataSource(data, features, images, decisions) if data else None
    report_with(runs, ReportPlan(source, tuple(foils or ())), out)
