"""``counterfoil index``: make an index, add to it, delete from it, or say what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Decisions, Features, Images, Split, example
from counterfoil.cli.unread import refuse, refuse_without

Model = Annotated[str | None, typer.Argument(help="Model folder, HF name, or `vectors`.")]
Place = Annotated[
    str | None, typer.Argument(help="Folder, file or name; pictures need no captions.")
]
Into = Annotated[Path, typer.Option(help="Folder of the index.")]
Backend = Annotated[
    str | None,
    typer.Option(help="`exact`, `faiss-hnsw`, `faiss-ivf-pq` or `milvus`; default `exact`."),
]
Address = Annotated[
    str | None, typer.Option(help="Of a Milvus server; default a file in the index.")
]
Half = Annotated[bool, typer.Option("--half", help="Keep vectors in 16 bits.")]
Add = Annotated[bool, typer.Option("--add", help="Add what is new or has changed, by id.")]
Prefix = Annotated[str, typer.Option(help="Goes before every id, where others have the same.")]
Exchange = Annotated[
    bool, typer.Option("--exchange", help="Other pictures with known ids take their place.")
]
Delete = Annotated[
    list[str] | None,
    typer.Option(help="Id of an image, with its captions, or of a caption; many times."),
]

OF_DATA = (
    "features",
    "images",
    "decisions",
    "split",
    "backend",
    "address",
    "half",
    "prefix",
    "exchange",
)

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil index runs/mine my-photos/ --folder my-index/",
        "counterfoil index runs/mine more-photos/ --folder my-index/ --add",
        "counterfoil index runs/mine trip/ --folder my-index/ --add --prefix trip/",
        "counterfoil index --folder my-index/ --delete beach.jpg --delete snow.jpg",
        "counterfoil index --folder my-index/",
        "counterfoil index openai/clip-vit-base-patch32 my-photos/ --folder my-index/ "
        "--backend faiss-hnsw",
        "counterfoil index runs/mine my-photos/ --folder my-index/ --backend milvus "
        "--address http://localhost:19530",
    )
)
def index(
    context: typer.Context,
    model: Model = None,
    data: Place = None,
    folder: Into = Path("index"),
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "all",
    backend: Backend = None,
    address: Address = None,
    half: Half = False,
    add: Add = False,
    prefix: Prefix = "",
    exchange: Exchange = False,
    delete: Delete = None,
) -> None:
    """Keep images and captions for search; without a model say what an index holds."""
    from counterfoil.recipes.index_verbs import delete_with, index_with, show_index
    from counterfoil.recipes.run import Source

    if model is not None and data is not None and not delete:
        refuse_without(context, "add", ("exchange",))
        source = Source(data, features, images, decisions)
        index_with(
            model, source, split, folder, backend=backend, address=address or "", half=half,
            more=add, prefix=prefix, exchange=exchange,
        )  # fmt: skip
        return
    if model is not None or add:
        raise ValueError(
            "deleting needs no model and no data; leave them out"
            if delete
            else "an index is made of a model and data; name both, as in `counterfoil index "
            "runs/mine my-photos/ --folder my-index/`"
        )
    refuse(context, OF_DATA, "with a model and data to make an index of")
    if delete:
        delete_with(folder, delete)
    else:
        show_index(folder)
