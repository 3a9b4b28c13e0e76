"""``counterfoil VERB``: thin; every verb calls one function of the library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli import (
    analyse,
    audit,
    diagnose,
    evaluate,
    explain,
    export,
    foils,
    grid,
    index,
    interpolate,
    mine,
    report,
    search,
    serve,
    train,
    write,
)
from counterfoil.cli.options import (
    STOPPED,
    Data,
    Decisions,
    Features,
    Folder,
    Images,
    Minutes,
    Resume,
    Settings,
    Smoke,
    answer,
    example,
    refuse_without,
)

if TYPE_CHECKING:
    from counterfoil.pipelines.pipeline import Recipe
    from counterfoil.pipelines.run import DataSource


app = typer.Typer(
    name="counterfoil",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
data_app = typer.Typer(
    no_args_is_help=True, help="What is there, and whether it can be trained on."
)
app.add_typer(data_app, name="data")
app.add_typer(train.app)
app.add_typer(interpolate.app)
app.add_typer(evaluate.app)
app.add_typer(mine.app)
app.add_typer(audit.app)
app.add_typer(diagnose.app)
app.add_typer(explain.app)
app.add_typer(export.app)
app.add_typer(foils.app)
app.add_typer(report.app)
app.add_typer(index.app)
app.add_typer(search.app)
app.add_typer(serve.app)
app.add_typer(grid.app)
app.add_typer(mine.app_negatives, name="negatives")
app.add_typer(analyse.app, name="analyse")
app.add_typer(write.app, name="write")


def _version(asked: bool) -> None:
    if asked:
        from counterfoil import __version__

        print(f"counterfoil {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Say which one.")
    ] = False,
) -> None:
    """Image-text retrieval models, trained on the negatives that matter."""


@app.command(
    epilog=example(
        "counterfoil plan demo",
        "counterfoil plan aoq/scan-t2i-flickr8k",
    )
)
def plan(
    context: typer.Context,
    recipe: Annotated[
        str | None, typer.Argument(help="Name or `.py` file; none lists all.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Show what a recipe would do; list the recipes when none is named."""
    from counterfoil.pipelines import plan as plan_module
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.recipes import catalogue

    refuse_without(context, "recipe", ("settings",), argument=True)
    if recipe is None:
        catalogue.print_catalogue()
    else:
        plan_module.print_plan(apply_overrides(catalogue.find_recipe(recipe), settings or ()))


@app.command(
    epilog=example(
        "counterfoil run demo",
        "counterfoil run aoq/vsepp-flickr8k --data flickr8k/ --features regions/ "
        "--set online.epochs=5 --resume",
    )
)
def run(
    recipe: Annotated[str, typer.Argument(help="Name or `.py` file; `counterfoil plan` lists.")],
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    folder: Folder = None,
    settings: Settings = None,
    resume: Resume = False,
    smoke: Smoke = False,
    minutes: Minutes = None,
) -> None:
    """Run what is missing of a recipe."""
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.pipelines.run import DataSource
    from counterfoil.recipes import catalogue

    found = apply_overrides(catalogue.find_recipe(recipe), settings or ())
    if smoke:
        found = catalogue.smoke_recipe(found)
    source = DataSource(data or found.data, features, images, decisions)
    _execute(found, source, folder, resume=resume, minutes=minutes)


@data_app.command("check", epilog=example("counterfoil data check my-photos/"))
def check(
    data: Annotated[str, typer.Argument(help="Folder, file or name.")],
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    quick: Annotated[bool, typer.Option(help="Do not open every picture.")] = False,
) -> None:
    """Say what is there; exit 2 with the reasons when it cannot be trained on."""
    from counterfoil.cli.verbs import check_data
    from counterfoil.pipelines.run import DataSource

    if not check_data(DataSource(data, features, images, decisions), quick=quick):
        raise typer.Exit(2)


@app.command(
    epilog=example("counterfoil features my-photos/ features/ --model google/vit-base-patch16-224")
)
def features(
    data: Annotated[str, typer.Argument(help="Folder, file or name.")],
    out: Annotated[Path, typer.Argument(help="Folder of the features.")],
    model: Annotated[str, typer.Option(help="HF vision model, its folder, or `timm:NAME`.")],
    images: Images = None,
    decisions: Decisions = None,
    batch: Annotated[int, typer.Option(min=1, help="Pictures at once.")] = 32,
    grid: Annotated[int | None, typer.Option(min=1, help="Average to GRID x GRID cells.")] = None,
) -> None:
    """Extract patch or grid features; run it again to go on where it was stopped."""
    from counterfoil.cli.verbs import extract_features
    from counterfoil.pipelines.run import DataSource

    source = DataSource(data, images=images, decisions=decisions)
    extract_features(source, out, model=model, batch=batch, grid=grid)


@app.command(epilog=example("counterfoil convert scan model_best.pth.tar vocab.json scan-f30k/"))
def convert(
    host: Annotated[
        str, typer.Argument(help="vsepp, scan, bfan, vsrn, gpo, chan, esa, hrem, dive or uniter.")
    ],
    checkpoint: Annotated[Path, typer.Argument(help="The authors' checkpoint.")],
    vocabulary: Annotated[
        Path, typer.Argument(help="Its vocabulary, JSON or pickle; or BERT's folder.")
    ],
    out: Annotated[Path, typer.Argument(help="Folder of the model; must not exist yet.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the model, as direction=i2t.")
    ] = None,
) -> None:
    """Turn an authors' checkpoint into a model folder."""
    from counterfoil.cli.verbs import convert_checkpoint

    convert_checkpoint(host, checkpoint, vocabulary, out, settings=settings or ())


def _execute(
    recipe: Recipe, source: DataSource, folder: Path | None, *, resume: bool, minutes: float | None
) -> None:
    from counterfoil.pipelines.run import run_pipeline

    place = folder or Path("runs") / recipe.name
    if not run_pipeline(recipe, source, place, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 when all went well, 2 when the input was at fault, 3 when stopped."""
    return answer(app, arguments)
