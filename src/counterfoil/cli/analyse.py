"""``counterfoil analyse``: figures and tables of the papers AOQ, NDGL and TAGS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    Count,
    DataOptions,
    Models,
    OneModel,
    Page,
    Query,
    Seed,
    Split,
    data_options,
    example,
    refuse,
    refuse_without,
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Draw figures and tables of the papers: a table, a page and JSON.",
)

Anchors = Annotated[int, typer.Option(min=1, help="How many images, a caption of each.")]
Batch = Annotated[int, typer.Option(min=2, help="Captions in a batch.")]
Examples = Annotated[int, typer.Option(min=0, help="Examples on the page.")]
Keep = Annotated[int, typer.Option(min=1, help="Captions kept of each, the hardest.")]
Masks = Annotated[int, typer.Option(min=1, help="Maskings of a caption.")]
Refills = Annotated[int, typer.Option(min=1, help="Refills of each masking.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of finished runs.")]
Stores = Annotated[
    list[Path], typer.Argument(metavar="STORE...", help="Folders of written captions.")
]
Temperature = Annotated[float, typer.Option(help="Temperature of the draw of words.")]
Trainings = Annotated[
    list[Path], typer.Argument(help="Training stages, or runs with all their trainings.")
]

GENERATION = ("masks", "refills", "temperature", "keep")  # rules use only the last


@app.command(
    "online-rank",
    epilog=example(
        "counterfoil analyse online-rank runs/demo/online --data scenes --out rank.html"
    ),
)
@data_options
def online_rank(
    model: OneModel,
    out: Page,
    data: DataOptions,
    split: Split = "train",
    batch: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Captions in a batch; many times; default 32 to 1,024."),
    ] = None,
    anchors: Annotated[int, typer.Option(min=2, help="How many anchor captions.")] = 200,
    draws: Annotated[int, typer.Option(min=1, help="Batches for each anchor and size.")] = 20,
    top: Annotated[int, typer.Option(min=1, help="So many captions are the hardest.")] = 100,
    seed: Seed = 0,
) -> None:
    """Rank the hardest negatives of random batches in a whole split, for several batch sizes."""
    from counterfoil.analysis import aoq

    aoq.online_rank(
        model,
        data.source(),
        out,
        split=split,
        batches=batch or (),
        anchors=anchors,
        draws=draws,
        top=top,
        seed=seed,
    )


@app.command(
    epilog=example(
        "counterfoil analyse negatives runs/demo/online --data scenes --lists runs/demo/lists "
        "--out negatives.html"
    )
)
@data_options
def negatives(
    model: OneModel,
    out: Page,
    data: DataOptions,
    split: Split = "train",
    lists: Annotated[
        Path | None, typer.Option(help="Folder of mined lists; default the model's own hardest.")
    ] = None,
    anchors: Annotated[int, typer.Option(min=1, help="How many images.")] = 6,
    batch: Batch = 128,
    top: Annotated[int, typer.Option(min=1, help="Draw from so many hardest captions.")] = 300,
    shown: Annotated[int, typer.Option(min=1, help="Negatives of each kind.")] = 3,
    seed: Seed = 0,
) -> None:
    """Show online and offline negatives of some anchors side by side."""
    from counterfoil.analysis import aoq

    aoq.negative_examples(
        model,
        data.source(),
        out,
        split=split,
        lists=lists,
        anchors=anchors,
        batch=batch,
        top=top,
        shown=shown,
        seed=seed,
    )


@app.command(epilog=example("counterfoil analyse curves runs/demo --out curves.html"))
def curves(folders: Trainings, out: Page) -> None:
    """Draw learning curves of several trainings, as one per loss."""
    from counterfoil.analysis import aoq

    aoq.curves(folders, out)


@app.command(
    "cross-rank",
    epilog=example(
        "counterfoil analyse cross-rank runs/demo/online runs/demo/adaptive --data scenes "
        "--out cross.html"
    ),
)
@data_options
def cross_rank(models: Models, out: Page, data: DataOptions, split: Split = "test") -> None:
    """Count true pairs by their rank among wrong texts and wrong images alike."""
    from counterfoil.analysis import aoq

    aoq.cross_rank(models, data.source(), out, split=split)


@app.command(
    epilog=example(
        "counterfoil analyse margins runs/ndgl/gpo-scenes/teacher-1 runs/ndgl/gpo-scenes/student "
        "--data scenes --out margins.html"
    )
)
@data_options
def margins(models: Models, out: Page, data: DataOptions, split: Split = "test") -> None:
    """Draw how far true counterparts score above the hardest wrong ones."""
    from counterfoil.analysis import ndgl

    ndgl.margin_distributions(models, data.source(), out, split=split)


@app.command(
    epilog=example("counterfoil analyse quantiles runs/demo/online --data scenes --out q.html")
)
@data_options
def quantiles(
    model: OneModel,
    out: Page,
    data: DataOptions,
    split: Split = "test",
    top: Annotated[int, typer.Option(min=1, help="Negatives of a query.")] = 30,
    level: Annotated[float, typer.Option(help="Similarity below which shares are counted.")] = 0.5,
) -> None:
    """Draw how similar the hardest negatives are, to the query and to each other."""
    from counterfoil.analysis import ndgl

    ndgl.quantiles(model, data.source(), out, split=split, top=top, level=level)


@app.command(
    "map",
    epilog=example("counterfoil analyse map runs/demo/online --data scenes --out map.html"),
)
@data_options
def neighbourhood_map(
    context: typer.Context,
    model: OneModel,
    out: Page,
    data: DataOptions,
    split: Split = "test",
    query: Query = None,
    count: Count = 1,
    negatives: Annotated[int, typer.Option(min=1, help="Wrong counterparts on each map.")] = 100,
    method: Annotated[str, typer.Option(help="`tsne` or `pca`.")] = "tsne",
    seed: Seed = 0,
) -> None:
    """Draw embeddings of queries, their true counterparts and their nearest wrong ones."""
    refuse_without(context, "query", ("count", "seed"), alone=True)
    from counterfoil.analysis import ndgl

    ndgl.maps(
        model,
        data.source(),
        out,
        split=split,
        queries=query or (),
        count=count,
        negatives=negatives,
        method=method,
        seed=seed,
    )


@app.command(
    epilog=example(
        "counterfoil analyse student runs/ndgl/gpo-scenes runs/ndgl/chan-scenes --out student.html"
    )
)
def student(folders: Runs, out: Page) -> None:
    """Compare students with their teachers and the teachers' ensemble, one run a model."""
    from counterfoil.analysis import ndgl

    ndgl.student(folders, out)


