"""One self-contained HTML page made of blocks: figures, tables, and cards with pictures.

A page needs no network and no other file. All text is escaped; pictures are ``data:`` addresses.

>>> table = TableBlock("Recall", ("model", "R@1"), (("scan", "67.4"),))
>>> page = Page("Results", "SCAN reaches R@1 67.4.", "test split", tables=(table,))
>>> "<h1>Results</h1>" in render_page(page)
True
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

from counterfoil.core.io import write_text

if TYPE_CHECKING:
    from jinja2 import Template
    from PIL.Image import Image


THUMBNAIL_SIDE = 224  # pixels; shown at half that, for sharp screens


@final
@dataclass(frozen=True, slots=True)
class Provenance:
    """How a page was made and how to reproduce it.

    Attributes:
        command: command line that wrote the page.
        seed: random seed, if one was used.
        recipe: name of the recipe.
        digest: digest of the recipe's content.
        versions: (name, version) pairs of the software used.
        reproduce: commands that reproduce the numbers, one per line.
    """

    command: str
    seed: int | None = None
    recipe: str = ""
    digest: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    reproduce: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing as inline SVG.

    Attributes:
        svg: the drawing.
        alt: description for readers who do not see it.
        caption: lines below the drawing.
    """

    svg: str
    alt: str
    caption: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class TableCell:
    """A table cell with a second, smaller line.

    Attributes:
        value: the number.
        under: the second line, usually an interval.
        best: whether the value is the best of its row.
    """

    value: str
    under: str = ""
    best: bool = False


TableRow: TypeAlias = "tuple[str | TableCell, ...]"


@final
@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table.

    Attributes:
        title: heading; may be empty.
        head: column names.
        rows: cells of each row; a row with a single cell is the heading of the rows below it.
        note: explanation of the columns, one paragraph per line.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[TableRow, ...]
    note: str = ""


@final
@dataclass(frozen=True, slots=True)
class TextPart:
    """A stretch of a caption that may be coloured.

    Attributes:
        text: the stretch.
        tint: depth of its colour in 0..1; None for no colour.
        number: number of a word, for readers who see no colour.
        marked: whether the number is shown.
        inserted: whether the stretch is underlined as new.
    """

    text: str
    tint: float | None = None
    number: str = ""
    marked: bool = False
    inserted: bool = False


@final
@dataclass(frozen=True, slots=True)
class PageItem:
    """A caption or a picture.

    Attributes:
        text: the caption, or the description of the picture.
        picture: ``data:`` address; None for a caption.
        place: rank in a list, from 1; 0 for none.
        true: whether the item matches the query.
        score: score with the query, if known.
        marks: remarks shown beside the item.
        parts: the caption in coloured stretches; empty for plain text.
    """

    text: str
    picture: str | None = None
    place: int = 0
    true: bool = False
    score: float | None = None
    marks: tuple[str, ...] = ()
    parts: tuple[TextPart, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class CardColumn:
    """A list on a card.

    Attributes:
        title: heading of the list; may be empty.
        note: line below the heading.
        items: captions only or pictures only.
        missed: a match that is not among the items, shown apart from them.
    """

    title: str
    note: str
    items: tuple[PageItem, ...]
    missed: PageItem | None = None


@final
@dataclass(frozen=True, slots=True)
class ExampleCard:
    """A query with lists side by side.

    Attributes:
        query: picture or caption.
        note: line below the query.
        columns: the lists.
    """

    query: PageItem
    note: str
    columns: tuple[CardColumn, ...]


@final
@dataclass(frozen=True, slots=True)
class CardSection:
    """Cards under one heading.

    Attributes:
        title: heading.
        note: how the cards were chosen.
        cards: in display order.
    """

    title: str
    note: str
    cards: tuple[ExampleCard, ...]


@final
@dataclass(frozen=True, slots=True)
class FigureSection:
    """Figures under one heading."""

    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Page:
    """The content of a page, in display order.

    Attributes:
        title: title of the page.
        headline: the result in one sentence; may be empty.
        protocol: data, protocol, seed, single model or ensemble; no full stop.
        provenance: foot of the page, if given.
        figures: drawn first.
        tables: after the figures.
        sections: cards and further figures, last.
    """

    title: str
    headline: str
    protocol: str
    provenance: Provenance | None = None
    figures: tuple[Figure, ...] = ()
    tables: tuple[TableBlock, ...] = ()
    sections: tuple[CardSection | FigureSection, ...] = ()


def render_page(page: Page) -> str:
    """Render a page as HTML."""
    return template("document.html.j2").render(page=page)


def write_page(page: Page, path: Path) -> None:
    """Write a page atomically."""
    write_text(path, render_page(page))


def template(name: str) -> Template:
    """Load a page template with autoescape and strict variables."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("counterfoil.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def thumbnail(picture: Image, side: int = THUMBNAIL_SIDE) -> str:
    """Scale a picture down to a ``data:`` address: PNG or JPEG, whichever is smaller."""
    from PIL import Image as Images

    small = picture.convert("RGB")
    small.thumbnail((side, side), Images.Resampling.LANCZOS)
    encoded = []
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 80})):
        data = io.BytesIO()
        small.save(data, kind, **options)
        encoded.append((len(data.getvalue()), kind, data.getvalue()))
    _, kind, content = min(encoded)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
