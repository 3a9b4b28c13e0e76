"""``counterfoil analyse``: how hard written captions are, and who sees through them (TAGS)."""

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
    OneModel,
    Page,
    Seed,
    Split,
    example,
    source,
)
from counterfoil.cli.unread import refuse, refuse_without

app = typer.Typer(rich_markup_mode="markdown")

Anchors = Annotated[int, typer.Option(min=1, help="How many images, a caption of each.")]
Masks = Annotated[int, typer.Option(min=1, help="Maskings of a caption.")]
Refills = Annotated[int, typer.Option(min=1, help="Refills of each masking.")]
Keep = Annotated[int, typer.Option(min=1, help="Captions kept of each, the hardest.")]
Temperature = Annotated[float, typer.Option(help="Temperature of the draw of words.")]

PEN = ("masks", "refills", "temperature", "keep")  # how models write; rules heed the last


@app.command(
    epilog=example(
        "counterfoil analyse words runs/tags-dc/uniter-scenes/tags-dc "
        "--data scenes:features=regions --out words.html"
    )
)
def words(
    model: OneModel,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
    anchors: Anchors = 200,
    writer: Annotated[
        str | None, typer.Option(help="Another model that writes; default the model itself.")
    ] = None,
    masks: Masks = 20,
    refills: Refills = 20,
    keep: Keep = 10,
    temperature: Temperature = 1.5,
    seed: Seed = 0,
) -> None:
    """Ask a model which words of written captions are wrong, and what they ought to be."""
    from counterfoil.recipes.analyses import words as analysis
    from counterfoil.recipes.analyses.asking import Pen

    where = source(data, features, images, decisions)
    pen = Pen(masks=masks, refills=refills, keep=keep, temperature=temperature)
    analysis.words(
        model, where, out, split=split, anchors=anchors, writer=writer, pen=pen, seed=seed
    )


@app.command(
    epilog=example(
        "counterfoil analyse triples runs/tags-dc/uniter-scenes/tags-dc "
        "--judge runs/demo/online --data scenes:features=regions --out triples.html",
        "counterfoil analyse triples openai/clip-vit-base-patch32 --data flickr8k/ "
        "--written written/ --split test --out triples.html",
    )
)
def triples(
    context: typer.Context,
    models: Models,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
    anchors: Anchors = 200,
    batch: Annotated[int, typer.Option(min=2, help="Captions in a batch.")] = 128,
    level: Annotated[
        float, typer.Option(min=0, help="A negative so far below its positive is easy.")
    ] = 0.05,
    judge: Annotated[
        list[str] | None, typer.Option(help="Model that scores the same triples; many times.")
    ] = None,
    writer: Annotated[
        str | None, typer.Option(help="Model that writes; default each model itself.")
    ] = None,
    written: Annotated[
        Path | None, typer.Option(help="Folder of written captions, in place of a writer.")
    ] = None,
    masks: Masks = 20,
    refills: Refills = 20,
    keep: Keep = 10,
    temperature: Temperature = 1.5,
    seed: Seed = 0,
) -> None:
    """Set negatives of batches, of the whole set and written ones against their positives."""
    refuse_without(context, "written", PEN, alone=True)
    from counterfoil.recipes.analyses import triples as analysis
    from counterfoil.recipes.analyses.asking import Pen

    pen = Pen(masks=masks, refills=refills, keep=keep, temperature=temperature)
    plan = analysis.TriplePlan(
        split=split, anchors=anchors, batch=batch, level=level, writer=writer, written=written,
        pen=pen, seed=seed,
    )  # fmt: skip
    where = source(data, features, images, decisions)
    analysis.triples(models, where, out, judges=judge or (), plan=plan)


@app.command(
    epilog=example(
        "counterfoil analyse discrimination runs/tags-dc/uniter-scenes/tags-dc "
        "runs/demo/online --data scenes:features=regions --out table.html",
        "counterfoil analyse discrimination openai/clip-vit-base-patch32 --data flickr8k/ "
        "--foils written/ --no-rules --out table.html",
    )
)
def discrimination(
    context: typer.Context,
    models: Models,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
    anchors: Anchors = 200,
    foils: Annotated[
        list[Path] | None, typer.Option(help="Folder of written captions; many times.")
    ] = None,
    writer: Annotated[
        list[str] | None,
        typer.Option(help="Model that writes; default, without --foils, all that can."),
    ] = None,
    rules: Annotated[bool, typer.Option(help="Foils by VSE-C's rules too.")] = True,
    others: Annotated[int, typer.Option(min=0, help="Random captions for each.")] = 1,
    masks: Masks = 20,
    refills: Refills = 20,
    keep: Keep = 10,
    temperature: Temperature = 1.5,
    seed: Seed = 0,
) -> None:
    """Ask models, and one that sees nothing, to tell captions from foils of many sources."""
    if foils and not writer:
        refuse(context, PEN if not rules else PEN[:-1], "with --writer, where --foils are given")
    from counterfoil.recipes.analyses import discrimination as analysis
    from counterfoil.recipes.analyses.asking import Pen

    pen = Pen(masks=masks, refills=refills, keep=keep, temperature=temperature)
    plan = analysis.DuelPlan(
        split=split, anchors=anchors, stores=tuple(foils or ()),
        writers=tuple(writer) if writer else None, rules=rules, others=others, pen=pen, seed=seed,
    )  # fmt: skip
    analysis.discrimination(models, source(data, features, images, decisions), out, plan=plan)
