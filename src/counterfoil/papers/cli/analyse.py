"""``counterfoil papers analyse``: figures and tables of the papers AOQ, NDGL and TAGS."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

import typer

from counterfoil.cli.options import (
    Count,
    Data,
    Models,
    OneModel,
    Page,
    Query,
    Seed,
    Split,
    data_options,
    data_source,
    example,
    refuse,
    refuse_without,
)

app = typer.Typer(
    name="analyse",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Figures and tables of the papers: a table, an HTML page and JSON.",
)


Anchors = Annotated[int, typer.Option(min=1, help="Number of images; one caption of each.")]
Batch = Annotated[int, typer.Option(min=2, help="Captions in a batch.")]
Examples = Annotated[int, typer.Option(min=0, help="Examples on the page.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of finished runs.")]
Stores = Annotated[
    list[Path], typer.Argument(metavar="STORE...", help="Folders of generated captions.")
]
Trainings = Annotated[
    list[Path], typer.Argument(help="Training stages, or runs with all their training stages.")
]

GENERATION = ("masks", "refills", "temperature", "keep")  # rules use only the last


@final
@dataclass(frozen=True)
class GenerationOptions:
    """The options of a verb whose models generate captions; see `data_options`."""

    masks: Annotated[int, typer.Option(min=1, help="Maskings of a caption.")] = 20
    refills: Annotated[int, typer.Option(min=1, help="Refills of each masking.")] = 20
    keep: Annotated[int, typer.Option(min=1, help="Hardest captions to keep of each.")] = 10
    temperature: Annotated[float, typer.Option(help="Sampling temperature of words.")] = 1.5

    def settings(self) -> dict[str, Any]:
        """Arguments of an analysis."""
        from counterfoil.papers.tags.generation import MaskRefill

        refill = MaskRefill(masks=self.masks, refills=self.refills, temperature=self.temperature)
        return {"mask_refill": refill, "keep": self.keep}


def analysis(
    function: str, *examples: str, name: str | None = None
) -> Callable[[Callable[..., None]], None]:
    """Add a verb that publishes a function of the papers' figures as a page.

    The decorated function has the options, which are passed on under their names, those that are
    not given not at all; it may refuse options that have no effect.
    """

    def add(options: Callable[..., None]) -> None:
        @functools.wraps(options)
        def run(**values: Any) -> None:
            from counterfoil.core import distributed
            from counterfoil.pipelines.publishing import check_page_path

            options(**values)
            page, _ = values.pop("page"), values.pop("context", None)
            if "data" in values:
                values["source"] = data_source(values.pop("data"))
            if "generation" in values:
                values |= values.pop("generation").settings()
            arguments = {name: value for name, value in values.items() if value not in (None, [])}
            module, _, compute = function.rpartition(".")
            analyses = importlib.import_module(f"counterfoil.{module}")
            check_page_path(page)  # before anything is computed
            distributed.init()
            getattr(analyses, compute)(**arguments).publish(page)

        app.command(name, epilog=example(*examples))(data_options(run))

    return add


@analysis(
    "papers.aoq.figures.online_rank",
    "counterfoil papers analyse online-rank runs/mine/online --data my-photos/ --output rank.html",
)
def online_rank(
    model: OneModel,
    page: Page,
    data: Data = None,
    split: Split = "train",
    batch: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Captions in a batch; repeatable; default 32 to 1,024."),
    ] = None,
    anchors: Annotated[int, typer.Option(min=2, help="Number of anchor captions.")] = 200,
    draws: Annotated[int, typer.Option(min=1, help="Batches for each anchor and size.")] = 20,
    top: Annotated[
        int, typer.Option(min=1, help="Number of captions that count as hardest.")
    ] = 100,
    seed: Seed = 0,
) -> None:
    """Rank the hardest negatives of random batches in a whole split, for several batch sizes."""


@analysis(
    "papers.aoq.figures.negative_examples",
    "counterfoil papers analyse negatives runs/mine/online --data my-photos/ --lists lists/ "
    "--output negatives.html",
)
def negatives(
    model: OneModel,
    page: Page,
    data: Data = None,
    split: Split = "train",
    lists: Annotated[
        Path | None,
        typer.Option(help="Folder of mined negatives; default the hardest by the model."),
    ] = None,
    anchors: Annotated[int, typer.Option(min=1, help="Number of images.")] = 6,
    batch: Batch = 128,
    top: Annotated[
        int, typer.Option(min=1, help="Sample offline negatives from this many hardest captions.")
    ] = 300,
    shown: Annotated[int, typer.Option(min=1, help="Negatives of each kind.")] = 3,
    seed: Seed = 0,
) -> None:
    """Show online and offline negatives of some anchors side by side."""


@analysis(
    "papers.aoq.figures.curves", "counterfoil papers analyse curves runs/mine --output curves.html"
)
def curves(folders: Trainings, page: Page) -> None:
    """Draw learning curves of several trainings, as one per loss."""


@analysis(
    "papers.aoq.figures.cross_rank",
    "counterfoil papers analyse cross-rank runs/mine/online runs/mine/best --data my-photos/ "
    "--output cross.html",
)
def cross_rank(models: Models, page: Page, data: Data = None, split: Split = "test") -> None:
    """Count positive pairs by their rank among all wrong texts and images."""


@analysis(
    "papers.ndgl.figures.margin_distributions",
    "counterfoil papers analyse margins runs/ndgl/gpo-scenes/teacher-1 "
    "runs/ndgl/gpo-scenes/student --data scenes --output margins.html",
)
def margins(models: Models, page: Page, data: Data = None, split: Split = "test") -> None:
    """Draw the margins between positives and their hardest negatives."""


@analysis(
    "papers.ndgl.figures.quantiles",
    "counterfoil papers analyse quantiles runs/mine/online --data my-photos/ --output q.html",
)
def quantiles(
    model: OneModel,
    page: Page,
    data: Data = None,
    split: Split = "test",
    top: Annotated[int, typer.Option(min=1, help="Negatives of a query.")] = 30,
    level: Annotated[
        float, typer.Option(help="Similarity below which negatives are counted.")
    ] = 0.5,
) -> None:
    """Draw the similarity of the hardest negatives to the query and to each other."""


@analysis(
    "papers.ndgl.figures.maps",
    "counterfoil papers analyse map runs/mine/online --data my-photos/ --output map.html",
    name="map",
)
def neighbourhood_map(
    context: typer.Context,
    model: OneModel,
    page: Page,
    data: Data = None,
    split: Split = "test",
    query: Query = None,
    count: Count = 1,
    negatives: Annotated[int, typer.Option(min=1, help="Negatives on each map.")] = 100,
    method: Annotated[str, typer.Option(help="`tsne` or `pca`.")] = "tsne",
    seed: Seed = 0,
) -> None:
    """Draw a map of queries, their positives and their nearest negatives."""
    refuse_without(context, "query", ("count", "seed"), alone=True)


@analysis(
    "papers.ndgl.figures.student",
    "counterfoil papers analyse student runs/ndgl/gpo-scenes runs/ndgl/chan-scenes "
    "--output page.html",
)
def student(folders: Runs, page: Page) -> None:
    """Compare students with their teachers and the ensemble of teachers."""


@analysis(
    "analysis.runs.cascade_curve",
    "counterfoil papers analyse cascade runs/cascade/vsepp-scenes --output page.html",
)
def cascade(folders: Runs, page: Page) -> None:
    """Draw the recall of cascades against the pairs that are scored for a query."""


@analysis(
    "papers.ndgl.figures.against",
    "counterfoil papers analyse against teachers runs/ndgl/teachers/chan-scenes --output page.html",
    "counterfoil papers analyse against batch runs/ndgl/batches/chan-scenes --output batches.html",
)
def against(
    quantity: Annotated[str, typer.Argument(help="`teachers` or `batch`.")],
    folders: Runs,
    page: Page,
) -> None:
    """Draw results against the number of teachers, or against the batch size."""


@analysis(
    "papers.tags.figures.triples",
    "counterfoil papers analyse triples runs/tags-dc/uniter-scenes/tags-dc "
    "--judge runs/scenes/online --data scenes:features=regions --output triples.html",
    "counterfoil papers analyse triples openai/clip-vit-base-patch32 --data flickr8k/ "
    "--written written/ --split test --output triples.html",
)
def triples(
    context: typer.Context,
    models: Models,
    page: Page,
    generation: GenerationOptions,
    data: Data = None,
    split: Split = "test",
    anchors: Anchors = 200,
    batch: Batch = 128,
    level: Annotated[
        float, typer.Option(min=0, help="A negative this far below its positive counts as easy.")
    ] = 0.05,
    judge: Annotated[
        list[str] | None, typer.Option(help="Model that scores the same triples; repeatable.")
    ] = None,
    writer: Annotated[
        str | None, typer.Option(help="Model that generates captions; default each model itself.")
    ] = None,
    written: Annotated[
        Path | None, typer.Option(help="Folder of generated captions, instead of --writer.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Compare in-batch, mined and generated negatives with their positives."""
    refuse_without(context, "written", GENERATION, alone=True)


