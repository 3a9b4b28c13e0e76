"""HTML page of explained captions: words coloured by doubt, beside the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from counterfoil.data.phrases import tag_words
from counterfoil.evaluation.explain import ExplainedWord, Explanation
from counterfoil.evaluation.similarity_maps import WordMap
from counterfoil.report.page import (
    PageItem,
    Provenance,
    TextPart,
    WordLevels,
    template,
    thumbnail,
)

if TYPE_CHECKING:
    from PIL import Image


DOUBT_NOTE = (
    "The deeper the colour of a word, the likelier it is wrong according to the model. Words that "
    "count as wrong show the probability. Replacements are for each word alone, all other words "
    "unchanged; in the corrected caption, new words are underlined."
)
GAIN_NOTE = (
    "The page shows what the score gains when a word is left out. The content word that gains most "
    "has the deepest colour; function words have none. That explains the score; it is no "
    "probability that a word is wrong."
)
EXCHANGE_NOTE = (
    "A word is doubted where another one in its place scores better by more than in 95 % of the "
    "words of true captions. Words that count as wrong show how sure that is, and better words. "
    "Function words, and words that captions rarely use, are not exchanged."
)
PICTURE_SIDE = 448  # pixels; displayed at half that


@final
@dataclass(frozen=True, slots=True)
class ExplainedCard:
    """An explained caption with its image."""

    image: PageItem  # id, and the picture where there is one
    explanation: Explanation  # of the caption
    threshold: float  # doubt from which a word counts as wrong
    place: int = 0  # in a ranking, from 1; 0 outside one

    @property
    def parts(self) -> tuple[TextPart, ...]:
        """The caption in words and the stretches between them."""
        caption, parts, end = self.explanation.caption, list[TextPart](), 0
        for word, tint in zip(shown_words(self.explanation), tints(self.explanation), strict=True):
            if word.start > end:
                parts.append(TextPart(caption[end : word.start]))
            marked = word.doubt is not None and word.doubt >= self.threshold
            own = self._map(word)
            drawn = None if own is None else self._levels(own)
            parts.append(TextPart(word.text, tint, number(word), marked, map=drawn))
            end = word.stop
        if rest := caption[end:]:
            parts.append(TextPart(rest))
        return tuple(parts)

    @property
    def new(self) -> tuple[tuple[str, bool], ...]:
        """The corrected caption in stretches, and whether each is new."""
        corrected = self.explanation.corrected
        if corrected is None:
            return ()
        parts, end = list[tuple[str, bool]](), 0
        for start, stop in corrected.changes:
            parts += [(corrected.text[end:start], False), (corrected.text[start:stop], True)]
            end = stop
        return tuple(part for part in (*parts, (corrected.text[end:], False)) if part[0])

    @property
    def rows(self) -> tuple[tuple[str, str, str, str], ...]:
        """Per word: text, number, corrections with probabilities, best place in the picture."""
        return tuple(
            (
                word.text,
                number(word),
                ", ".join(f"{new.text} {percent(new.chance)}" for new in word.corrections),
                self._where(self._map(word)),
            )
            for word in shown_words(self.explanation)
        )

    @property
    def places(self) -> tuple[tuple[int, int, int, int], ...]:
        """Left, top, width and height of each region in thousandths of the picture; () if unknown.

        Also () without a picture to draw them on.
        """
        maps = self.explanation.maps
        if maps is None or maps.boxes is None or self.image.picture is None:
            return ()
        corners = [tuple(round(1000 * side) for side in box) for box in maps.boxes]
        return tuple((x1, y1, x2 - x1, y2 - y1) for x1, y1, x2, y2 in corners)

    def _map(self, word: ExplainedWord) -> WordMap | None:
        """The map of a word; None where it has none, or there is no region."""
        maps = self.explanation.maps
        return next(
            (
                own
                for own in (() if maps is None else maps.words)
                if own.start < word.stop and word.start < own.stop and own.values
            ),
            None,
        )

    def _where(self, own: WordMap | None) -> str:
        maps = self.explanation.maps
        if own is None or maps is None:
            return ""
        best = own.values[own.best]
        value = percent(best) if maps.shows == "attention" else f"{best:.3f}"
        return f"{maps.place(own)} ({value})"

    def _levels(self, own: WordMap) -> WordLevels:
        """A map as it is drawn: from the least to the most of the word, attention from 0."""
        maps = self.explanation.maps
        assert maps is not None
        low = 0.0 if maps.shows == "attention" else min(own.values)
        reach = max(own.values) - low
        levels = (round(99 * (value - low) / reach) if reach else 0 for value in own.values)
        told = f"“{own.text}”: most {maps.shows} {self._where(own)}"
        if maps.shows == "similarity":
            told += f", least {low:.3f}"
        return WordLevels(tuple(levels), told)


def render_explanations(
    cards: Sequence[ExplainedCard],
    *,
    title: str,
    headline: str,
    protocol: str,
    provenance: Provenance,
    no_maps: str = "",
) -> str:
    """The page as HTML; everything from data or users is escaped.

    Args:
        cards: in order; the tables of several are folded.
        title: of the page.
        headline: result in a sentence.
        protocol: model, data, and what verdicts rest on.
        provenance: for the foot of the page.
        no_maps: why there are no maps, if there are none.
    """
    mapped = next((card.explanation.maps for card in cards if card.explanation.maps), None)
    page = {
        "title": title,
        "headline": headline,
        "protocol": protocol,
        "note": note(cards[0].explanation) if cards else DOUBT_NOTE,
        "measure": measure(cards[0].explanation) if cards else "",
        "cards": cards,
        "mapped": mapped is not None,
        "maps": no_maps if mapped is None else mapped.note,
        "provenance": provenance,
    }
    return template("explain.html.j2").render(page=page)


def shown_words(explanation: Explanation) -> Sequence[ExplainedWord]:
    """The words of a caption; those of its maps where it has but one, which is never left out."""
    if explanation.words or explanation.maps is None:
        return explanation.words
    return [ExplainedWord(own.text, own.start, own.stop) for own in explanation.maps.words]


def picture_of(name: str, picture: Image.Image | None) -> PageItem:
    """An image by its name, with a thumbnail where there is a picture."""
    return PageItem(name, None if picture is None else thumbnail(picture, PICTURE_SIDE))


def note(explanation: Explanation) -> str:
    """Explanation of the words' numbers, for the page."""
    if not explanation.doubts:
        return GAIN_NOTE
    exchanged = any(word.gain is not None for word in explanation.words)
    return EXCHANGE_NOTE if exchanged else DOUBT_NOTE


