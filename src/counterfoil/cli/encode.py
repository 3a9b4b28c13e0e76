"""``counterfoil encode``: vectors of a whole data set, for large embedders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from counterfoil.cli.options import CONVERSION, DataArgument, Device, data_options, example

Weights = Annotated[
    Literal["stored", "bf16", "fp32"],
    typer.Option(help="Numbers of the weights: stored (as on disk), bf16 or fp32."),
]
DeviceMap = Annotated[
    str | None, typer.Option(help="Place the model on several devices, such as `auto`.")
]
Tokens = Annotated[int, typer.Option(min=0, help="Tokens of a pass; 0 for what suits the device.")]

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    rich_help_panel=CONVERSION,
    epilog=example(
        "counterfoil encode my-embedder/ my-photos/ vectors/ --weights bf16 --device-map auto "
        "--tokens 32768",
    ),
)
@data_options
def encode(
    model: Annotated[str, typer.Argument(help="Model folder, or HF name.")],
    data: DataArgument,
    folder: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of the vectors.")],
    weights: Weights = "stored",
    device_map: DeviceMap = None,
    tokens: Tokens = 0,
    device: Device = None,
) -> None:
    """Encode all images and captions as one vector each; run it again to continue.

    The folder is a data set for the model `vectors`: evaluate, mine, train adapters and join
    ensembles without encoding again.
    """
    from counterfoil.core import distributed
    from counterfoil.core.console import output
    from counterfoil.model import load_model

    distributed.init()
    dataset = data.source().open()
    opened = load_model(model, weights=weights, device_map=device_map, tokens=tokens)
    written = opened.write_vectors(dataset, folder)
    output(f"{len(written):,} images and {len(written.texts):,} texts: {folder}")
