"""A page of cases: a picture, its caption, what was written of it, and the correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from counterfoil.evaluate.report import Provenance, template
from counterfoil.evaluation.explanation_page import ExplainedCard

Pair = tuple[float, float]


@final
@dataclass(frozen=True, slots=True)
class Case:
    """One picture.

    Attributes:
        card: the picture, and the written caption explained.
        caption: that it was made of.
        scores: of two models, for the caption, what was written, and the correction, if any.
    """

    card: ExplainedCard
    caption: str
    scores: tuple[Pair, Pair, Pair | None]


@final
@dataclass(frozen=True, slots=True)
class CaseGroup:
    """Some cases under one title.

    Attributes:
        title: of the group.
        note: how they were chosen.
        cases: in the order to show.
    """

    title: str
    note: str
    cases: tuple[Case, ...]


@final
@dataclass(frozen=True, slots=True)
class CasesPage:
    """All that stands on the page.

    Attributes:
        title: of the page.
        headline: the result in a sentence.
        protocol: data, models, rule and seed.
        note: what the colours mean.
        measure: what the number of a word is.
        models: names of the two.
        groups: of cases.
        provenance: for the foot of the page.
    """

    title: str
    headline: str
    protocol: str
    note: str
    measure: str
    models: tuple[str, str]
    groups: tuple[CaseGroup, ...]
    provenance: Provenance


def render(page: CasesPage) -> str:
    """The page as HTML; everything that comes from data or users is escaped."""
    return template("cases.html.j2").render(page=page)
