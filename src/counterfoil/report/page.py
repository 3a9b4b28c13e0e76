"""One self-contained HTML page made of blocks: figures, tables, and cards with pictures.

A page needs no network and no other file, and its Content-Security-Policy allows none. All text is
escaped; pictures are ``data:`` addresses.

>>> table = TableBlock("Recall", ("model", "R@1"), (("scan", "67.4"),))
>>> page = Page("Results", "SCAN reaches R@1 67.4.", "test split", tables=(table,))
>>> "<h1>Results</h1>" in render_page(page)
True
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import platform
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

from counterfoil import __version__
from counterfoil.core.io import write_text

if TYPE_CHECKING:
    from jinja2 import Template
    from PIL.Image import Image


THUMBNAIL_SIDE = 224  # pixels; shown at half that, for sharp screens


@final
@dataclass(frozen=True, slots=True)
class Provenance:
    """Provenance of a page: versions, command and settings to reproduce it."""

    command: str  # that wrote the page
    seed: int | None = None
    recipe: str = ""
    digest: str = ""  # of the recipe's content
    versions: tuple[tuple[str, str], ...] = ()  # of the software used
    reproduce: tuple[str, ...] = ()  # commands


def current_provenance(
    *, seed: int | None = None, recipe: str = "", digest: str = ""
) -> Provenance:
    """Command line, library versions and device of this process, and the recipe if there is one."""
    import numpy as np
    import torch

    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return Provenance(
        command=command,
        seed=seed,
        recipe=recipe,
        digest=digest,
        versions=(
            ("counterfoil", __version__),
            ("torch", torch.__version__),
            ("NumPy", np.__version__),
            ("Python", platform.python_version()),
            ("device", "CUDA" if torch.cuda.is_available() else f"CPU {platform.machine()}"),
        ),
        reproduce=(command,),
    )


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing as inline SVG, described in words for readers who do not see it."""

    svg: str
    alt: str
    caption: tuple[str, ...]  # lines below the drawing


@final
@dataclass(frozen=True, slots=True)
class TableCell:
    """A table cell with a second, smaller line, usually an interval."""

    value: str
    under: str = ""
    best: bool = False  # of its row


TableRow: TypeAlias = "tuple[str | TableCell, ...]"


@final
@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table; a row with a single cell is the heading of the rows below it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[TableRow, ...]
    note: str = ""  # explanation of the columns, one paragraph per line


@final
@dataclass(frozen=True, slots=True)
class WordLevels:
    """The map of a word over the regions of a picture, as it is drawn."""

    levels: tuple[int, ...]  # 0..99 for each region; 99 is the best
    told: str  # the best place and its number, for readers


@final
@dataclass(frozen=True, slots=True)
class TextPart:
    """A stretch of a caption that may be coloured."""

    text: str
    tint: float | None = None  # depth of its colour in 0..1; None for no colour
    number: str = ""  # of a word, for readers who see no colour
    marked: bool = False  # whether the number is shown
    inserted: bool = False  # underlined as new
    map: WordLevels | None = None  # where in the picture


@final
@dataclass(frozen=True, slots=True)
class PageItem:
    """A caption or a picture."""

    text: str  # the caption, or the description of the picture
    picture: str | None = None  # ``data:`` address
    place: int = 0  # rank in a list, from 1; 0 for none
    true: bool = False  # matches the query
    score: float | None = None  # with the query, if known
    marks: tuple[str, ...] = ()  # remarks shown beside the item
    parts: tuple[TextPart, ...] = ()  # the caption in coloured stretches; empty for plain text


@final
@dataclass(frozen=True, slots=True)
class CardColumn:
    """A list on a card: captions only or pictures only."""

    title: str
    note: str  # below the title
    items: tuple[PageItem, ...]
    missed: PageItem | None = None  # a match that is not among the items, shown apart from them


@final
@dataclass(frozen=True, slots=True)
class ExampleCard:
    """A query with lists side by side."""

    query: PageItem
    note: str  # below the query
    columns: tuple[CardColumn, ...]


@final
@dataclass(frozen=True, slots=True)
class CardSection:
    """Cards under one heading; the note says how they were chosen."""

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
    """The content of a page: what it opens with, figures, tables, then sections."""

    title: str
    headline: str  # the result in one sentence; may be empty
    protocol: str  # data, protocol, seed, single model or ensemble; no full stop
    provenance: Provenance | None = None
    opening: tuple[CardSection, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[TableBlock, ...] = ()
    sections: tuple[CardSection | FigureSection, ...] = ()


def render_page(page: Page) -> str:
    """Render a page as HTML."""
    return template("document.html.j2").render(page=page)


def write_page(page: Page, path: Path) -> None:
    """Write a page atomically."""
    write_text(path, render_page(page))


@cache
def template(name: str) -> Template:
    """Load a template with strict variables; all but Markdown is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("counterfoil.report"),
        autoescape=not name.endswith(".md.j2"),
        keep_trailing_newline=name.endswith(".md.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"script_source": _script_source, "json": json.dumps, "repr": repr}
    return environment.get_template(name)


def _script_source(script: str) -> str:
    """The source of a Content-Security-Policy that allows this script, or none."""
    if not script:
        return "'none'"
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def thumbnail(picture: Image, side: int = THUMBNAIL_SIDE) -> str:
    """Scale a picture down to a ``data:`` address: PNG or JPEG, whichever is smaller."""
    from PIL import Image as Images

    from counterfoil.core.rgb import rgb

    small = rgb(picture)
    small.thumbnail((side, side), Images.Resampling.LANCZOS)
    encoded = []
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 80})):
        data = io.BytesIO()
        small.save(data, kind, **options)
        encoded.append((len(data.getvalue()), kind, data.getvalue()))
    _, kind, content = min(encoded)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
