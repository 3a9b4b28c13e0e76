"""Hard assignment: a query is coded by the most similar vector of its context, and by no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from counterfoil.models.blocks.head import Block, Direction


@final
@dataclass(frozen=True, slots=True)
class Assignment:
    """Each query's highest affinity (CHAN, CVPR 2023, eq. 6 and 7); of equal ones the first learns.

    Attributes:
        direction: "t2i": words take a region; "i2t": regions take a word.
    """

    results: ClassVar[int] = 1
    learnt: ClassVar[int] = 1
    grams: ClassVar[bool] = False

    direction: Direction
    compiled: bool = False

    def attend(self, block: Block) -> tuple[Tensor, ...]:
        """The highest affinities: (n, L, I) of words or (n, I, R) of regions; differentiable."""
        axis, affinity = self._axis, self._real(block)
        if affinity.requires_grad:
            return (affinity.max(axis).values,)
        return (affinity.amax(axis),)

    def derivative(self, block: Block, *pulls: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradient of the affinity, all of it at the assigned vectors."""
        (pull,) = pulls
        first = self._real(block).argmax(self._axis, keepdim=True)
        moved = torch.zeros_like(block.affinity, memory_format=torch.contiguous_format)
        return moved.scatter_(self._axis, first, pull.unsqueeze(self._axis)), None

    @property
    def _axis(self) -> int:
        """Of the context in a block."""
        return 3 if self.direction == "t2i" else 1

    def _real(self, block: Block) -> Tensor:
        mask = block.regions if self.direction == "t2i" else block.words
        return block.affinity if mask is None else block.affinity.masked_fill(~mask, -torch.inf)
