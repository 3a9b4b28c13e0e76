"""Random choices that are the same on every platform and in every version of Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar, final

T = TypeVar("T")


@final
class Dice:
    """Choices named by a string.

    Only `random.Random.random` is used, the one generator whose sequence Python promises to keep.
    """

    def __init__(self, name: str) -> None:
        self._random = random.Random(name).random

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count - 1``."""
        return int(self._random() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        """One of these."""
        return choices[self.below(len(choices))]

    def usual(self, choices: Sequence[T]) -> T:
        """The first of these in two cases of three, else any."""
        return choices[0] if self.chance(0.66) else self.pick(choices)

    def shuffled(self, choices: Sequence[T]) -> list[T]:
        """All of these in random order."""
        rest = list(choices)
        return [rest.pop(self.below(len(rest))) for _ in range(len(rest))]