@app.command(
    epilog=example(
        "counterfoil analyse against teachers runs/ndgl/teachers/chan-scenes --out teachers.html",
        "counterfoil analyse against batch runs/ndgl/batches/chan-scenes --out batches.html",
    )
)
def against(
    quantity: Annotated[str, typer.Argument(help="`teachers` or `batch`.")],
    folders: Runs,
    out: Page,
) -> None:
    """Draw results against the number of teachers, or against the size of a batch."""
    from counterfoil.analysis import ndgl

    ndgl.against(quantity, folders, out)


@app.command(
    epilog=example(
        "counterfoil analyse triples runs/tags-dc/uniter-scenes/tags-dc "
        "--judge runs/demo/online --data scenes:features=regions --out triples.html",
        "counterfoil analyse triples openai/clip-vit-base-patch32 --data flickr8k/ "
        "--written written/ --split test --out triples.html",
    )
)
@data_options
def triples(
    context: typer.Context,
    models: Models,
    out: Page,
    data: DataOptions,
    split: Split = "test",
    anchors: Anchors = 200,
    batch: Batch = 128,
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
    """Compare negatives of batches, of the whole set and written ones with their positives."""
    refuse_without(context, "written", GENERATION, alone=True)
    from counterfoil.analysis import tags
    from counterfoil.analysis.captions import GenerationSettings

    generation = GenerationSettings(
        masks=masks, refills=refills, keep=keep, temperature=temperature
    )
    plan = tags.TripleSettings(
        split=split,
        anchors=anchors,
        batch=batch,
        level=level,
        writer=writer,
        written=written,
        generation=generation,
        seed=seed,
    )
    tags.triples(models, data.source(), out, judges=judge or (), plan=plan)


@app.command(
    epilog=example(
        "counterfoil analyse difficulty runs/tags/ablations/static/uniter-scenes --out hard.html"
    )
)
def difficulty(folders: Trainings, out: Page) -> None:
    """Draw how hard written captions are during training, static and dynamic ones."""
    from counterfoil.analysis import tags

    tags.difficulty(folders, out)


@app.command(
    epilog=example(
        "counterfoil analyse discrimination runs/tags-dc/uniter-scenes/tags-dc "
        "runs/demo/online --data scenes:features=regions --out table.html",
        "counterfoil analyse discrimination openai/clip-vit-base-patch32 --data flickr8k/ "
        "--foils written/ --no-rules --out table.html",
    )
)
@data_options
def discrimination(
    context: typer.Context,
    models: Models,
    out: Page,
    data: DataOptions,
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
    """Compare how well models, and a blind one, tell captions from foils of many sources."""
    if foils and not writer:
        unused = GENERATION[:-1] if rules else GENERATION
        refuse(context, unused, "with --writer, where --foils are given")
    from counterfoil.analysis import tags
    from counterfoil.analysis.captions import GenerationSettings

    generation = GenerationSettings(
        masks=masks, refills=refills, keep=keep, temperature=temperature
    )
    plan = tags.DiscriminationSettings(
        split=split,
        anchors=anchors,
        stores=tuple(foils or ()),
        writers=tuple(writer) if writer else None,
        rules=rules,
        others=others,
        generation=generation,
        seed=seed,
    )
    tags.discrimination(models, data.source(), out, plan=plan)


@app.command(
    "true-rate",
    epilog=example(
        "counterfoil analyse true-rate written/ --data scenes --out true.html",
        "counterfoil analyse true-rate --crowd annotations/CrowdFlowerAnnotations.txt "
        "--data flickr8k/ --guide runs/demo/online --out crowd.html",
        "counterfoil analyse true-rate written/ --answers anna.csv --answers ben.csv "
        "--data flickr8k/ --out people.html",
    ),
)
@data_options
def true_rate(
    context: typer.Context,
    out: Page,
    data: DataOptions,
    stores: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[STORE]...", help="Folders of written captions."),
    ] = None,
    crowd: Annotated[
        Path | None, typer.Option(help="Crowd judgements of captions of other pictures.")
    ] = None,
    answers: Annotated[
        list[Path] | None,
        typer.Option(help="Sheet of `analyse sheet`, filled in by one person; many times."),
    ] = None,
    guide: Annotated[
        str | None, typer.Option(help="Model that filters too; joined by `+`: ensemble.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Sentence encoder that filters too; it sees no picture.")
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
    from counterfoil.analysis import true_rate as true_rate_module

    true_rate_module.true_rate(
        stores or (),
        data.source(),
        out,
        crowd=crowd,
        answers=answers or (),
        guide=guide,
        encoder=encoder,
        slack=slack,
        examples=examples,
        seed=seed,
    )


@app.command(
    epilog=example(
        "counterfoil analyse sheet tags/ rules/ --data flickr8k/ --count 200 --out sheet.csv"
    )
)
@data_options
def sheet(
    stores: Stores,
    out: Annotated[Path, typer.Option(help="CSV file to write; must not exist yet.")],
    data: DataOptions,
    count: Annotated[int, typer.Option(min=1, help="Sentences of each folder.")] = 200,
    seed: Seed = 0,
) -> None:
    """Write a CSV sheet on which people judge written captions; `true-rate --answers` reads it."""
    from counterfoil.analysis.true_rate import export_sheet

    export_sheet(stores, data.source(), out, count=count, seed=seed)


@app.command(
    epilog=example(
        "counterfoil analyse words runs/tags-dc/uniter-scenes/tags-dc "
        "--data scenes:features=regions --out words.html"
    )
)
@data_options
def words(
    model: OneModel,
    out: Page,
    data: DataOptions,
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
    """Measure how well a model finds and corrects the wrong words of written captions."""
    from counterfoil.analysis import tags_dc
    from counterfoil.analysis.captions import GenerationSettings

    settings = GenerationSettings(masks=masks, refills=refills, keep=keep, temperature=temperature)
    tags_dc.words(
        model,
        data.source(),
        out,
        split=split,
        anchors=anchors,
        writer=writer,
        settings=settings,
        seed=seed,
    )


@app.command(
    epilog=example(
        "counterfoil analyse fluency written/ rules/ --data scenes --out fluency.html",
        "counterfoil analyse fluency written/ --each 1 --lm gpt2 --data flickr8k/ --out f.html",
        "counterfoil analyse fluency written/ --corrector runs/tags-dc/uniter-scenes/tags-dc "
        "--data scenes:features=regions --out fluency.html",
    ),
)
@data_options
def fluency(
    stores: Stores,
    out: Page,
    data: DataOptions,
    lm: Annotated[
        str | None,
        typer.Option(help="Causal language model, folder or HF name; default n-grams we train."),
    ] = None,
    each: Annotated[
        int | None, typer.Option(min=1, help="So many of the first of each caption; default all.")
    ] = None,
    corrector: Annotated[
        str | None, typer.Option(help="Model that corrects the captions, measured again.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Compare the perplexity of written captions with that of those they were made of."""
    from counterfoil.analysis import tags_dc

    tags_dc.caption_fluency(
        stores, data.source(), out, lm=lm, each=each, corrector=corrector, seed=seed
    )


@app.command(
    epilog=example(
        "counterfoil analyse cases runs/tags/hard runs/tags-dc/tags-dc --written written/ "
        "--data scenes:features=regions --out cases.html",
    ),
)
@data_options
def cases(
    models: Models,
    written: Annotated[Path, typer.Option(help="Folder of written captions.")],
    out: Page,
    data: DataOptions,
    count: Annotated[int, typer.Option(min=1, help="Cases of each kind.")] = 3,
    sample: Annotated[int, typer.Option(min=1, help="Captions that both score, at most.")] = 2000,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Doubt from which a word counts as wrong.")
    ] = 0.5,
    seed: Seed = 0,
) -> None:
    """Show captions, what was written of them and corrections, with the scores of two models."""
    from counterfoil.analysis import tags_dc

    settings = tags_dc.CasesSettings(count=count, sample=sample, threshold=threshold, seed=seed)
    tags_dc.cases(models, written, data.source(), settings, out)
