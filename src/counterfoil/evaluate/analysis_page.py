"""The page of an analysis: figures, tables, and cards that set lists side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.gallery import Shown
from counterfoil.evaluate.report import Provenance, template


@final
@dataclass(frozen=True, slots=True)
class Column:
    """One of the lists of a card.

    Attributes:
        title: whose list.
        note: a line under it.
        found: pictures or captions, never both.
        missed: a true counterpart that is not among them, where it is to be shown.
    """

    title: str
    note: str
    found: tuple[Shown, ...]
    missed: Shown | None = None


@final
@dataclass(frozen=True, slots=True)
class Card:
    """A picture or caption and lists that belong to it.

    Attributes:
        query: what was asked with.
        note: a line under it.
        columns: the lists, side by side where there is room.
    """

    query: Shown
    note: str
    columns: tuple[Column, ...]


@final
@dataclass(frozen=True, slots=True)
class Cards:
    """Some cards under one title.

    Attributes:
        title: of the section.
        note: how they were chosen.
        cards: in the order to show.
    """

    title: str
    note: str
    cards: tuple[Card, ...]


@final
@dataclass(frozen=True, slots=True)
class Rows:
    """A table of words and numbers.

    Attributes:
        title: over it; empty where the page's title is enough.
        head: names of the columns.
        rows: one cell for each column.
        note: what the columns mean, under it, a paragraph a line.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@final
@dataclass(frozen=True, slots=True)
class AnalysisPage:
    """All that stands on the page.

    Attributes:
        title: of the page.
        headline: the result in a sentence.
        protocol: data, protocol, seed, single model or ensemble.
        provenance: for the foot of the page.
        figures: in the order to show.
        tables: in the order to show.
        sections: of cards.
    """

    title: str
    headline: str
    protocol: str
    provenance: Provenance
    figures: tuple[Figure, ...] = ()
    tables: tuple[Rows, ...] = ()
    sections: tuple[Cards, ...] = ()


def render(page: AnalysisPage) -> str:
    """The page as HTML; everything that comes from data or users is escaped."""
    return template("analysis.html.j2").render(page=page)
