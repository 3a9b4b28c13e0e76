"""Verbs about models: features, encode, export, interpolate and cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from counterfoil.cli.options import (
    CONVERSION,
    Data,
    DataName,
    Device,
    NewFolder,
    data_source,
    refuse,
    refuse_without,
    verb,
)
from counterfoil.core.console import output

if TYPE_CHECKING:
    from collections.abc import Sequence


Weights = Annotated[
    Literal["stored", "bf16", "fp32"],
    typer.Option(help="Numbers of the weights: stored (as on disk), bf16 or fp32."),
]
DeviceMap = Annotated[
    str | None, typer.Option(help="Place the model on several devices, such as `auto`.")
]
Tokens = Annotated[int, typer.Option(min=0, help="Tokens of a pass; 0 for what suits the device.")]
To = Annotated[
    str,
    typer.Option(
        help="Models: counterfoil, hf, sentence-transformers, onnx. Rankings: trec. Negatives: "
        "sentence-transformers, flagembedding, tevatron, ms-swift, vlm2vec, webdataset, open-clip, "
        "trec."
    ),
]
Alpha = Annotated[
    list[float] | None,
    typer.Option(
        min=0, max=1, help="Share of the fine-tuned weights; of several, or all, the best on dev."
    ),
]
Other = Annotated[
    str | None, typer.Option(help="Other data, as --data: measure what is forgotten there.")
]

OURS, RANKINGS = "counterfoil", "trec"

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil features my-photos/ features/ --model google/vit-base-patch16-224",
    "counterfoil features my-photos/ regions/ --model PekingU/rtdetr_r50vd --regions 36",
    "counterfoil features trainval_resnet101_faster_rcnn_genome_36.tsv regions/",
    "counterfoil features img_db/flickr30k/ regions/",
    panel=CONVERSION,
)
def features(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(help="Data set, as `--data` takes; without --model, features to convert."),
    ],
    folder: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of the features.")],
    model: Annotated[
        str | None, typer.Option(help="HF vision model or detector, its folder, or `timm:NAME`.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 32,
    grid: Annotated[int | None, typer.Option(min=1, help="Average to GRID x GRID cells.")] = None,
    regions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most confident regions of a detector of DETR's kind; 36 is usual."
        ),
    ] = None,
) -> None:
    """Extract patch, grid or region features of all images; run it again to continue.

    Without --model, convert region features that exist: a .tsv of bottom-up attention or a folder
    of its parts, an img_db of UNITER, a precomp folder.
    """
    from counterfoil.core import distributed
    from counterfoil.core.io import ensure_writable_folder
    from counterfoil.data.extract import convert_features, extract_features

    if model is None:
        refuse(context, ("batch_size", "grid", "regions"), "with --model")
    if regions is not None:
        refuse(context, ("batch_size", "grid"), "without --regions")
    ensure_writable_folder(folder)
    if model is None:
        table = convert_features(Path(data), folder)
    else:
        dataset = data_source(data).open()
        table = extract_features(
            dataset,
            model,
            folder,
            grid=grid,
            regions=regions,
            batch=batch_size,
            device=distributed.device(),
        )
    output(f"{len(table.features):,} images: {folder}")


@verb(
    app,
    "counterfoil encode my-embedder/ my-photos/ vectors/ --weights bf16 --device-map auto "
    "--tokens 32768",
    panel=CONVERSION,
)
def encode(
    model: Annotated[str, typer.Argument(help="Model folder, or HF name.")],
    data: DataName,
    folder: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of the vectors.")],
    weights: Weights = "stored",
    device_map: DeviceMap = None,
    tokens: Tokens = 0,
    device: Device = None,
) -> None:
    """Encode all images and captions as one vector each; run it again to continue.

    The folder is a data set for the model `vectors`, which compares by cosine
    (`vectors:inner-product`: by inner product): evaluate, mine, train adapters and join ensembles
    without encoding again.
    """
    from counterfoil.core import distributed
    from counterfoil.model import load_model

    distributed.init()
    dataset = data_source(data).open()
    opened = load_model(model, weights=weights, device_map=device_map, tokens=tokens)
    written = opened.write_vectors(dataset, folder)
    output(f"{len(written):,} images and {len(written.texts):,} texts: {folder}")


@verb(
    app,
    "counterfoil export runs/mine --to counterfoil --output my-model/",
    "counterfoil export runs/clip --to sentence-transformers --output my-clip/",
    "counterfoil export runs/clip --to trec --data my-photos/ --output rankings/",
    "counterfoil export lists/ --to sentence-transformers --data my-photos/ --output out/",
    "counterfoil export lists/ --to tevatron --batch-size 32 --data scenes --output out/",
    "counterfoil export written/ --to trec --data scenes --output out/",
    panel=CONVERSION,
)
def export(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="MODEL_OR_NEGATIVES", help="Model, or folder of negatives.")
    ],
    to: To,
    folder: NewFolder,
    data: Data = None,
    split: Annotated[
        str | None, typer.Option(help="Split of the data; default train, of rankings test.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(min=1, help="Length of a list, at most; default 8, of rankings 100."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=2, help="Write pairs in batches of this size, composed of mined lists."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="With --batch-size: epochs to write; default 1.")
    ] = None,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(help="For a model's card: JSON file of `evaluate --json`; repeatable."),
    ] = None,
) -> None:
    """Export a model, its rankings or negatives in the formats of other tools."""
    from counterfoil.export.negatives import (
        check_batches_export,
        check_negatives_export,
        export_batches,
        export_negatives,
        negatives_kind,
    )
    from counterfoil.negatives.store import MOST

    store = Path(name)
    if negatives_kind(store) is not None:
        if evaluation:
            raise ValueError(f"--evaluation is for the card of a model, and {name} holds negatives")
        refuse_without(context, "batch_size", ("most",), alone=True)
        refuse_without(context, "batch_size", ("epochs",))
        check = check_negatives_export if batch_size is None else check_batches_export
        check(store, to, folder)
        dataset = data_source(data).split(split or "train")
        if batch_size is None:
            lines = export_negatives(store, to, folder, dataset, most=most or MOST)
        else:
            lines = export_batches(store, to, folder, dataset, batch=batch_size, epochs=epochs or 1)
    elif to == RANKINGS:
        refuse(context, ("batch_size", "epochs"), "with mined negatives")
        refuse(context, ("evaluation",), f"with --to {OURS}")
        lines = _export_rankings(name, folder, data, split or "test", most)
    else:
        refuse(
            context,
            ("data", "split", "most", "batch_size", "epochs"),
            f"with negatives or --to {RANKINGS}, and {name} holds none that `counterfoil mine` or "
            "`counterfoil papers write` made",
        )
        lines = []
        _export_model(name, to, folder, evaluation or ())
    for line in (*lines, str(folder)):
        output(line)


def _export_rankings(
    name: str, folder: Path, data: str | None, split: str, depth: int | None
) -> list[str]:
    """Export the rankings of a model, or of an ensemble."""
    from counterfoil.core.io import ensure_absent
    from counterfoil.export.rankings import DEPTH, export_rankings
    from counterfoil.model import load_model
    from counterfoil.pipelines.scorers import ensemble_parts

    ensure_absent(folder)
    dataset = data_source(data).split(split)
    models = [load_model(part) for part in ensemble_parts(name)]
    return export_rankings(models, folder, dataset, depth=depth or DEPTH)


def _export_model(name: str, to: str, folder: Path, evaluations: Sequence[Path]) -> None:
    """Export a model in our format or another library's."""
    from counterfoil.export.models import check_export, export_model
    from counterfoil.model import load_model

    if to == OURS:
        load_model(name).save_pretrained(folder, evaluations=evaluations)
        return
    if evaluations:
        raise ValueError(f"--evaluation is for a card, which only --to {OURS} writes")
    check_export(to, folder)
    model = load_model(name)
    export_model(model.model, model.processor, to, folder, name=name)


