"""``counterfoil export``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    Data,
    Decisions,
    Features,
    Images,
    Split,
    example,
    refuse,
    source,
)

MOST, OURS = 8, "counterfoil"

To = Annotated[
    str,
    typer.Option(
        help="Models: counterfoil, hf, sentence-transformers. Negatives: "
        "sentence-transformers, flagembedding, tevatron, open-clip, trec."
    ),
]

app = typer.Typer()


@app.command(
    epilog=example(
        "counterfoil export runs/demo/adaptive --to counterfoil --folder my-model/",
        "counterfoil export runs/clip/online --to sentence-transformers --folder my-clip/",
        "counterfoil export runs/demo/lists --to sentence-transformers --data scenes --folder out/",
        "counterfoil export written/ --to trec --data scenes --folder out/",
    )
)
def export(
    context: typer.Context,
    given: Annotated[str, typer.Argument(help="A model, or a folder of negatives.")],
    to: To,
    folder: Annotated[
        Path, typer.Option("--folder", "--out", help="Where it goes; must not exist yet.")
    ],
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    most: Annotated[
        int | None, typer.Option(min=1, help=f"Negatives of a query, at most; default {MOST}.")
    ] = None,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(help="For the card of a model: what `evaluate --out` wrote; many times."),
    ] = None,
) -> None:
    """Write a model or negatives as other tools read them."""
    from counterfoil.core.console import output
    from counterfoil.export.negatives import check_negatives_export, export_negatives, kind_of

    if kind_of(Path(given)) is None:
        refuse(
            context,
            ("data", "features", "images", "decisions", "split", "most"),
            f"with negatives, and {given} holds none that `counterfoil mine` or `counterfoil "
            "write` made",
        )
        _model(given, to, folder, evaluation or ())
    elif evaluation:
        raise ValueError(f"--evaluation is for the card of a model, and {given} holds negatives")
    else:
        check_negatives_export(Path(given), to, folder)
        dataset = source(data, features, images, decisions).split(split)
        for line in export_negatives(Path(given), to, folder, dataset, most=most or MOST):
            output(line)
    output(f"{folder}")


def _model(given: str, to: str, folder: Path, evaluations: Sequence[Path]) -> None:
    """Write a model for this library or for another."""
    from counterfoil.export.models import check_export, export_model
    from counterfoil.model import load_model

    if to == OURS:
        load_model(given).save_pretrained(folder, evaluations=evaluations)
        return
    if evaluations:
        raise ValueError(f"--evaluation is for a card, which only --to {OURS} writes")
    check_export(to, folder)
    model = load_model(given)
    export_model(model.model, model.processor, to, folder, name=given)
