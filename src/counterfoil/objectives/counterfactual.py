"""Hinges of anchors against what was edited for them (CFM)."""

from __future__ import annotations

from typing import final

from torch import Tensor

from counterfoil.objectives.block import hinge
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Role, Scores


@final
class SelfAdjusted(Term):
    """Hinge of every edited counterpart against its anchor pair: sum over both directions.

    CFM (Wei et al., MM 2022), self-adjustment: the positive with its most important regions or
    words overwritten by those of the hardest negative. An anchor for which nothing was edited,
    with a score of -inf, costs nothing.

    Args:
        margin: in units of a score.
        reduction: see `Term`.

    >>> import torch
    >>> from counterfoil.records import Grid
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> pairs = {Role.EDITED: torch.tensor([[0.9, 0.85], [-torch.inf, 0.3]])}
    >>> round(SelfAdjusted(margin=0.1)(Scores({"inference": grid}, pairs)).item(), 3)
    0.15
    """

    needs = frozenset({Role.EDITED})
    needs_block = False

    def __init__(self, *, margin: float = 0.1, reduction: Reduction = "sum") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        edited = scores.pairs[Role.EDITED]
        return self.reduced(hinge(edited, grid.anchor.unsqueeze(1), self.margin).sum(), grid)


@final
class SelfExplored(Term):
    """Hinge of the masked negative against the masked positive: sum over both directions.

    CFM (Wei et al., MM 2022), self-exploration: both have lost their most important regions or
    words, so others have to tell them apart. An anchor for which nothing was masked, with scores of
    -inf, costs nothing.

    Args:
        margin: in units of a score.
        reduction: see `Term`.

    >>> import torch
    >>> from counterfoil.records import Grid
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> pairs = {
    ...     Role.MASKED_POSITIVE: torch.tensor([[0.5, 0.6], [-torch.inf, 0.3]]),
    ...     Role.MASKED_NEGATIVE: torch.tensor([[0.5, 0.4], [-torch.inf, 0.4]]),
    ... }
    >>> round(SelfExplored(margin=0.1)(Scores({"inference": grid}, pairs)).item(), 3)
    0.3
    """

    needs = frozenset({Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE})
    needs_block = False

    def __init__(self, *, margin: float = 0.1, reduction: Reduction = "sum") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        positive, negative = (
            scores.pairs[role] for role in (Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE)
        )
        none = negative.isneginf()
        cost = hinge(negative, positive.masked_fill(none, 0), self.margin)
        return self.reduced(cost.sum(), self.grid(scores))
