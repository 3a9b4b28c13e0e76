"""``counterfoil index``: build an index, add to it, delete from it, or describe it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import (
    CaptionColumn,
    Device,
    ImageColumn,
    Split,
    command_line,
    data_source,
    example,
    refuse,
    refuse_without,
)

if TYPE_CHECKING:
    from counterfoil.data.dataset import ImageTextDataset
    from counterfoil.pipelines.run import DataSource
    from counterfoil.search.index import IndexUpdate


Model = Annotated[
    str | None, typer.Argument(help="Model folder, HF name, or `vectors`; alone, an index.")
]
DataName = Annotated[
    str | None, typer.Argument(help="Data set, or a folder of images without captions.")
]
IndexFolder = Annotated[
    Path, typer.Option("--output", help="Folder of the index, a new one or one to change.")
]
Backend = Annotated[
    str | None,
    typer.Option(
        help="Search backend: `exact` (the default), `faiss-hnsw`, `faiss-ivf-pq`, `milvus`, or "
        "one of an installed package."
    ),
]
Address = Annotated[
    str | None, typer.Option(help="Address of a Milvus server; default a file in the index.")
]
Half = Annotated[bool, typer.Option("--half", help="Store vectors in 16 bits.")]
Add = Annotated[
    bool, typer.Option("--add", help="Add images and captions that are new or have changed, by id.")
]
Prune = Annotated[
    bool, typer.Option("--prune", help="With --add: drop images whose files are gone.")
]
Prefix = Annotated[
    str, typer.Option(help="Prefix of every id, for data whose ids are in the index already.")
]
Exchange = Annotated[
    bool,
    typer.Option("--exchange", help="Replace entries whose id exists but whose image differs."),
]
Delete = Annotated[
    list[str] | None,
    typer.Option(help="Id to delete: an image with its captions, or a caption; repeatable."),
]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Read the index whole and compare it with its checksums."),
]
Calibrate = Annotated[
    str | None,
    typer.Option(
        help="Data whose captions and images, 50 or more that the model was not trained on, say "
        "which scores fit (`explain --index`, `serve`) and how probable results are."
    ),
]

CalibrateWords = Annotated[
    bool,
    typer.Option(
        "--words",
        help="Calibrate which words other words beat, too: `explain --index`, `serve` doubt words.",
    ),
]

Workers = Annotated[
    int, typer.Option(min=0, help="Threads that decode pictures, as many as there are cores.")
]
Hubness = Annotated[
    str | None,
    typer.Option(
        help="Data set whose training split is the bank that corrects hubness: scores of captions "
        "with images lose what an image or a caption has in common with all."
    ),
]

DATA_OPTIONS = (
    "caption_column",
    "image_column",
    "split",
    "backend",
    "address",
    "half",
    "prefix",
    "exchange",
    "prune",
    "workers",
)

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil index runs/mine my-photos/ --output my-index/",
        "counterfoil index runs/mine more-photos/ --output my-index/ --add",
        "counterfoil index runs/mine my-photos/ --output my-index/ --add --prune",
        "counterfoil index runs/mine trip/ --output my-index/ --add --prefix trip/",
        "counterfoil index --output my-index/ --delete beach.jpg --delete snow.jpg",
        "counterfoil index --output my-index/ --calibrate my-photos/",
        "counterfoil index --output my-index/ --hubness my-photos/",
        "counterfoil index --output my-index/",
        "counterfoil index openai/clip-vit-base-patch32 my-photos/ --output my-index/ "
        "--backend faiss-hnsw",
        "counterfoil index runs/mine my-photos/ --output my-index/ --backend milvus "
        "--address http://localhost:19530",
    )
)
def index(
    context: typer.Context,
    model: Model = None,
    data: DataName = None,
    folder: IndexFolder = Path("index"),
    caption_column: CaptionColumn = None,
    image_column: ImageColumn = None,
    split: Split = "all",
    backend: Backend = None,
    address: Address = None,
    half: Half = False,
    add: Add = False,
    prune: Prune = False,
    prefix: Prefix = "",
    exchange: Exchange = False,
    workers: Workers = 0,
    device: Device = None,
    delete: Delete = None,
    calibrate: Calibrate = None,
    words: CalibrateWords = False,
    verify: Verify = False,
    hubness: Hubness = None,
) -> None:
    """Index images and captions for search; without a model, describe an index."""
    refuse_without(context, "calibrate", ("words",))

    if data is None and not add and _is_index(model):
        model, folder = None, Path(str(model))  # to be described
    if model is None or data is None or delete:
        if model is not None or add:
            raise ValueError(
                "deleting needs no model and no data; leave them out"
                if delete
                else "an index is made of a model and data; name both, as in `counterfoil index "
                "runs/mine my-photos/ --output my-index/`"
            )
        refuse(context, DATA_OPTIONS, "with a model and data to make an index of")
        if delete:
            _delete(folder, delete)
        _adjust(folder, calibrate, hubness, words=words)
        if verify:
            _verify(folder)
        _describe(folder)
        return
    refuse_without(context, "add", ("exchange", "prune"))
    if add and (backend is not None or address or half):
        raise ValueError(
            f"the storage of {folder} was chosen when it was made; leave out --backend, "
            "--address and --half, or make another index"
        )
    from counterfoil.core import distributed
    from counterfoil.core.console import output
    from counterfoil.model import load_model
    from counterfoil.search.ann import EXACT, check_engine
    from counterfoil.search.index import build_index, open_index

    engine, server = backend or EXACT, address or ""
    check_engine(engine, server)  # before the model is read
    distributed.init()
    source = _source(data, caption_column=caption_column, image_column=image_column)
    if add:
        with open_index(folder, model=model) as opened:
            update = opened.add(
                # of what is there already no picture is opened
                _dataset(replace(source, skip_unreadable=False), split, prefix),
                replace=exchange,
                prune=prune,
                skip_unreadable=source.skip_unreadable,
                workers=workers,
            )
        output(update_note(update))
    else:
        dataset, opened_model = _dataset(source, split, prefix), load_model(model)
        build_index(
            *(opened_model, dataset, folder),
            backend=engine,
            address=server,
            half=half,
            workers=workers,
        ).close()
    _adjust(folder, calibrate, hubness, words=words)
    _describe(folder)
    output(f'next: {command_line("search", folder)} "words", or {command_line("serve", folder)}')


def _is_index(model: str | None) -> bool:
    if model is None:
        return False
    from counterfoil.search.vector_index import is_index

    return is_index(Path(model))


def _verify(folder: Path) -> None:
    from counterfoil.core.console import output
    from counterfoil.search.index import open_index

    with open_index(folder) as opened:
        opened.vectors.verify()
    output(f"{folder} is whole: all parts fit their checksums")


def _delete(folder: Path, item_ids: list[str]) -> None:
    from counterfoil.core.console import output
    from counterfoil.search.index import open_index

    with open_index(folder) as opened:
        output(f"deleted {_counts(opened.delete(item_ids))}")


def _adjust(folder: Path, calibrate: str | None, hubness: str | None, *, words: bool) -> None:
    """Calibrate the scores and correct hubness, by the data that are named."""
    if calibrate is not None:
        _calibrate(folder, _source(calibrate), words)
    if hubness is not None:
        _correct_hubness(folder, _source(hubness))


def _calibrate(folder: Path, source: DataSource, words: bool) -> None:
    from counterfoil.core.console import output
    from counterfoil.evaluation.caption_check import held_out
    from counterfoil.search.calibrate import UnfitError
    from counterfoil.search.index import open_index

    with open_index(folder) as opened:
        dataset = source.open()
        taken = held_out(opened.model, dataset)
        part = taken.photos
        check = opened.calibrate_captions(taken)
        output(f"captions are {check.basis}")
        if opened.proposals is None:
            try:
                count = opened.calibrate(part).captions
                told = f"are calibrated on {count:,} captions of {check.data}"
            except UnfitError as error:  # verdicts on captions are written nevertheless
                told = f"cannot be calibrated: {error}"
            output(f"probabilities of results {told}")
        if words:
            exchanges = opened.calibrate_words(part, dataset.texts)
            output(
                f"a word is doubted where another gains more than {exchanges.noise:.3f}, as 5 % of "
                f"{exchanges.words:,} words of true captions do; doubts are probabilities where "
                f"{100 * exchanges.prior:.0f} % of the words are wrong"
            )


def _correct_hubness(folder: Path, source: DataSource) -> None:
    from counterfoil.core.console import output
    from counterfoil.search.index import open_index

    with open_index(folder) as opened:
        bank = opened.correct_hubness(source.open().split("train"))
    output(
        f"hubness is corrected with {len(bank.texts):,} captions and {len(bank.images):,} images "
        f"of {source.data}, train ({bank.nearest} nearest, {bank.alpha:g} of their mean)"
    )


def _describe(folder: Path) -> None:
    from counterfoil.core.console import output
    from counterfoil.search.index import open_index

    with open_index(folder) as opened:
        state = opened.vectors.state
        address = f" at {state.address}" if state.address else ""
        by = f"{opened.model_name}, score: {state.score}"
        output(f"{folder}: {opened.description}, by {by}; {state.backend}{address}")
        if columns := opened.vectors.images.columns:
            output(f"columns for --where: {', '.join(sorted(columns))}")


def _source(data: str, **columns: str | None) -> DataSource:
    """Data whose unreadable pictures are left out, unless they say otherwise."""
    return data_source(data, skip_unreadable=True, **columns)


def _dataset(source: DataSource, split: str, prefix: str) -> ImageTextDataset:
    from counterfoil.search.changes import with_id_prefix

    dataset = replace(source, unlisted=True).split(split)
    return with_id_prefix(dataset, prefix) if prefix else dataset


def update_note(update: IndexUpdate) -> str:
    """What an addition changed, in words."""
    from counterfoil.data.checks import counted

    def told(number: int, words: str) -> str:
        return words.format(counted(number, "image")) if number else ""

    return (
        f"added {_counts(update)}"
        + (f", {update.replaced:,} exchanged" if update.replaced else "")
        + told(update.unchanged, "; {} known before")
        + told(update.relabelled, "; columns of {} updated")
        + told(update.moved, "; {} known under another name or place")
        + told(update.pruned, "; dropped {} whose files are gone")
        + told(update.damaged, "; dropped {} whose files can no longer be read")
        + told(update.gone, "; kept {} whose files are gone (--prune drops them)")
    )


def _counts(update: IndexUpdate) -> str:
    from counterfoil.data.checks import counted

    return f"{counted(update.images, 'image')} and {counted(update.texts, 'caption')}"
