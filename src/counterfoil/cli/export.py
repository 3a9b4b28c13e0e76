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
    Split,
    data_options,
    example,
    refuse,
    refuse_without,
)

DEFAULT_MOST, OURS = 8, "counterfoil"

To = Annotated[
    str,
    typer.Option(
        help="Models: counterfoil, hf, sentence-transformers, onnx. Negatives: "
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
    split: Split = "train",
    most: Annotated[
        int | None,
        typer.Option(min=1, help=f"Negatives of a query, at most; default {DEFAULT_MOST}."),
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
    """Export a model or negatives in the formats of other tools."""
    from counterfoil.core.console import output
    from counterfoil.export.negatives import (
        check_batches_export,
        check_negatives_export,
        export_batches,
        export_negatives,
        negatives_kind,
    )

    if negatives_kind(Path(name)) is None:
        refuse(
            context,
            ("data", "features", "images", "corrections", "split", "most", "batch", "epochs"),
            f"with negatives, and {name} holds none that `counterfoil mine` or `counterfoil "
            "write` made",
        )
        _export_model(name, to, folder, evaluation or ())
    elif evaluation:
        raise ValueError(f"--evaluation is for the card of a model, and {name} holds negatives")
    elif batch:
        refuse_without(context, "batch", ("most",), alone=True)
        check_batches_export(Path(name), to, folder)
        dataset = data.source().split(split)
        for line in export_batches(
            Path(name), to, folder, dataset, batch=batch, epochs=epochs or 1
        ):
            output(line)
    else:
        refuse_without(context, "batch", ("epochs",))
        check_negatives_export(Path(name), to, folder)
        dataset = data.source().split(split)
        for line in export_negatives(Path(name), to, folder, dataset, most=most or DEFAULT_MOST):
            output(line)
    output(f"{folder}")


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
