"""``counterfoil write rules``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Images, Seed, Split, example

app = typer.Typer(no_args_is_help=True, help="False captions, written and stored.")


@app.command(
    "rules",
    epilog=example(
        "counterfoil write rules scenes --out written/",
        "counterfoil write rules flickr8k/ --out written/ --kind noun --kind relation --most 10",
    ),
)
def rules(
    data: Annotated[str, typer.Argument(help="Folder, file or name.")],
    out: Annotated[Path, typer.Option(help="Folder of the foils; must not exist yet.")],
    images: Images = None,
    split: Split = "train",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="noun, numeral or relation; may be given many times; default all."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Foils of a kind and caption, at most.")] = 5,
    frequency: Annotated[
        int | None,
        typer.Option(min=1, help="Nouns written stand as often in training captions."),
    ] = None,
    synonyms: Annotated[
        str, typer.Option(help="What may name the same: `list`, or `wordnet`, which needs nltk.")
    ] = "list",
    seed: Seed = 0,
) -> None:
    """Change a noun, a number or a relation of every caption; `counterfoil foils` asks them."""
    from counterfoil.recipes.run import Source
    from counterfoil.recipes.writing import RulePlan, write_rules

    plan = RulePlan(
        split=split,
        kinds=tuple(kind or ()),
        most=most,
        frequency=frequency,
        synonyms=synonyms,
        seed=seed,
    )
    write_rules(Source(data, images=images), plan, out)
