"""What a proposer adds to a batch that has been encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

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
        pairs: pairs to score, by role; places may point at new items, and a pair with the place -1
            is none, which scores -inf; each (B, N).
        words: word tasks that were solved on the way.
        images: new images; their places follow those of the batch's image pool.
        scores: (B, N) scores by role, of pairs that were scored on the way; such a role is not
            among `pairs`, and -inf is no pair.
    """

    texts: Items | None = None
    pairs: Mapping[Role, Pairs] = field(default_factory=dict)
    words: Mapping[str, WordTask] = field(default_factory=dict)
    images: Items | None = None
    scores: Mapping[Role, Tensor] = field(default_factory=dict)


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
            grid: (I, T) scores of the anchor block; NaN but for the anchor pairs where nobody looks
                at others, see `Sparing`.
            rng: in the same state on every process.
        """
        ...


@runtime_checkable
class Choosy(Proposer, Protocol):
    """Does not go with every model."""

    def check(self, matcher: Matcher) -> None:
        """Whether it goes with this one, before training begins.

        Raises:
            ValueError: it does not.
        """
        ...


@runtime_checkable
class Screens(Proposer, Protocol):
    """Chooses among candidates that are drawn for it."""

    @property
    def screens(self) -> frozenset[Role]:
        """Roles of the candidates that it chooses among."""
        ...


@runtime_checkable
class Sparing(Proposer, Protocol):
    """May leave the wrong pairs of the anchor block alone."""

    @property
    def anchors_only(self) -> bool:
        """Whether it looks at no more of the block than at the scores of the anchor pairs."""
        ...


def reads_block(proposer: Proposer | None) -> bool:
    """Whether a proposer looks at wrong pairs of the anchor block."""
    return proposer is not None and not (isinstance(proposer, Sparing) and proposer.anchors_only)


def screened(proposer: Proposer | None) -> frozenset[Role]:
    """Roles that a proposer provides only where candidates are drawn for it."""
    return proposer.screens if isinstance(proposer, Screens) else frozenset()


def existing(pairs: Pairs, score: Callable[[Pairs], Tensor]) -> Tensor:
    """(P,) scores of listed pairs; -inf, and not asked for, where a place is -1."""
    there = ((pairs.image >= 0) & (pairs.text >= 0)).nonzero().squeeze(1)
    if len(there) == len(pairs.image):
        return score(pairs)
    none = torch.full(pairs.shape, -torch.inf, device=pairs.image.device)
    if not len(there):
        return none
    found = score(Pairs(pairs.image[there], pairs.text[there]))
    return none.to(found.dtype).index_put((there,), found)
