"""What a proposer adds to a batch that has been encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, final

import torch
from torch import Tensor

from counterfoil.matcher import Matcher
from counterfoil.records import Batch, Items, Pairs, Role, Views, WordTask


@final
@dataclass(frozen=True, slots=True)
class Proposal:
    """Candidates that depend on the model as it is now.

    Attributes:
        texts: new texts; their places follow those of the batch's text pool.
        pairs: pairs to score, by role; text places may point at the new texts; each (B, N).
        words: word tasks that were solved on the way.
    """

    texts: Items | None = None
    pairs: Mapping[Role, Pairs] = field(default_factory=dict)
    words: Mapping[str, WordTask] = field(default_factory=dict)


class Proposer(Protocol):
    """Picks or writes candidates that depend on the model as it is now."""

    @property
    def provides(self) -> frozenset[Role]:
        """Roles it proposes pairs for."""
        ...

    @property
    def provides_words(self) -> frozenset[str]:
        """Word tasks it solves on the way."""
        ...

    def propose(
        self, matcher: Matcher, batch: Batch, views: Views, grid: Tensor, rng: torch.Generator
    ) -> Proposal:
        """Candidates for a batch, the same on every process.

        Args:
            matcher: the model in training.
            batch: `batch.images` and `batch.texts` hold this process's share only.
            views: the whole pools, encoded.
            grid: (I, T) scores of the anchor block.
            rng: in the same state on every process.
        """
        ...
