"""``counterfoil mine``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    STOPPED,
    Data,
    Decisions,
    Features,
    Images,
    Minutes,
    Split,
    example,
    refuse_without,
    source,
)
from counterfoil.core.console import output
from counterfoil.core.io import ensure_absent, ensure_writable_folder
from counterfoil.negatives.aoq_format import READ, aoq_file_names, aoq_paths, read_aoq, write_aoq
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.pipelines.run import DataSource

Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        help="Leave out what may be true, as key=value, many times: captions or pictures this "
        "near; scores lowest, highest, below_positive or below_share of the true pair's; what a "
        "guide finds true (guided); skip the hardest.",
    ),
]

HardImages = Annotated[
    int, typer.Option("--images-per-text", min=1, help="Hardest images kept for each text.")
]
Guide = Annotated[list[str] | None, typer.Option(help="A model that judges too.")]
Propose = Annotated[
    list[str] | None, typer.Option(help="A quick model that chooses the pairs to look at.")
]
Proposals = Annotated[int, typer.Option(min=1, help="It chooses so many times what is kept.")]

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil mine runs/demo/online --data scenes --out lists/ --texts 300 "
        "--images-per-text 60",
        "counterfoil mine runs/scan/online --data flickr8k/ --out lists/ --filter captions=0.8 "
        "--filter guided=0 --guide runs/vsrn/online --minutes 60 --resume",
    )
)
def mine(
    context: typer.Context,
    model: Annotated[list[str], typer.Argument(help="Model folder, HF name, or `vectors`.")],
    out: Annotated[Path, typer.Option(help="Folder of the lists; must not exist yet.")],
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    texts: Annotated[int, typer.Option(min=1, help="Hardest texts kept for each image.")] = 300,
    hard_images: HardImages = 60,
    filters: Filter = None,
    guide: Guide = None,
    propose: Propose = None,
    proposals: Proposals = 4,
    precision: Annotated[str, typer.Option(help="fp32; bf16 scores what counts again.")] = "fp32",
    resume: Annotated[bool, typer.Option(help="Go on where it was stopped.")] = False,
    minutes: Minutes = None,
) -> None:
    """List the hardest negatives of every image and every caption, both ways, exactly."""
    from counterfoil.cli.verbs import mine as mine_verbs
    from counterfoil.pipelines.stages.mine import mining_request

    refuse_without(context, "propose", ("proposals",))
    where = source(data, features, images, decisions)
    stage = mining_request(
        model,
        split,
        texts=texts,
        images=hard_images,
        filters=filters or (),
        guides=guide or (),
        proposing=propose or (),
        proposals=proposals,
        precision=precision,
    )
    if not mine_verbs(stage, where, out, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)


# ``counterfoil negatives import`` and ``counterfoil negatives export``.


app_negatives = typer.Typer(no_args_is_help=True, help="Mined negatives from and for other tools.")


@app_negatives.command(
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
    pass

    where = source(data, features, images, decisions)
    import_negatives(folder, where, split, out, name=name)


@app_negatives.command(
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
    pass

    where = source(data, features, images, decisions)
    export_lists(store, where, split, out, name=name, texts=texts, images=hard_images)


# Mined negatives from and for the released code of AOQ.


def import_negatives(
    folder: Path, source: DataSource, split: str, out: Path, *, name: str | None
) -> None:
    """Write the lists of AOQ's mining scripts as a store of mined negatives.

    Args:
        folder: where both files are.
        source: the data they were mined from.
        split: the split they were mined from.
        out: folder of the store.
        name: what follows the underscore in the names of the files; None for the only one there.

    Raises:
        ValueError: `out` exists, no or several pairs of files, or they are not of these data.
    """
    ensure_absent(out, "a new folder with --out")
    ensure_writable_folder(out)
    name = name or _only(folder)
    dataset = source.split(split)
    lists = read_aoq(folder, name, dataset.relation)
    NegativeStore.of(lists, dataset=dataset.fingerprint, split=split, sources=()).save(out)
    output(f"{lists.describe()}, from {folder}: {out}")


def export_lists(
    store: Path,
    source: DataSource,
    split: str,
    out: Path,
    *,
    name: str | None,
    texts: int,
    images: int,
) -> None:
    """Write mined negatives in the files that AOQ's code reads.

    Args:
        store: folder of the store.
        source: the data it was mined from.
        split: the split it was mined from.
        out: where both files go.
        name: what follows the underscore in their names; None for what the data are called.
        texts: longest list of an image.
        images: longest list of a text.

    Raises:
        ValueError: one of the files exists, no store of these data, or lists that the files
            cannot hold.
    """
    dataset = source.split(split)
    name = dataset.name if name is None else name
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"{name!r} cannot be part of a file's name; give another with --name")
    for path in aoq_paths(out, name):
        ensure_absent(path, "another folder with --out")
    ensure_writable_folder(out)
    mined = NegativeStore.open(store, fingerprint=dataset.fingerprint).lists
    lists = HardNegativeLists(
        mined.texts[:, :texts].contiguous(), mined.images[:, :images].contiguous()
    )
    write_aoq(lists, out, name, dataset.relation)
    output(f"{lists.describe()}: {', '.join(str(path) for path in aoq_paths(out, name))}")
    if lists.texts.shape[1] < READ[0] or lists.images.shape[1] < READ[1]:
        output(f"AOQ's code reads {READ[0]} texts and {READ[1]} images unless told otherwise")


def _only(folder: Path) -> str:
    found = aoq_file_names(folder)
    if len(found) != 1:
        what = f"those of {', '.join(found)}; say which with --name" if found else "neither"
        raise ValueError(
            f"{folder} should hold one pair of files i2t_NAME.npy and t2i_NAME.npy, "
            f"but holds {what}"
        )
    return found[0]
