"""Phrases of captions: things, what is said of them, and how they stand to each other.

Where they come from is behind one protocol: rules that need nothing else (`corpus.phrase_rules`),
spaCy (`corpus.phrase_spacy`), or a file that another parser wrote (`corpus.phrase_file`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, final

Kind = Literal["object", "attribute", "relation"]
KINDS: tuple[Kind, ...] = ("object", "attribute", "relation")
Span = tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class Phrase:
    """Some words of a caption that say one thing.

    Attributes:
        kind: what they say: a thing, something of a thing, or how two things stand.
        spans: first character of each run of words and the one after its last.
    """

    kind: Kind
    spans: tuple[Span, ...]

    def text(self, caption: str) -> str:
        """The words.

        >>> Phrase("relation", ((2, 7), (11, 13))).text("A looks it at")
        'looks at'
        """
        return " ".join(caption[start:stop] for start, stop in self.spans)


class Parser(Protocol):
    """Finds the phrases of captions."""

    def phrases(self, texts: Sequence[str], ids: Sequence[str]) -> list[tuple[Phrase, ...]]:
        """The phrases of each caption; a phrase may stand twice.

        Args:
            texts: captions.
            ids: their names in the data set.
        """
        ...


def places(phrase: Phrase, tokens: Sequence[Span]) -> list[int]:
    """Tokens of a caption that a phrase touches.

    Args:
        phrase: the phrase.
        tokens: first character of each token and the one after its last; an empty one is special.

    >>> places(Phrase("object", ((2, 9),)), [(0, 0), (0, 1), (2, 5), (5, 9), (10, 14)])
    [2, 3]
    """
    return [
        place
        for place, (start, stop) in enumerate(tokens)
        if start < stop and any(start < end and begin < stop for begin, end in phrase.spans)
    ]


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """How well found phrases agree with true ones; counts of phrases.

    Attributes:
        both: found and true, of the same kind and with the same words.
        found: all that were found.
        true: all that there are.
    """

    both: int
    found: int
    true: int

    @property
    def precision(self) -> float:
        """Percent of the found that are true."""
        return 100 * self.both / max(self.found, 1)

    @property
    def recall(self) -> float:
        """Percent of the true that were found."""
        return 100 * self.both / max(self.true, 1)


def agreement(
    found: Sequence[Sequence[Phrase]], true: Sequence[Sequence[Phrase]], kind: Kind | None = None
) -> Agreement:
    """Compare phrases of the same captions.

    Args:
        found: of a parser.
        true: as they ought to be.
        kind: compare those of this kind; None for all.
    """
    both = left = right = 0
    for some, wanted in zip(found, true, strict=True):
        one, other = (
            {phrase for phrase in phrases if kind in (None, phrase.kind)}
            for phrases in (some, wanted)
        )
        both, left, right = both + len(one & other), left + len(one), right + len(other)
    return Agreement(both, left, right)
