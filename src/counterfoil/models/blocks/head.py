"""What is asked of the affinities of images and captions, one direction at a time.

Axes of a block: n captions of L words each, I images of R regions each: (n, L, I, R).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, final

from torch import Tensor

Direction = Literal["t2i", "i2t"]


@final
@dataclass(frozen=True, slots=True)
class Block:
    """Affinities of n captions of L words with I images of R regions.

    Attributes:
        affinity: (n, L, I, R) inner products; 0 at padding.
        gram: of the context vectors: (I, R, R) when words attend, (n, L, L) when regions do; None
            for a head that does not read it.
        words: (n, L, I, 1)-broadcastable bool, True where a word is real; None when all are.
        regions: (1, 1, I, R) bool, True where a region is real; None when all are.
    """

    affinity: Tensor
    gram: Tensor | None = None
    words: Tensor | None = None
    regions: Tensor | None = None


class Head(Protocol):
    """Queries of one modality and their context in the other.

    Attributes:
        results: how many tensors `attend` gives.
        learnt: how many of them, the first ones, have a gradient.
        grams: the Gram matrices of the context are read.
    """

    results: ClassVar[int]
    learnt: ClassVar[int]
    grams: ClassVar[bool]

    @property
    def direction(self) -> Direction:
        """Words ask regions ("t2i") or regions ask words ("i2t")."""

    @property
    def compiled(self) -> bool:
        """Let `torch.compile` fuse `attend` and `derivative` in the fused call."""

    def attend(self, block: Block) -> tuple[Tensor, ...]:
        """Of every query, in the block's shape without its context axis; differentiable."""

    def derivative(self, block: Block, *pulls: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of the affinity and of the Gram matrix from those of what is learnt."""
