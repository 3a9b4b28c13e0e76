"""``counterfoil search``: in an index, or in a data set that a model encodes first."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, final

import typer

from counterfoil.cli.options import (
    Data,
    Depth,
    Device,
    Rerank,
    Split,
    VerbCommand,
    data_source,
    example,
    loading,
    refuse,
)

if TYPE_CHECKING:
    from PIL import Image

    from counterfoil.pipelines.run import DataSource
    from counterfoil.search.index import SearchHit, SearchIndex, SearchTarget
    from counterfoil.search.rerank import Reranker


QueryKind = Literal["caption", "picture", "id"]

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[INDEX] QUERY",
        help="A caption in quotes, the path of an image, or an id; before it the folder of an "
        "index, or a model's folder or HF name. Without these, photos are searched.",
    ),
]
Photos = Annotated[
    Path | None, typer.Option(help="Folder of photos to search; default the current folder.")
]
Top = Annotated[int, typer.Option(min=1, help="Number of results.")]
Page = Annotated[Path | None, typer.Option("--output", help="HTML page of thumbnails to write.")]
Open = Annotated[bool, typer.Option("--open", help="Show a page of the results in the browser.")]
Find = Annotated[
    Literal["images", "captions"] | None,
    typer.Option(help="Return `images` or `captions`; default the other modality."),
]
Kind = Annotated[
    QueryKind | None,
    typer.Option("--as", help="Kind of the query; by default it is recognised."),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Model of the index, if it was moved; for photos, any: default COUNTERFOIL_MODEL, "
        "else openai/clip-vit-base-patch32."
    ),
]
MinProbability = Annotated[
    float | None,
    typer.Option(help="Leave out images less probable to match; needs a calibrated index."),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Condition on a column of the data, as `album=holiday`, `year>=2020` or "
        "`camera~canon` (contains); repeatable, all must hold.",
    ),
]
Plain = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(rich_markup_mode="markdown")

INDEX_OPTIONS = (
    "find", "kind", "rerank", "depth", "model", "plain", "min_probability", "filters",
)  # fmt: skip
NO_INDEX = "with a query alone, without an index or a model before it"


@app.command(
    cls=VerbCommand,
    epilog=example(
        'counterfoil search "a dog in the snow"',
        'counterfoil search "a dog in the snow" --photos my-photos/ --open',
        'counterfoil search my-index/ "a dog in the snow"',
        "counterfoil search my-index/ photo.jpg --find images --top 20",
        "counterfoil search my-index/ beach.jpg --as id --json",
        'counterfoil search my-index/ "a dog in the snow" --min-probability 0.5',
        'counterfoil search my-index/ "a dog" --where album=holiday --where "year>=2020"',
        'counterfoil search my-index/ "a dog in the snow" --rerank runs/tags/vilt --depth 50',
        'counterfoil search runs/mine "a dog in the snow" --data my-photos/',
    ),
)
def search(
    context: typer.Context,
    words: Words,
    data: Data = None,
    photos: Photos = None,
    split: Split = "test",
    top: Top = 10,
    page: Page = None,
    show: Open = False,
    find: Find = None,
    kind: Kind = None,
    rerank: Rerank = None,
    depth: Depth = None,
    model: Model = None,
    device: Device = None,
    plain: Plain = False,
    min_probability: MinProbability = None,
    filters: Filters = None,
) -> None:
    """Search photos, or an index, for images or captions, by a caption, an image or an id.

    A query alone is searched for in the photos of a folder, whose index is kept in a hidden folder
    there. With a model instead of an index, rank the images or captions of a data set's split.
    """
    with loading():
        from counterfoil.search.index import open_index
        from counterfoil.search.rerank import open_reranker
        from counterfoil.search.vector_index import is_index
    from counterfoil.core.io import ensure_writable_file

    if page is not None:
        ensure_writable_file(page)
    where, query = _split(words)
    if not where:
        refuse(context, ("split", "data"), "with an index or a model before the query")
        index = _open_photos(query, photos, model, open_reranker(rerank, depth, None))
    elif is_index(Path(where)):
        whole = f"with a model, and {where} is an index, which is searched whole"
        refuse(context, ("split",), whole)
        refuse(context, ("photos",), NO_INDEX)
        source = data_source(data) if data else None
        dataset = source.open() if source and rerank else None
        index = open_index(where, model=model, rerank=open_reranker(rerank, depth, dataset))
    else:
        refuse(context, ("photos",), NO_INDEX)
        refuse(context, INDEX_OPTIONS, f"with an index, and {where} is none")
        _check_model(where, query, data)
        answer = _search_dataset(where, query, data_source(data), split, top)
        _show(answer, plain, page, show)
        return
    with index:
        answer = _search_index(index, query, top, find, kind, min_probability, filters)
    _show(answer, plain, page, show)


@final
@dataclass(frozen=True)
class _Answer:
    """The hits of a query, and what is printed of them and of the search."""

    query: str
    hits: Sequence[SearchHit]
    find: SearchTarget
    note: str
    open_image: Callable[[SearchHit], Image.Image | None]
    facts: Mapping[str, object] = field(default_factory=dict)  # of the JSON
    columns: Sequence[str] = ()
    nothing: str = ""  # what is said where there are no hits


def _show(answer: _Answer, plain: bool, page: Path | None, show: bool) -> None:
    """Print an answer, and write and open its page if one is asked for."""
    from counterfoil.core.console import output, printable_json

    hits = answer.hits
    if plain:
        results = [hit.to_dict() for hit in hits]
        print(printable_json({**answer.facts, "find": answer.find, "results": results}))
    elif hits or not answer.nothing:
        print_hits(answer.query, hits, answer.find, answer.columns)
    else:
        output(answer.nothing)
    if page is None and not show:
        return
    page = page or Path(tempfile.mkdtemp(prefix="counterfoil-")) / "search.html"
    write_hits_page(answer.query, hits, answer.find, answer.note, page, answer.open_image)
    if not plain:
        output(str(page))
    if show:
        webbrowser.open(page.resolve().as_uri())


def _split(words: Sequence[str]) -> tuple[str, str]:
    """What is searched, "" for photos, and the query."""
    if len(words) > 2:
        raise ValueError(
            f"{len(words)} words are given; write the query in quotes, as in `counterfoil search "
            '"a dog in the snow"`'
        )
    return words[0] if len(words) == 2 else "", words[-1]


def _open_photos(
    query: str, photos: Path | None, model: str | None, reranker: Reranker | None
) -> SearchIndex:
    from counterfoil.search.photos import MODEL, open_photos

    if os.path.isdir(query):  # noqa: PTH112 - Path raises at a long caption
        raise ValueError(
            f"{query} is a folder, and no query is given, as in `counterfoil search "
            f'"a dog in the snow" --photos {query}`'
        )
    chosen = model or os.environ.get("COUNTERFOIL_MODEL") or MODEL
    return open_photos(photos or Path(), chosen, rerank=reranker)


def _check_model(where: str, query: str, data: str | None) -> None:
    """Refuse a folder of photos in the place of an index."""
    from counterfoil.loading import is_pretrained_folder
    from counterfoil.model import is_model_folder

    folder = Path(where)
    if (
        data is None
        and folder.is_dir()
        and not (is_model_folder(folder) or is_pretrained_folder(folder))
    ):
        raise ValueError(
            f"{where} is neither an index nor a model; to search a folder of photos: "
            f'counterfoil search "{query}" --photos {where}'
        )


def _search_index(
    index: SearchIndex,
    query: str,
    top: int,
    find: SearchTarget | None,
    kind: QueryKind | None,
    min_probability: float | None,
    filters: list[str] | None,
) -> _Answer:
    from counterfoil.search.filters import parse_where

    kind = kind or _guess_kind(index, query)
    find = find or _default_target(index, query, kind)
    if kind == "caption":
        hits = index.search(query, top, find=find, min_probability=min_probability, where=filters)
    elif min_probability is not None:
        raise ValueError(
            f"{query!r} is a query by {kind}, and probabilities are those of images found by "
            "a caption; leave out --min-probability"
        )
    else:
        methods = {"picture": index.search_image, "id": index.search_id}
        hits = methods[kind](query, top, find=find, where=filters)
    conditions = parse_where(filters, list(index.vectors.images.columns) if filters else ())
    nothing = ""
    if min_probability is not None:
        least = f"with a probability of {min_probability:g} or more"
        nothing = f"{query}: nothing here matches ({least})"
    elif filters:
        nothing = f"{query}: no {find} of {index.folder} fulfil {' and '.join(filters)}"
    return _Answer(
        query,
        hits,
        find,
        f"{index.folder}: {index.description}; score: {index.score_name}",
        _open_file,
        facts={
            "index": str(index.folder),
            "model": index.model_name,
            "score": index.score_name,
            "query": query,
            "as": kind,
            **({"where": filters} if filters else {}),
        },
        columns=[*dict.fromkeys(condition.column for condition in conditions)],
        nothing=nothing,
    )


def _search_dataset(name: str, query: str, source: DataSource, split: str, top_k: int) -> _Answer:
    from counterfoil.data.images import is_picture_name
    from counterfoil.model import load_model
    from counterfoil.search.index import search_dataset

    path = Path(query)
    is_image = is_picture_name(path)
    if is_image and not path.is_file():
        raise ValueError(f"{path} does not exist; give a caption in quotes or an existing picture")
    find: SearchTarget = "captions" if is_image else "images"
    dataset = source.split(split)
    model = load_model(name)
    hits = search_dataset(model, path if is_image else query, dataset, top_k)
    rows = {image_id: row for row, image_id in enumerate(dataset.image_ids)}

    def open_image(hit: SearchHit) -> Image.Image | None:
        return None if dataset.pictures is None else dataset.pictures.open(rows[hit.image_id])

    size = f"{len(dataset):,} images, {len(dataset.texts):,} texts"
    note = f"{dataset.name} {dataset.split_name}: {size}; score: {model.model.score_name}"
    return _Answer(query, hits, find, note, open_image)


def _guess_kind(index: SearchIndex, query: str) -> QueryKind:
    """Kind of a query: an existing image file, else an id of the index, else a caption."""
    from counterfoil.data.images import is_picture_name

    path = Path(query)
    if is_picture_name(path) and path.is_file():
        return "picture"
    if query in index.vectors.images.rows or query in index.vectors.texts.rows:
        return "id"
    if is_picture_name(path):
        raise ValueError(
            f"{query} does not exist, and no image of {index.folder} has this id; give a caption "
            "in quotes, an existing picture or an id"
        )
    return "caption"


def _default_target(index: SearchIndex, query: str, kind: QueryKind) -> SearchTarget:
    """The other modality than the query, if the index holds any."""
    if kind == "caption" or (kind == "id" and index.locate(query)[0] == "text"):
        return "images"
    return "captions" if len(index.vectors.texts) else "images"


def print_hits(
    query: str, hits: Sequence[SearchHit], find: SearchTarget, columns: Sequence[str] = ()
) -> None:
    """Print a table: rank, score, image and caption, and these columns of the data."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from counterfoil.core.console import console

    table = Table("", "score", box=box.SIMPLE_HEAD, title=Text(query), title_justify="left")
    # a narrow terminal breaks captions before names of files, unless these would fill it
    whole = all(2 * len(_image_label(hit)) <= console().width for hit in hits)
    told = find == "captions" or any(hit.captions for hit in hits)
    names = ("image", "caption")[: 1 + told] if find == "images" else ("caption", "image")
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=whole and name == "image")
    calibrated = any(hit.probability is not None for hit in hits)
    if calibrated:
        table.add_column("probability")
    for name in columns:
        table.add_column(Text(name))
    for hit in hits:
        cells = [Text(_image_label(hit) + _file_note(hit)), Text(_caption_label(hit))]
        known = [f"{hit.probability or 0:.2f}"] if calibrated else []
        row = cells[: 1 + told] if find == "images" else reversed(cells)
        values = [Text(str(hit.columns.get(name, ""))) for name in columns]
        table.add_row(str(hit.rank), f"{hit.score:.3f}", *row, *known, *values)
    console().print(table)


