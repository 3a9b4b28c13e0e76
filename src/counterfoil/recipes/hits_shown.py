"""What an index found: a table in the terminal, thumbnails on a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from counterfoil.corpus.pictures import open_picture
from counterfoil.recipes.searching import Find, Hit
from counterfoil.recipes.show import console
from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    Page,
    PageItem,
    thumbnail,
    write_page,
)


def table(query: str, hits: Sequence[Hit], find: Find) -> None:
    """Print the list: score, picture and what is said of it."""
    shown = Table("", "score", box=box.SIMPLE_HEAD, title=Text(query), title_justify="left")
    for name in ("image", "caption") if find == "images" else ("caption", "image"):
        shown.add_column(name, overflow="fold")
    for hit in hits:
        image, caption = Text(_image(hit)), Text(_caption(hit))
        both = (image, caption) if find == "images" else (caption, image)
        shown.add_row(str(hit.place), f"{hit.score:.3f}", *both)
    console.print(shown)


def write(query: str, hits: Sequence[Hit], find: Find, note: str, page: Path) -> None:
    """Write the page of thumbnails."""
    found = tuple(
        PageItem(
            _caption(hit) if find == "captions" else _image(hit),
            None if find == "captions" else _thumbnail(hit),
            place=hit.place,
            score=hit.score,
        )
        for hit in hits
    )
    card = ExampleCard(PageItem(query), "", (CardColumn("", "", found),))
    write_page(Page(query, "", note, sections=(CardSection("Results", "", (card,)),)), page)


def _image(hit: Hit) -> str:
    """The picture's path, from here where it lies below."""
    if hit.path is None:
        return hit.image
    here = Path.cwd()
    return str(hit.path.relative_to(here) if hit.path.is_relative_to(here) else hit.path)


def _caption(hit: Hit) -> str:
    """The first caption, and how many more there are."""
    more = f" (+{len(hit.captions) - 1})" if len(hit.captions) > 1 else ""
    return f"{hit.captions[0]}{more}" if hit.captions else ""


def _thumbnail(hit: Hit) -> str | None:
    try:
        return None if hit.path is None else thumbnail(open_picture(hit.path))
    except ValueError:  # moved or deleted since; its path is shown
        return None
