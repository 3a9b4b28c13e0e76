"""``counterfoil serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Data, Decisions, Features, Images, example, refuse_without

Explainer = Annotated[
    str | None, typer.Option(help="Model that explains captions, as one of TAGS-DC.")
]

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil serve photos.index/",
        "counterfoil serve runs/mine/online photos.index/ --explainer runs/tags-dc/tags-dc",
        "counterfoil serve photos.index/ --rerank runs/tags/vilt --depth 50",
        "counterfoil serve photos.index/ --host 0.0.0.0 --port 80 --key a-long-secret",
    )
)
def serve(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="May be left out: the index names it.")
    ],
    index: Annotated[
        str | None, typer.Argument(metavar="INDEX", help="Folder that `counterfoil index` made.")
    ] = None,
    explainer: Explainer = None,
    rerank: Annotated[
        str | None, typer.Option(help="Model that puts the first results in order.")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Results re-ranked; default 50.")] = None,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8000,
    key: Annotated[
        str | None,
        typer.Option(envvar="COUNTERFOIL_KEY", help="What requests carry as X-API-Key."),
    ] = None,
    upload: Annotated[float, typer.Option(min=0.01, help="Megabytes of a request.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.1, help="That a request may take.")] = 30,
) -> None:
    """Search and explain over HTTP, with a page for people."""
    from counterfoil.pipelines.run import DataSource
    from counterfoil.serve.run import serve as start
    from counterfoil.serve.settings import MEGABYTE, ServerSettings

    refuse_without(context, "data", ("features", "images", "decisions"))
    settings = ServerSettings(
        host=host, port=port, key=key, upload=int(upload * MEGABYTE), seconds=seconds
    )
    name, folder = (None, model) if index is None else (model, index)
    source = DataSource(data, features, images, decisions) if data else None
    start(
        Path(folder),
        model=name,
        explainer=explainer,
        rerank=rerank,
        depth=depth,
        source=source,
        settings=settings,
    )