@analysis(
    "papers.tags.figures.difficulty",
    "counterfoil papers analyse difficulty runs/tags/ablations/static/uniter-scenes "
    "--output hard.html",
)
def difficulty(folders: Trainings, page: Page) -> None:
    """Draw the hardness of generated captions during training, static and dynamic."""


@analysis(
    "papers.tags.figures.discrimination",
    "counterfoil papers analyse discrimination runs/tags-dc/uniter-scenes/tags-dc "
    "runs/scenes/online --data scenes:features=regions --output table.html",
    "counterfoil papers analyse discrimination openai/clip-vit-base-patch32 --data flickr8k/ "
    "--foils written/ --no-rules --output table.html",
)
def discrimination(
    context: typer.Context,
    models: Models,
    page: Page,
    generation: GenerationOptions,
    data: Data = None,
    split: Split = "test",
    anchors: Anchors = 200,
    foils: Annotated[
        list[Path] | None, typer.Option(help="Folder of generated captions; repeatable.")
    ] = None,
    writer: Annotated[
        list[str] | None,
        typer.Option(help="Model that generates foils; default, without --foils, all that can."),
    ] = None,
    rules: Annotated[bool, typer.Option(help="Also use foils by the rules of VSE-C.")] = True,
    others: Annotated[int, typer.Option(min=0, help="Random captions for each image.")] = 1,
    seed: Seed = 0,
) -> None:
    """Compare how well models, and a text-only control, tell captions from foils."""
    if foils and not writer:
        unused = GENERATION[:-1] if rules else GENERATION
        refuse(context, unused, "with --writer, where --foils are given")


