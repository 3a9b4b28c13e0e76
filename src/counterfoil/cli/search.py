"""``counterfoil search``: in an index, or in data that a model looks at first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Data, Decisions, Features, Images, Split, example
from counterfoil.cli.unread import refuse, refuse_without

Where = Annotated[str, typer.Argument(help="Folder of an index; or model folder or HF name.")]
Query = Annotated[
    str, typer.Argument(help="A caption, the path of a picture, or an id of the index.")
]
Top = Annotated[int, typer.Option(min=1, help="How many.")]
Page = Annotated[
    Path | None,
    typer.Option(help="Page of thumbnails; of a model's search by default `search.html`."),
]
Find = Annotated[
    str | None, typer.Option(help="`images` or `captions`; default not what the query is.")
]
Kind = Annotated[
    str | None,
    typer.Option("--as", help="What the query is, if it looks like another: `caption`, …"),
]
Rerank = Annotated[str | None, typer.Option(help="Model that puts the first results in order.")]
Depth = Annotated[int | None, typer.Option(min=1, help="Results re-ranked; default 50.")]
Model = Annotated[str | None, typer.Option(help="Where the index's model is, if it was moved.")]
Plain = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(rich_markup_mode="markdown")

PAGE = Path("search.html")


@app.command(
    epilog=example(
        'counterfoil search my-index/ "a dog in the snow"',
        "counterfoil search my-index/ photo.jpg --find images --top 20",
        "counterfoil search my-index/ beach.jpg --as id --json",
        'counterfoil search my-index/ "a dog in the snow" --rerank runs/tags/vilt --depth 50',
        'counterfoil search runs/demo/adaptive "a red circle left of a blue square" --data scenes',
    )
)
def search(
    context: typer.Context,
    where: Where,
    query: Query,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
    top: Top = 10,
    page: Page = None,
    find: Find = None,
    kind: Kind = None,
    rerank: Rerank = None,
    depth: Depth = None,
    model: Model = None,
    plain: Plain = False,
) -> None:
    """Find images for a caption, captions for a picture, or what is like it, in an index.

    With a model in its place, rank the pictures of a split, or its captions for a picture.
    """
    from counterfoil.engine.index_state import is_index
    from counterfoil.recipes.index_verbs import Asking, search_index_with
    from counterfoil.recipes.run import Source
    from counterfoil.recipes.verbs import search_with

    if is_index(Path(where)):
        refuse(
            context, ("split",), f"with a model, and {where} is an index, which is searched whole"
        )
        refuse_without(context, "data", ("features", "images", "decisions"))
        source = Source(data, features, images, decisions) if data else None
        asking = Asking(kind or "", find or "", top, model or "", rerank or "", depth, page, plain)
        search_index_with(Path(where), query, source, asking)
        return
    given = {"--find": find, "--as": kind, "--rerank": rerank, "--depth": depth, "--model": model}
    told = [name for name, value in {**given, "--json": plain or None}.items() if value is not None]
    if told:
        raise ValueError(
            f"{told[0]} goes with an index, and {where} is none; make one with `counterfoil index`"
        )
    source = Source(data or "scenes", features, images, decisions)
    search_with(where, query, source, split, top=top, page=page or PAGE)
