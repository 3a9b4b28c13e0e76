"""Where soft targets come from."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from counterfoil.records import Batch, Pairs


class Guide(Protocol):
    """Says how similar each anchor image and anchor text ought to be."""

    def __call__(self, batch: Batch) -> Tensor:
        """(I, T) targets on the scale of the inference grid, the same on every process."""
        ...


@runtime_checkable
class PairGuide(Guide, Protocol):
    """Knows single pairs too, such as those drawn from lists."""

    def pairs(self, batch: Batch, pairs: Pairs) -> Tensor:
        """(B, N) targets of pairs of places in the pools, on the scale of the inference grid."""
        ...
