"""A page of captions with their words coloured by doubt, beside their pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from counterfoil.evaluate.explanation import Explanation, Word
from counterfoil.report.page import PageItem, Provenance, template

BY_DOUBT = (
    "The deeper the colour of a word, the likelier the model holds it to be wrong. Words that "
    "count as wrong bear the probability. What may stand instead is for each word alone, all "
    "others as they are; in the corrected caption, new words are underlined."
)
BY_GAIN = (
    "No head of this model doubts words, so the page shows what the score gains when a word is "
    "left out. The word that gains most has the deepest colour. That explains the score; it is no "
    "probability that a word is wrong."
)


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a caption.

    Attributes:
        text: the stretch.
        tint: how deep its colour is, in 0..1; None for what is no word.
        told: the number of a word, for those who see no colour.
        marked: whether the number is shown.
    """

    text: str
    tint: float | None = None
    told: str = ""
    marked: bool = False


@final
@dataclass(frozen=True, slots=True)
class ExplainedCard:
    """A caption on the page.

    Attributes:
        image: its name, with its picture where there is one.
        place: in the ranking, from 1; 0 where there is none.
        explanation: of the caption.
        threshold: doubt from which a word counts as wrong.
    """

    image: PageItem
    explanation: Explanation
    threshold: float
    place: int = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """The caption in stretches."""
        return tuple(_parts(self.explanation, self.threshold))

    @property
    def new(self) -> tuple[tuple[str, bool], ...]:
        """The corrected caption in stretches, and whether each is new."""
        corrected = self.explanation.corrected
        if corrected is None:
            return ()
        found, at = [], 0
        for start, stop in corrected.changes:
            found += [(corrected.text[at:start], False), (corrected.text[start:stop], True)]
            at = stop
        return tuple(part for part in (*found, (corrected.text[at:], False)) if part[0])

    @property
    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """Of each word: itself, its number, and what may stand in its place."""
        return tuple((word.text, number(word), instead(word)) for word in self.explanation.words)


@final
@dataclass(frozen=True, slots=True)
class ExplainPage:
    """All that stands on the page.

    Attributes:
        title: of the page.
        headline: the result in a sentence.
        protocol: model, data, and how captions were ranked.
        note: what the colours mean.
        measure: what the number of a word is.
        cards: in the order to show; where there are several, their tables are folded.
        provenance: for the foot of the page.
    """

    title: str
    headline: str
    protocol: str
    note: str
    measure: str
    cards: tuple[ExplainedCard, ...]
    provenance: Provenance


def render(page: ExplainPage) -> str:
    """The page as HTML; everything that comes from data or users is escaped."""
    return template("explain.html.j2").render(page=page)


def number(word: Word) -> str:
    """Doubt in percent, or what the score gains without the word."""
    if word.doubt is not None:
        return percent(word.doubt)
    return "" if word.gain is None else signed(word.gain)


def instead(word: Word) -> str:
    """What may stand in the place of a word, with probabilities."""
    return ", ".join(f"{one.text} {percent(one.chance)}" for one in word.corrections)


def percent(chance: float) -> str:
    """A probability; neither nought nor a hundred where it is not.

    >>> percent(0.004), percent(0.93), percent(0.999), percent(0.0)
    ('< 1 %', '93 %', '> 99 %', '0 %')
    """
    if 0 < chance < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < chance < 1 else f"{100 * chance:.0f} %"


def signed(gain: float) -> str:
    """A difference of scores with its sign.

    >>> signed(0.25), signed(-0.5), signed(-0.0001)
    ('+0.250', '−0.500', '0.000')
    """
    text = f"{abs(gain):.3f}"
    return text if not float(text) else f"{'+' if gain > 0 else '−'}{text}"


def depths(explanation: Explanation) -> list[float]:
    """How deep each word's colour is: its doubt, or its share of the greatest gain."""
    gains = [word.gain or 0.0 for word in explanation.words]
    most = max((gain for gain in gains if gain > 0), default=1.0)
    return [
        max(gain, 0.0) / most if word.doubt is None else word.doubt
        for word, gain in zip(explanation.words, gains, strict=True)
    ]


def _parts(explanation: Explanation, threshold: float) -> Iterator[Part]:
    at = 0
    for word, depth in zip(explanation.words, depths(explanation), strict=True):
        if word.start > at:
            yield Part(explanation.caption[at : word.start])
        marked = word.doubt is not None and word.doubt >= threshold
        yield Part(word.text, depth, number(word), marked)
        at = word.stop
    if rest := explanation.caption[at:]:
        yield Part(rest)
