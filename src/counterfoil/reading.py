"""What a model that reads image and text together can say of single words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, final, runtime_checkable

from torch import Tensor

from counterfoil.records import Encoded


@final
class Want(Enum):
    """What is asked of one pass over the pairs; what is not asked costs nothing."""

    SCORE = "score"
    FILL = "fill"
    DOUBT = "doubt"
    CORRECT = "correct"


@final
@dataclass(frozen=True, slots=True)
class Slots:
    """Words of P pairs that are asked for; both (M,) long.

    Attributes:
        pair: which pair.
        place: which token of its text.
    """

    pair: Tensor
    place: Tensor


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """The answers; None where they were not asked for.

    Attributes:
        score: (P,) how well text and image go together, as `Matcher.pairs`.
        fill: (M, V) logits of the word at each slot, as a language model that sees the image.
        doubt: (P, L, 2) logits that each token is wrong (0) or right (1).
        correct: (M, V) logits of the word that ought to be at each slot; a head of its own.
    """

    score: Tensor | None = None
    fill: Tensor | None = None
    doubt: Tensor | None = None
    correct: Tensor | None = None


@runtime_checkable
class ReadsWords(Protocol):
    """A matcher for which one pass over aligned pairs answers everything that is wanted."""

    @property
    def wants(self) -> frozenset[Want]:
        """What it has heads for."""
        ...

    def read(
        self,
        images: Encoded,
        texts: Encoded,
        want: frozenset[Want],
        slots: Slots | None = None,
    ) -> Reading:
        """Answers for P encoded images with P encoded texts.

        Vocabulary logits are worked out at the slots alone.

        Args:
            images: P of them.
            texts: P of them.
            want: what is asked.
            slots: where words are asked for; needed for `fill` and `correct`.
        """
        ...
