"""``counterfoil judge``: whether people take written captions for true."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Data, Decisions, Images, Seed, example, source

app = typer.Typer(no_args_is_help=True, help="Have people judge captions, blind to the writer.")


@app.command(
    "export",
    epilog=example(
        "counterfoil judge export written/ --data scenes --out sheet/ --count 200 --annotators 2",
        "counterfoil judge export tags/ rules/ --data flickr8k/ --originals 20 --out sheet/",
    ),
)
def export(
    stores: Annotated[
        list[Path], typer.Argument(metavar="STORE...", help="Folders of written captions.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the sheet; must not exist yet.")],
    data: Data = None,
    images: Images = None,
    decisions: Decisions = None,
    count: Annotated[int, typer.Option(min=1, help="Sentences of each folder.")] = 200,
    originals: Annotated[int, typer.Option(min=0, help="True captions among them.")] = 0,
    annotators: Annotated[int, typer.Option(min=1, help="How many people.")] = 2,
    seed: Seed = 0,
) -> None:
    """Write pages and tables on which people say what is true of a picture."""
    from counterfoil.recipes.analyses import sheet

    plan = sheet.SheetPlan(count=count, originals=originals, annotators=annotators, seed=seed)
    sheet.export(stores, source(data, None, images), plan, out)


@app.command(
    "import",
    epilog=example(
        "counterfoil judge import sheet/ answers-1.json answers-2.json",
        "counterfoil judge import sheet/ answers-1.json answers-2.csv --out judged.html",
    ),
)
def read(
    sheet: Annotated[Path, typer.Argument(help="Folder of the sheet.")],
    answers: Annotated[list[Path], typer.Argument(help="What each saved, JSON or CSV.")],
    out: Annotated[
        Path | None, typer.Option(help="Page to write, .html; must not exist yet.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Say how many sentences were judged false, and how far people agree."""
    from counterfoil.recipes.analyses.sheet_page import judge

    judge(sheet, answers, out, seed=seed)
