"""The files of the page, read once; nothing else of the package is served."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import final

_STYLE = "style.html.j2"  # colours and letters of every page of the package


@final
@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page.

    Attributes:
        kind: its media type.
        content: of it.
    """

    kind: str
    content: bytes


def page_files() -> dict[str, PageFile]:
    """The files of the page by their paths."""
    page = files("counterfoil") / "serve" / "page"
    style = (files("counterfoil") / "evaluate" / "templates" / _STYLE).read_text("utf-8")
    shared = style[style.index("<style>") + len("<style>") : style.index("</style>")]
    css = shared + (page / "page.css").read_text("utf-8")
    return {
        "/": PageFile("text/html; charset=utf-8", (page / "page.html").read_bytes()),
        "/page.css": PageFile("text/css; charset=utf-8", css.encode()),
        "/page.js": PageFile("text/javascript; charset=utf-8", (page / "page.js").read_bytes()),
    }