@analysis(
    "papers.aoq.true_rate.true_rate",
    "counterfoil papers analyse true-rate written/ --data scenes --output true.html",
    "counterfoil papers analyse true-rate --crowd annotations/CrowdFlowerAnnotations.txt "
    "--data flickr8k/ --guide runs/mine/online --output crowd.html",
    "counterfoil papers analyse true-rate written/ --answers anna.csv --answers ben.csv "
    "--data flickr8k/ --output people.html",
)
def true_rate(
    context: typer.Context,
    page: Page,
    data: Data = None,
    stores: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[STORE]...", help="Folders of generated captions."),
    ] = None,
    crowd: Annotated[
        Path | None, typer.Option(help="Crowd judgements of captions of other images.")
    ] = None,
    answers: Annotated[
        list[Path] | None,
        typer.Option(help="Sheet of `papers analyse sheet`, filled in by one person; repeatable."),
    ] = None,
    guide: Annotated[
        str | None, typer.Option(help="Guide model of the filter; join with `+` for an ensemble.")
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="Sentence encoder of the filter.")] = None,
    slack: Annotated[
        float, typer.Option(help="Score below the original's from which a caption counts as true.")
    ] = 0.0,
    examples: Examples = 6,
    seed: Seed = 0,
) -> None:
    """Count true captions among generated ones, before and after each filter."""
    if encoder is None:
        refuse_without(context, "guide", ("slack",))


@app.command(
    epilog=example(
        "counterfoil papers analyse sheet tags/ rules/ --data flickr8k/ --count 200 "
        "--output sheet.csv"
    )
)
@data_options
def sheet(
    stores: Stores,
    file: Annotated[
        Path, typer.Option("--output", help="CSV file to write; it must not exist yet.")
    ],
    data: Data = None,
    count: Annotated[int, typer.Option(min=1, help="Captions of each folder.")] = 200,
    seed: Seed = 0,
) -> None:
    """Write a CSV sheet to judge generated captions by hand, for `true-rate --answers`."""
    from counterfoil.papers.aoq.true_rate import export_sheet

    export_sheet(stores, data_source(data), file, count=count, seed=seed)


@analysis(
    "papers.tags.dc_figures.words",
    "counterfoil papers analyse words runs/tags-dc/uniter-scenes/tags-dc "
    "--data scenes:features=regions --output words.html",
)
def words(
    model: OneModel,
    page: Page,
    generation: GenerationOptions,
    data: Data = None,
    split: Split = "test",
    anchors: Anchors = 200,
    writer: Annotated[
        str | None, typer.Option(help="Model that generates captions; default the model itself.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Measure how well a model finds and corrects wrong words of generated captions."""


@analysis(
    "papers.tags.dc_figures.caption_fluency",
    "counterfoil papers analyse fluency written/ rules/ --data scenes --output fluency.html",
    "counterfoil papers analyse fluency written/ --each 1 --lm gpt2 "
    "--data flickr8k/ --output f.html",
    "counterfoil papers analyse fluency written/ --corrector runs/tags-dc/uniter-scenes/tags-dc "
    "--data scenes:features=regions --output fluency.html",
)
def fluency(
    stores: Stores,
    page: Page,
    data: Data = None,
    lm: Annotated[
        str | None,
        typer.Option(
            help="Causal language model, folder or HF name; default n-grams trained here."
        ),
    ] = None,
    each: Annotated[
        int | None,
        typer.Option(min=1, help="Generated captions of each caption, the first; default all."),
    ] = None,
    corrector: Annotated[
        str | None, typer.Option(help="Model that corrects the captions, to measure them again.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Compare the perplexity of generated captions with that of their originals."""


@analysis(
    "papers.tags.dc_figures.cases",
    "counterfoil papers analyse cases runs/tags/hard runs/tags-dc/tags-dc --written written/ "
    "--data scenes:features=regions --output cases.html",
)
def cases(
    models: Models,
    written: Annotated[Path, typer.Option(help="Folder of generated captions.")],
    page: Page,
    data: Data = None,
    count: Annotated[int, typer.Option(min=1, help="Cases of each kind.")] = 3,
    sample: Annotated[int, typer.Option(min=1, help="Captions to score, at most.")] = 2000,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Doubt from which a word counts as wrong.")
    ] = 0.5,
    seed: Seed = 0,
) -> None:
    """Show captions, their generated foils and corrections, with scores of two models."""
