"""``counterfoil foils``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Decisions, Features, Images, Split, example
from counterfoil.cli.unread import refuse, refuse_without

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil foils runs/demo/online scenes --blind scenes --html foils.html",
        "counterfoil foils openai/clip-vit-base-patch32 sugarcrepe/ --images coco/val2017",
        "counterfoil foils blind sugarcrepe/ --blind captions.txt",
    )
)
def foils(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Model folder or HF name; joined by `+`: ensemble; or `blind`.")
    ],
    foil_set: Annotated[
        list[str],
        typer.Argument(
            metavar="SET", help="Files or folder of a set, `scenes`, `order:scenes`, `FORM:PATH`."
        ),
    ],
    images: Images = None,
    features: Features = None,
    decisions: Decisions = None,
    split: Split = "test",
    blind: Annotated[
        str | None,
        typer.Option(help="Captions for a model that sees nothing: `.txt`, or data (train split)."),
    ] = None,
    ties: Annotated[
        str, typer.Option(help="`wrong`, or `aro`: ARO's own rule, for its sets.")
    ] = "wrong",
    seed: Annotated[int, typer.Option(min=0, help="Of foils, thresholds and intervals.")] = 0,
    examples: Annotated[int, typer.Option(min=0, help="Worst items on the page.")] = 12,
    html: Annotated[Path | None, typer.Option(help="Page with the worst items.")] = None,
    json: Annotated[Path | None, typer.Option(help="Numbers, and scores of every item.")] = None,
) -> None:
    """Ask which caption is true, and which is wrong by one detail."""
    from counterfoil.corpus.foil_sets import is_scenes
    from counterfoil.recipes.foils import FoilPlan, foils_with

    refuse_without(context, "html", ("examples",))
    if not is_scenes(foil_set[0]):
        refuse(context, ("split",), "with foils of scenes")
    if blind is None or blind.endswith(".txt"):
        refuse(context, ("decisions",), "with --blind and data, whose captions they are about")
    plan = FoilPlan(
        split=split, seed=seed, ties=ties, blind=blind, decisions=decisions, examples=examples
    )
    foils_with(model, foil_set, plan, images=images, features=features, page=html, out=json)
