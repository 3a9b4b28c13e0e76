"""A page about a set of lists: tables, figures, and examples with pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from counterfoil import files
from counterfoil.evaluate.analysis_page import Rows
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.gallery import Shown
from counterfoil.evaluate.report import Provenance, template


@final
@dataclass(frozen=True, slots=True)
class Listed:
    """A listed negative.

    Attributes:
        item: a caption or a picture, with its place and score.
        marks: why it may be true after all.
    """

    item: Shown
    marks: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Example:
    """An anchor, what is true of it, and what is listed for it.

    Attributes:
        anchor: a caption or a picture.
        own: its true counterparts, with their scores where known.
        found: the hardest negatives, hardest first.
    """

    anchor: Shown
    own: tuple[Shown, ...]
    found: tuple[Listed, ...]


@final
@dataclass(frozen=True, slots=True)
class Examples:
    """Examples of one kind under a title."""

    title: str
    note: str
    examples: tuple[Example, ...]


@final
@dataclass(frozen=True, slots=True)
class InspectionPage:
    """All that stands on the page.

    Attributes:
        title: of the page.
        note: what was looked at, in one sentence.
        tables: of numbers.
        figures: below them.
        groups: of examples.
        provenance: for the foot of the page.
    """

    title: str
    note: str
    tables: tuple[Rows, ...]
    figures: tuple[Figure, ...]
    groups: tuple[Examples, ...]
    provenance: Provenance


def write_inspection(page: InspectionPage, path: Path) -> None:
    """Write the page, whole or not at all; all that comes from data or users is escaped."""
    files.write_text(path, template("inspection.html.j2").render(page=page))
