"""``counterfoil papers import-lists``, ``export-lists``: lists of the code of AOQ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Data, NewFolder, Split, check_new_folder, data_source, verb
from counterfoil.core.console import output

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil papers import-lists aoq/data/ --data f30k_precomp/ --output lists/",
)
def import_lists(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Holds `i2t_NAME.npy` and `t2i_NAME.npy`.")
    ],
    folder: NewFolder,
    data: Data = None,
    split: Split = "train",
    name: Annotated[
        str | None, typer.Option(help="NAME of the files, as `f30k`; needed if there are several.")
    ] = None,
) -> None:
    """Import the lists of AOQ's released code as mined negatives."""
    from counterfoil.negatives.aoq_format import only_aoq_name, read_aoq
    from counterfoil.negatives.store import NegativeStore

    check_new_folder(folder)
    name = name or only_aoq_name(source)
    dataset = data_source(data).split(split)
    lists = read_aoq(source, name, dataset.relation)
    NegativeStore.of(lists, dataset=dataset.fingerprint, split=split, sources=()).save(folder)
    output(f"{lists.describe()}, from {source}: {folder}")


@verb(
    app,
    "counterfoil papers export-lists lists/ --data my-photos/ --output aoq/ --name scenes",
)
def export_lists(
    store: Annotated[Path, typer.Argument(help="Folder of mined negatives.")],
    folder: Annotated[Path, typer.Option("--output", help="Folder of both files.")],
    data: Data = None,
    split: Split = "train",
    name: Annotated[
        str | None, typer.Option(help="NAME of the files; default the name of the data.")
    ] = None,
    texts: Annotated[
        int,
        typer.Option("--texts-per-image", min=1, help="Hardest texts of an image, at most."),
    ] = 2000,
    hard_images: Annotated[
        int, typer.Option("--images-per-text", min=1, help="Hardest images of a text, at most.")
    ] = 400,
) -> None:
    """Export mined negatives as `i2t_NAME.npy` and `t2i_NAME.npy`, which AOQ's code reads."""
    from counterfoil.core.io import ensure_absent, ensure_writable_folder
    from counterfoil.negatives.aoq_format import READ, aoq_paths, write_aoq
    from counterfoil.negatives.store import HardNegativeLists, NegativeStore

    dataset = data_source(data).split(split)
    name = dataset.name if name is None else name
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"{name!r} cannot be part of a file's name; give another with --name")
    paths = aoq_paths(folder, name)
    for path in paths:
        ensure_absent(path, "another folder with --output")
    ensure_writable_folder(folder)
    mined = NegativeStore.open(
        store, fingerprint=dataset.fingerprint, relation=dataset.relation
    ).lists
    lists = HardNegativeLists(
        mined.texts[:, :texts].contiguous(), mined.images[:, :hard_images].contiguous()
    )
    write_aoq(lists, folder, name, dataset.relation)
    output(f"{lists.describe()}: {', '.join(map(str, paths))}")
    if lists.texts.shape[1] < READ[0] or lists.images.shape[1] < READ[1]:
        output(f"AOQ's code reads {READ[0]} texts and {READ[1]} images by default")