def _open_file(hit: SearchHit) -> Image.Image | None:
    """The image of a hit; None if its file is unknown, moved or damaged."""
    from counterfoil.data.images import open_picture

    try:
        return None if hit.path is None else open_picture(hit.path)
    except ValueError:  # the page shows its path instead
        return None


def write_hits_page(
    query: str,
    hits: Sequence[SearchHit],
    find: SearchTarget,
    note: str,
    page: Path,
    open_image: Callable[[SearchHit], Image.Image | None],
) -> None:
    """Write an HTML page of the hits: images as thumbnails, or captions."""
    from counterfoil.report import page as blocks

    def card(hit: SearchHit) -> blocks.PageItem:
        if find == "captions":
            return blocks.PageItem(_caption_label(hit), place=hit.rank, score=hit.score)
        image = open_image(hit)
        picture = None if image is None else blocks.thumbnail(image)
        label = _image_label(hit) + _file_note(hit)
        return blocks.PageItem(label, picture, place=hit.rank, score=hit.score)

    column = blocks.CardColumn("", "", tuple(card(hit) for hit in hits))
    results = blocks.CardSection(
        "Results", "", (blocks.ExampleCard(blocks.PageItem(query), "", (column,)),)
    )
    blocks.write_page(blocks.Page(query, "", note, sections=(results,)), page)


def _image_label(hit: SearchHit) -> str:
    """The image's path, relative to the working directory if it lies below, or its id."""
    if hit.path is None:
        return hit.image_id
    here = Path.cwd()
    return str(hit.path.relative_to(here) if hit.path.is_relative_to(here) else hit.path)


def _file_note(hit: SearchHit) -> str:
    """That the file of a hit is gone, and how many files hold the same picture."""
    gone = " (its file is gone)" if hit.missing else ""
    return f"{gone} (+{len(hit.same)} the same)" if hit.same else gone


def _caption_label(hit: SearchHit) -> str:
    """The first caption, and how many more there are."""
    count_note = f" (+{len(hit.captions) - 1})" if len(hit.captions) > 1 else ""
    return f"{hit.captions[0]}{count_note}" if hit.captions else ""
