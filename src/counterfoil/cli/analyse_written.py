"""``counterfoil analyse``: what captions that were written are like (TAGS's tables)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    Data,
    Decisions,
    Features,
    Images,
    Models,
    Page,
    Seed,
    example,
    source,
)
from counterfoil.cli.unread import refuse_without

app = typer.Typer(rich_markup_mode="markdown")

Examples = Annotated[int, typer.Option(min=0, help="Examples on the page.")]


@app.command(
    "true-rate",
    epilog=example(
        "counterfoil analyse true-rate written/ --data scenes --out true.html",
        "counterfoil analyse true-rate --crowd annotations/CrowdFlowerAnnotations.txt "
        "--data flickr8k/ --guide runs/demo/online --out crowd.html",
    ),
)
def true_rate(
    context: typer.Context,
    out: Page,
    stores: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[STORE]...", help="Folders of captions written for scenes."),
    ] = None,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    crowd: Annotated[
        Path | None, typer.Option(help="What people think of captions of other pictures.")
    ] = None,
    guide: Annotated[
        str | None, typer.Option(help="Model that is asked too; joined by `+`: ensemble.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Sentence encoder that is asked too; it sees no picture.")
    ] = None,
    slack: Annotated[
        float, typer.Option(help="True from so much below what it was made of, by either.")
    ] = 0.0,
    examples: Examples = 6,
    seed: Seed = 0,
) -> None:
    """Count how many written captions are true, before and after each filter."""
    if encoder is None:
        refuse_without(context, "guide", ("slack",))
    from counterfoil.recipes.analyses import true_rate as analysis

    where = source(data, features, images, decisions)
    analysis.true_rate(
        stores or (), where, out, crowd=crowd, guide=guide, encoder=encoder, slack=slack,
        examples=examples, seed=seed,
    )  # fmt: skip


@app.command(
    epilog=example(
        "counterfoil analyse fluency written/ rules/ --data scenes --out fluency.html",
        "counterfoil analyse fluency written/ --each 1 --lm gpt2 --data flickr8k/ --out f.html",
        "counterfoil analyse fluency written/ --corrector runs/tags-dc/uniter-scenes/tags-dc "
        "--data scenes:features=regions --out fluency.html",
    ),
)
def fluency(
    stores: Annotated[
        list[Path], typer.Argument(metavar="STORE...", help="Folders of written captions.")
    ],
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    lm: Annotated[
        str | None,
        typer.Option(help="Causal language model, folder or HF name; default n-grams we train."),
    ] = None,
    each: Annotated[
        int | None, typer.Option(min=1, help="So many of the first of each caption; default all.")
    ] = None,
    corrector: Annotated[
        str | None, typer.Option(help="Model that corrects what was written, measured again.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Compare the perplexity of written captions with that of those they were made of."""
    from counterfoil.recipes.analyses import fluency as analysis

    where = source(data, features, images, decisions)
    analysis.fluent(stores, where, out, lm=lm, each=each, corrector=corrector, seed=seed)


@app.command(
    epilog=example(
        "counterfoil analyse cases runs/tags/hard runs/tags-dc/tags-dc --written written/ "
        "--data scenes:features=regions --out cases.html",
    ),
)
def cases(
    models: Models,
    written: Annotated[Path, typer.Option(help="Folder of written captions.")],
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    count: Annotated[int, typer.Option(min=1, help="Cases of each kind.")] = 3,
    sample: Annotated[int, typer.Option(min=1, help="Captions that both score, at most.")] = 2000,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Doubt from which a word counts as wrong.")
    ] = 0.5,
    seed: Seed = 0,
) -> None:
    """Show captions, what was written of them and corrections, with the scores of two models."""
    from counterfoil.recipes.analyses import cases as analysis

    plan = analysis.CasesPlan(count=count, sample=sample, threshold=threshold, seed=seed)
    analysis.cases(models, written, source(data, features, images, decisions), plan, out)
