"""``counterfoil diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Data, Decisions, Features, Images, Numbers, example, source

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil diagnose runs/demo/lists --model runs/demo/online --data scenes",
        "counterfoil diagnose lists/ --data flickr8k/ --alike 0.7 --json diagnosis.json",
    )
)
def diagnose(
    store: Annotated[Path, typer.Argument(help="Folder of mined negatives.")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="Whose scores to compare: model folder or HF name; several: ensemble."),
    ] = None,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    samples: Annotated[int, typer.Option(min=1, help="Captions whose lists are looked at.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw of captions.")] = 0,
    alike: Annotated[
        float, typer.Option(help="TF-IDF cosine from which a text is suspected to be true.")
    ] = 0.6,
    examples: Annotated[int, typer.Option(min=0, help="Anchors of each side on the page.")] = 6,
    page: Annotated[
        Path, typer.Option("--html", "--page", help="Page of examples, with the pictures.")
    ] = Path("diagnosis.html"),
    out: Numbers = None,
) -> None:
    """Say how hard mined negatives are, how crowded, and how many may be true after all."""
    from counterfoil.recipes.diagnose import diagnose_with
    from counterfoil.recipes.diagnosis import DiagnosisPlan

    where = source(data, features, images, decisions)
    plan = DiagnosisPlan(samples=samples, seed=seed, alike=alike)
    diagnose_with(store, model or (), where, plan, page=page, examples=examples, out=out)
