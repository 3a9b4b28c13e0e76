"""Where soft targets for the anchor block come from."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from counterfoil.records import Batch


class Guide(Protocol):
    """Says how similar each anchor image and anchor text ought to be."""

    def __call__(self, batch: Batch) -> Tensor:
        """(I, T) targets on the scale of the inference grid, the same on every process."""
        ...