@verb(
    app,
    "counterfoil interpolate openai/clip-vit-base-patch32 runs/clip --data my-photos/ "
    "--other scenes --output runs/between",
    "counterfoil interpolate openai/clip-vit-base-patch32 runs/clip --alpha 0.5 --output runs/half",
    panel=CONVERSION,
)
def interpolate(
    original: Annotated[str, typer.Argument(help="Model before fine-tuning.")],
    tuned: Annotated[str, typer.Argument(help="Folder of the fine-tuned model.")],
    folder: NewFolder,
    alpha: Alpha = None,
    data: Data = None,
    other: Other = None,
) -> None:
    """Average the weights of a model before and after fine-tuning (WiSE-FT)."""
    from counterfoil import hub

    hub.interpolate(
        original,
        tuned,
        folder,
        alphas=alpha or (),
        source=data_source(data) if data else None,
        other=data_source(other) if other else None,
    )


@verb(
    app,
    "counterfoil cache",
    "counterfoil cache --clear pixels --days 30",
    "counterfoil cache --clear all",
    panel=CONVERSION,
)
def cache(
    context: typer.Context,
    clear: Annotated[
        str | None, typer.Option(help="Delete: pixels, states, tokens, vectors, or all.")
    ] = None,
    days: Annotated[
        float, typer.Option(min=0, help="Delete only what was written so many days ago.")
    ] = 0,
) -> None:
    """List cached files with their sizes, or delete them; they are made again when needed."""
    refuse_without(context, "clear", ("days",))
    from counterfoil.core.cache import KINDS, cached_files, remove_cached
    from counterfoil.core.io import cache_folder

    kinds = list(KINDS) if clear in (None, "all") else [str(clear)]
    caches = [cached_files(kind, days=days) for kind in kinds]
    for files in caches:
        if clear:
            remove_cached(files)
        number = f"{len(files.entries):,} {'entry' if len(files.entries) == 1 else 'entries'}"
        age = f", the oldest {files.days:.0f} days old" if files.entries and not clear else ""
        verb = "deleted " if clear else ""
        output(
            f"{files.kind} ({KINDS[files.kind]}): {verb}{number}, {files.size / 1e6:,.1f} MB{age}"
        )
    total = sum(files.size for files in caches) / 1e6
    output(f"{cache_folder()}: {total:,.1f} MB{' freed' if clear else ''}")