def measure(explanation: Explanation) -> str:
    """Name of the words' number."""
    return "doubt" if explanation.doubts else "gain without it"


def headline(explanation: Explanation, threshold: float) -> str:
    """The result for one caption in a few sentences, its verdict first."""
    told = explanation.told
    score = f"Score {explanation.score:.3f}"
    wrong = [f"“{word.text}”" for word in explanation.words if (word.doubt or 0.0) >= threshold]
    if not wrong:
        return f"{told} {score}."
    corrected = explanation.corrected
    correction = f", with “{corrected.text}” {corrected.score:.3f}" if corrected else ""
    return f"{told} Doubted: {', '.join(wrong)}. {score}{correction}."


def content_words(explanation: Explanation) -> list[ExplainedWord]:
    """Words that name an object, an attribute or an action, by the rule parser.

    Without an article or "is" a sentence becomes another kind of sentence, and the score changes
    for that reason: it says nothing of the image.
    """
    spans = [
        (word.start, word.stop)
        for word in tag_words(explanation.caption)
        if word.part in ("noun", "attribute", "verb")
    ]
    return [
        word
        for word in explanation.words
        if any(word.start < stop and start < word.stop for start, stop in spans)
    ]


def number(word: ExplainedWord) -> str:
    """Doubt in percent, or the gain in score without the word."""
    if word.doubt is not None:
        return percent(word.doubt)
    return "" if word.gain is None else signed(word.gain)


def percent(chance: float) -> str:
    """A probability in percent; never rounded to 0 or 100.

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


def tints(explanation: Explanation) -> list[float]:
    """Depth of each word's colour: its doubt, or a content word's share of the greatest gain."""
    content, words = {word.start for word in content_words(explanation)}, shown_words(explanation)
    gains = [word.gain or 0.0 if word.start in content else 0.0 for word in words]
    greatest = max((gain for gain in gains if gain > 0), default=1.0)
    return [
        max(gain, 0.0) / greatest if word.doubt is None else word.doubt
        for word, gain in zip(words, gains, strict=True)
    ]
