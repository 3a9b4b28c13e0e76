"""``counterfoil serve``: search and explanations over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    Data,
    Depth,
    Device,
    Rerank,
    data_source,
    loading,
    verb,
)

Explainer = Annotated[
    str | None, typer.Option(help="Model that explains captions, trained by TAGS-DC.")
]

# read here: typer takes an empty variable for none, which would serve without a key
KEY = "COUNTERFOIL_KEY"

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil serve photos.index/",
    "counterfoil serve runs/mine photos.index/ --explainer runs/tags-dc/tags-dc",
    "counterfoil serve photos.index/ --rerank runs/tags/vilt --depth 50",
    "counterfoil serve photos.index/ --public-name photos.example.org",
    "counterfoil serve photos.index/ --host 0.0.0.0 --port 80 --key-file key.txt",
)
def serve(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] INDEX",
            help="Folder that `counterfoil index` made; before it the model that made it, if that "
            "is no longer where it was.",
        ),
    ],
    data: Data = None,
    device: Device = None,
    explainer: Explainer = None,
    rerank: Rerank = None,
    depth: Depth = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 8000,
    public_name: Annotated[
        list[str] | None,
        typer.Option(help="Name by which browsers reach it through a proxy; repeatable."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the API key that requests send as X-API-Key; default: the environment "
            f"variable {KEY}, or no key."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The API key itself, which others on this machine see in `ps`."),
    ] = None,
    upload: Annotated[float, typer.Option(min=0.01, help="Largest request, in megabytes.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of a request.")] = 30,
) -> None:
    """Serve search and explanations over HTTP, with a web page."""
    with loading():
        from counterfoil.serve.run import serve as start
        from counterfoil.serve.settings import MEGABYTE, ServerSettings

    if len(places) > 2:
        raise ValueError(
            f"{len(places)} places are given; give the folder of an index, or a model and the "
            "folder, as in `counterfoil serve runs/mine photos.index/`"
        )
    model, folder = places[0] if len(places) == 2 else None, places[-1]
    key = _key(key, key_file)
    settings = ServerSettings(
        host=host,
        port=port,
        names=tuple(name.lower() for name in public_name or ()),
        key=key,
        upload=int(upload * MEGABYTE),
        seconds=seconds,
    )
    start(
        Path(folder),
        model=model,
        explainer=explainer,
        rerank=rerank,
        depth=depth,
        source=data_source(data) if data else None,
        settings=settings,
    )


def _key(key: str | None, file: Path | None) -> str | None:
    """The API key of an option, a file or the environment; None for none."""
    if file is None:
        return os.environ.get(KEY) if key is None else key
    if key is not None:
        raise ValueError("--key and --key-file both give an API key; give one")
    try:
        return file.read_text("utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as an API key: {error}") from None
