"""``counterfoil export``: models and negatives in the formats of other tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    CONVERSION,
    DataOptions,
    NewFolder,
    data_options,
    example,
    refuse,
    refuse_without,
)

DEFAULT_MOST, OURS, RANKINGS = 8, "counterfoil", "trec"

To = Annotated[
    str,
    typer.Option(
        help="Models: counterfoil, hf, sentence-transformers, onnx. Rankings: trec. Negatives: "
        "sentence-transformers, flagembedding, tevatron, ms-swift, vlm2vec, webdataset, open-clip, "
        "trec."
    ),
]

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    rich_help_panel=CONVERSION,
    epilog=example(
        "counterfoil export runs/mine/best --to counterfoil --output my-model/",
        "counterfoil export runs/clip/online --to sentence-transformers --output my-clip/",
        "counterfoil export runs/clip/online --to trec --data my-photos/ --output rankings/",
        "counterfoil export lists/ --to sentence-transformers --data my-photos/ --output out/",
        "counterfoil export lists/ --to sentence-transformers --batch 32 --data scenes "
        "--output out/",
        "counterfoil export written/ --to trec --data scenes --output out/",
    ),
)
@data_options
def export(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="MODEL_OR_NEGATIVES", help="Model, or folder of negatives.")
    ],
    to: To,
    folder: NewFolder,
    data: DataOptions,
    split: Annotated[
        str | None, typer.Option(help="Split of the data; default train, of rankings test.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(min=1, help="Length of a list, at most; default 8, of rankings 100."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=2, help="Write pairs in batches of this size, composed of mined lists."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="With --batch: epochs to write; default 1.")
    ] = None,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(help="For a model's card: JSON file of `evaluate --json`; repeatable."),
    ] = None,
) -> None:
    """Export a model, its rankings or negatives in the formats of other tools."""
    from counterfoil.core.console import output
    from counterfoil.export.negatives import negatives_kind

    if negatives_kind(Path(name)) is not None:
        if evaluation:
            raise ValueError(f"--evaluation is for the card of a model, and {name} holds negatives")
        refuse_without(context, "batch", ("most",), alone=True)
        refuse_without(context, "batch", ("epochs",))
        lines = _export_negatives(
            Path(name), to, folder, data, split or "train", most or DEFAULT_MOST, batch, epochs or 1
        )
    elif to == RANKINGS:
        refuse(context, ("batch", "epochs"), "with mined negatives")
        refuse(context, ("evaluation",), f"with --to {OURS}")
        lines = _export_rankings(name, folder, data, split or "test", most)
    else:
        refuse(
            context,
            ("data", "features", "images", "corrections", "split", "most", "batch", "epochs"),
            f"with negatives or --to {RANKINGS}, and {name} holds none that `counterfoil mine` or "
            "`counterfoil write` made",
        )
        lines = _export_model(name, to, folder, evaluation or ())
    for line in lines:
        output(line)
    output(f"{folder}")


def _export_negatives(
    store: Path,
    to: str,
    folder: Path,
    data: DataOptions,
    split: str,
    most: int,
    batch: int | None,
    epochs: int,
) -> list[str]:
    """Export mined or written negatives, or batches composed of mined ones."""
    from counterfoil.export.negatives import (
        check_batches_export,
        check_negatives_export,
        export_batches,
        export_negatives,
    )

    if batch is None:
        check_negatives_export(store, to, folder)
        return export_negatives(store, to, folder, data.source().split(split), most=most)
    check_batches_export(store, to, folder)
    dataset = data.source().split(split)
    return export_batches(store, to, folder, dataset, batch=batch, epochs=epochs)


def _export_rankings(
    name: str, folder: Path, data: DataOptions, split: str, depth: int | None
) -> list[str]:
    """Export the rankings of a model, or of an ensemble."""
    from counterfoil.core.io import ensure_absent
    from counterfoil.export.rankings import DEPTH, export_rankings
    from counterfoil.model import load_model
    from counterfoil.pipelines.publishing import ensemble_parts

    ensure_absent(folder)
    dataset = data.source().split(split)
    models = [load_model(part) for part in ensemble_parts(name)]
    return export_rankings(models, folder, dataset, depth=depth or DEPTH)


def _export_model(name: str, to: str, folder: Path, evaluations: Sequence[Path]) -> list[str]:
    """Export a model in our format or another library's."""
    from counterfoil.export.models import check_export, export_model
    from counterfoil.model import load_model

    if to == OURS:
        load_model(name).save_pretrained(folder, evaluations=evaluations)
        return []
    if evaluations:
        raise ValueError(f"--evaluation is for a card, which only --to {OURS} writes")
    check_export(to, folder)
    model = load_model(name)
    export_model(model.model, model.processor, to, folder, name=name)
    return []
