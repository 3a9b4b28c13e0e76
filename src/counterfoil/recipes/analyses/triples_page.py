"""The page of triples: a scatter for every model that scores, and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from counterfoil.evaluate.analysis_page import Rows
from counterfoil.evaluate.distribution_figures import minus
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.share_figures import scatter
from counterfoil.evaluate.triples import Difficulty, Triples
from counterfoil.evaluation.bootstrap import Share

PAPER = (
    "The paper, with CLIP on Flickr30K: of the hardest of the whole set about 40 % above the "
    "positive, 18 % at least 0.05 below it."
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Triples as a model sees them.

    Attributes:
        chosen_by: the model that chose the negatives.
        scored_by: the model whose scores these are.
        triples: of one source.
        difficulty: how hard they are.
    """

    chosen_by: str
    scored_by: str
    triples: Triples
    difficulty: Difficulty

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "chosen_by": self.chosen_by,
            "scored_by": self.scored_by,
            "negatives": self.triples.source,
            "left_out": self.triples.left_out,
            "percent_above": self.difficulty.above.plain(),
            "percent_far_below": self.difficulty.below.plain(),
            "mean_gap": self.difficulty.gap.plain(),
            "positive": self.triples.positive.tolist(),
            "negative": self.triples.negative.tolist(),
        }


def drawn(found: Sequence[Seen], level: float) -> Iterator[Figure]:
    """A scatter for every model that chose and every model that scored."""
    pairs = list(dict.fromkeys((seen.chosen_by, seen.scored_by) for seen in found))
    for number, pair in enumerate(pairs):
        mine = [s.triples for s in found if (s.chosen_by, s.scored_by) == pair]
        mine = [one for one in mine if len(one.images)]
        if mine:
            yield scatter(mine, level, f"triples-{number}", f"Scored by {_by(*pair)}.")


def table(found: Sequence[Seen], level: float) -> Rows:
    """A line for every source of every scatter."""
    head = "scored by", "negatives", "triples", "above, %", f"{level:g} below, %", "mean gap"
    cells = tuple(
        (
            _by(seen.chosen_by, seen.scored_by),
            seen.triples.source,
            f"{len(seen.triples.images):,}",
            _cell(seen.difficulty.above, ".1f"),
            _cell(seen.difficulty.below, ".1f"),
            _cell(seen.difficulty.gap, "+.4f"),
        )
        for seen in found
    )
    note = (
        f"Above: the negative scores above the positive. {level:g} below: it scores as far below "
        "it, or further. Gap: negative minus positive, over the unit of the model's score.\n"
    )
    return Rows("How hard negatives are", head, cells, note + PAPER)


def _by(chosen: str, scored: str) -> str:
    """Who scores; and whose triples they are, where another model chose them."""
    return scored if chosen == scored else f"{scored}, those of {chosen}"


def _cell(share: Share, form: str) -> str:
    if not share.count:
        return "–"
    low, high = minus(share.interval.low, form), minus(share.interval.high, form)
    return f"{minus(share.value, form)} ({low} to {high})"


def headline(found: Sequence[Seen]) -> str:
    """What the first model thinks of the negatives that it chose."""
    words = [
        f"{seen.difficulty.above.value:.1f} % ({seen.triples.source})"
        for seen in found
        if seen.scored_by == found[0].scored_by and seen.chosen_by == found[0].chosen_by
        if seen.difficulty.above.count
    ]
    return f"Negatives that {found[0].scored_by} scores above the positive: {', '.join(words)}."
