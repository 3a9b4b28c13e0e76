"""What is said of a caption and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class Correction:
    """What may stand in the place of a word.

    Attributes:
        text: as it would be written there.
        chance: probability, in 0..1.
    """

    text: str
    chance: float


@final
@dataclass(frozen=True, slots=True)
class Word:
    """A word of a caption.

    Attributes:
        text: as it was written.
        start: its first character in the caption.
        stop: the one after its last.
        doubt: probability that it is wrong, in 0..1; None where the model has no head for it.
        gain: what the score gains when the word is left out; None where that was not asked.
        kept: probability that the word itself ought to stand there, by the head that corrects;
            None where the word is not doubted.
        corrections: what else may stand there, the likeliest first.
    """

    text: str
    start: int
    stop: int
    doubt: float | None = None
    gain: float | None = None
    kept: float | None = None
    corrections: tuple[Correction, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Corrected:
    """A caption whose doubted words were exchanged.

    Attributes:
        text: the new caption.
        score: how well it fits the image.
        changes: first character of each new word and the one after its last.
    """

    text: str
    score: float
    changes: tuple[tuple[int, int], ...]


@final
@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a caption fits an image, or does not.

    Attributes:
        caption: as it was written.
        score: how well it fits.
        words: from left to right.
        corrected: the caption corrected; None where no word was exchanged.
        unread: from which character on the caption is too long for the model; None where it read
            all of it.
    """

    caption: str
    score: float
    words: tuple[Word, ...]
    corrected: Corrected | None = None
    unread: int | None = None

    @property
    def doubts(self) -> bool:
        """Whether the model says how likely each word is wrong."""
        return any(word.doubt is not None for word in self.words)

    @property
    def doubt(self) -> float | None:
        """The greatest doubt of all words; None where there is none."""
        return max((word.doubt for word in self.words if word.doubt is not None), default=None)

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Explanation:
        """From its JSON-ready form.

        Raises:
            KeyError: something is missing.
            TypeError: something is of another kind.
        """
        words = tuple(
            Word(**{**word, "corrections": tuple(Correction(**one) for one in word["corrections"])})
            for word in plain["words"]
        )
        corrected = None
        if (new := plain["corrected"]) is not None:
            changes = tuple((start, stop) for start, stop in new["changes"])
            corrected = Corrected(new["text"], new["score"], changes)
        return cls(plain["caption"], plain["score"], words, corrected, plain["unread"])
