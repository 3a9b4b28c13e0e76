"""Says in words when a training has collapsed: all scores are equal and the loss cannot fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(slots=True, kw_only=True)
class Collapse:
    """Watches for a loss that stays where it is when all scores are equal.

    A hinge on the hardest negative then stays at 2·B·margin, and its gradient keeps it there.

    Attributes:
        steps: for how many steps it must stay.
        tolerance: how near, as a share of that loss.
        since: the step it has stayed since, or -1.
        told: whether it has been said.
    """

    steps: int = 200
    tolerance: float = 0.005
    since: int = -1
    told: bool = False

    def warning(self, step: int, loss: float, level: float) -> str | None:
        """One warning in a training's life, or None.

        Args:
            step: optimiser steps made before.
            loss: what it is now.
            level: what it is when all scores are equal.
        """
        if not abs(loss - level) <= self.tolerance * abs(level):  # nor where either is NaN
            self.since = -1
            return None
        if self.since < 0:
            self.since = step
        if self.told or step - self.since < self.steps:
            return None
        self.told = True
        return (
            f"the loss has stayed at {loss:.4g} since step {self.since}, which is what it is when "
            f"all scores are equal ({level:.4g}; 2 x batch x margin for a hinge on the hardest "
            "negative): the model has stopped telling images and texts apart. Start again with a "
            "lower learning rate or a warm-up of it, or with all negatives before the hardest one "
            "(Then(first=SumTriplet(), second=HardestTriplet(), steps=...))"
        )
