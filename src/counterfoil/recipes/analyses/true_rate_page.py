"""The page of true captions among written ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from counterfoil.evaluate.analysis_page import AnalysisPage, Card, Cards, Column, Rows
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.gallery import Shown, shown_image
from counterfoil.evaluate.result_figures import Point, bars, curves
from counterfoil.evaluate.true_rate import RATES, Sifted
from counterfoil.evaluation.bootstrap import Share
from counterfoil.recipes.analyses.scorers import exhibits
from counterfoil.recipes.analyses.truths import Known
from counterfoil.recipes.provenance import made_now

HEAD = "", "kept", "kept, %", "false of the kept, %", "true ones left out, %", "false ones lost, %"
_NOTE = (
    "False of the kept: the true-negative rate. captions: left out when all new words occur in the "
    "picture's captions, the paper's rule; lemmas, wordnet: when some form, synonym or wider term "
    "of each does; inflection: when a new word has another ending; guide: when the guide model "
    "scores it at least as high as what it was made of, or as the picture's own captions do on "
    "average; encoder: when a sentence encoder finds it as near in meaning to the picture's other "
    "captions as what it was made of, or as its own captions are to each other on average. Behind "
    "each rate its 95 % interval: pictures drawn anew with all their captions, "
    "1,000 times."
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One way to score captions, and what is kept without the highest.

    Attributes:
        name: of the score.
        told_apart: percent of pairs of a true and a false caption that it puts in order.
        below: what is kept without the highest; each is named by the percent left out.
    """

    name: str
    told_apart: Share
    below: tuple[Sifted, ...]

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        below = [one.plain() for one in self.below]
        return {"name": self.name, "told_apart": self.told_apart.plain(), "below": below}


@final
@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A set of captions whose truth is known.

    Attributes:
        known: the captions.
        filters: what each filter keeps, none of them first.
        scores: what leaving out the highest scores keeps.
        survivors: rows of true captions that the last filter keeps.
    """

    known: Known
    filters: tuple[Sifted, ...]
    scores: tuple[Scored, ...]
    survivors: tuple[int, ...]

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "set": self.known.name,
            "captions": len(self.known.captions),
            "true": int(self.known.true.sum()),
            "filters": [one.plain() for one in self.filters],
            "scores": [one.plain() for one in self.scores],
        }


def page(found: Sequence[Judged], protocol: str, seed: int) -> AnalysisPage:
    """All that stands on the page.

    Args:
        found: at least one set.
        protocol: in one sentence.
        seed: of what was drawn.
    """
    return AnalysisPage(
        title="True captions among written ones",
        headline=" ".join(map(_headline, found)),
        protocol=protocol,
        provenance=made_now(seed=seed),
        figures=tuple(_figures(found)),
        tables=tuple(table for one in found for table in _tables(one)),
        sections=tuple(section for one in found for section in _examples(one)),
    )


def _headline(one: Judged) -> str:
    first, paper, *_ = one.filters
    told = f"{one.known.name}: of {first.kept:,} captions {first.false_rate.value:.1f} % are false"
    left = [sieve for sieve in one.filters[1:] if sieve.kept]
    if not left:
        return f"{told}; no filter keeps any."
    best = max(left, key=lambda sieve: sieve.false_rate.value)
    at_best = f"{best.false_rate.value:.1f} % of those of {best.name}"
    if paper.kept:
        at_paper = f"{paper.false_rate.value:.1f} % of those that the paper's rule keeps"
        at_best = at_paper if best is paper else f"{at_paper}, {at_best}"
    if not best.lost.count:
        return f"{told}; {at_best}."
    return f"{told}; {at_best}, which loses {best.lost.value:.1f} % of the false ones."


def _tables(one: Judged) -> Iterator[Rows]:
    yield Rows(f"{one.known.name}: filters", HEAD, tuple(map(_cells, one.filters)), _NOTE)
    for scored in one.scores:
        head = "highest left out, %", *HEAD[1:]
        note = (
            "Of a true and a false caption the true one scores higher in "
            f"{_rate(scored.told_apart)} % of all pairs."
        )
        title = f"{one.known.name}: by {scored.name}"
        yield Rows(title, head, tuple(map(_cells, scored.below)), note)


def _cells(sieve: Sifted) -> tuple[str, ...]:
    return sieve.name, f"{sieve.kept:,}", *(_rate(getattr(sieve, name)) for name in RATES)


def _rate(share: Share) -> str:
    if not share.count:
        return "–"
    return f"{share.value:.1f} ({share.interval.low:.1f} to {share.interval.high:.1f})"


def _figures(found: Sequence[Judged]) -> Iterator[Figure]:
    label = "false of the kept, %"
    kept = [(one, sieve) for one in found for sieve in one.filters if sieve.kept]
    points = [
        Point(sieve.name, sieve.false_rate.value, sieve.false_rate.interval, group=one.known.name)
        for one, sieve in kept
    ]
    yield bars(points, label, "filters", "What filters keep.")
    for number, one in enumerate(found):
        lines = [
            Point(
                scored.name,
                below.false_rate.value,
                below.false_rate.interval,
                at=float(below.name),
            )
            for scored in one.scores
            for below in scored.below
        ]
        if lines:
            whose = f"{one.known.name}: what is kept without the highest scores."
            against = "highest scores left out, %"
            yield curves(lines, label, against, f"scores-{number}", whose, log=False, columns=1)


def _examples(one: Judged) -> Iterator[Cards]:
    known, cards = one.known, []
    shown = exhibits(known.corpus)
    for row in one.survivors:
        picture = shown_image(shown, int(known.images[row]))
        old = int(known.made_of[row])
        note = f"made of: {known.corpus.texts[old]}" if old >= 0 else ""
        cards.append(
            Card(picture, "", (Column(note or "true", "", (Shown(known.captions[row]),)),))
        )
    if cards:
        note = f"Some of the true captions that the last filter keeps: {one.filters[-1].name}."
        yield Cards(f"{known.name}: true, and not found", note, tuple(cards))
