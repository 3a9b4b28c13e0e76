"""``counterfoil negatives import`` and ``counterfoil negatives export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Data, Decisions, Features, Images, Split, example, source

app = typer.Typer(no_args_is_help=True, help="Mined negatives from and for other tools.")


@app.command(
    "import",
    epilog=example("counterfoil negatives import aoq/data/ --data f30k_precomp/ --out lists/"),
)
def read(
    folder: Annotated[Path, typer.Argument(help="Holds AOQ's `i2t_NAME.npy`, `t2i_NAME.npy`.")],
    out: Annotated[Path, typer.Option(help="Folder of the lists; must not exist yet.")],
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    name: Annotated[
        str | None, typer.Option(help="NAME of the files, as `f30k`; needed if there are several.")
    ] = None,
) -> None:
    """Turn the lists of AOQ's released code into mined negatives to train on."""
    from counterfoil.recipes.exchange import import_lists

    where = source(data, features, images, decisions)
    import_lists(folder, where, split, out, name=name)


@app.command(
    "export",
    epilog=example(
        "counterfoil negatives export runs/demo/lists --data scenes --out aoq/ --name scenes"
    ),
)
def write(
    store: Annotated[Path, typer.Argument(help="Folder of mined negatives.")],
    out: Annotated[Path, typer.Option(help="Where both files go.")],
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    name: Annotated[
        str | None, typer.Option(help="NAME of the files; default what the data are called.")
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="Hardest texts of an image, at most.")] = 2000,
    hard_images: Annotated[
        int, typer.Option("--images-per-text", min=1, help="Hardest images of a text, at most.")
    ] = 400,
) -> None:
    """Write mined negatives as `i2t_NAME.npy` and `t2i_NAME.npy`, which AOQ's code reads."""
    from counterfoil.recipes.exchange import export_lists

    where = source(data, features, images, decisions)
    export_lists(store, where, split, out, name=name, texts=texts, images=hard_images)
