"""Which loss holds when."""

from __future__ import annotations

from typing import final

from torch import Tensor

from counterfoil.core.types import Scores
from counterfoil.losses.base import Loss, zero_loss


@final
class SwitchAfter(Loss):
    """One term for the first steps, another from then on.

    The warm-up of VSE-infinity (https://arxiv.org/abs/2011.04305): all negatives for
    an epoch, then the hardest, which by itself may collapse from a cold start.

    Args:
        first: holds while `Scores.step` is below `steps`.
        second: holds from step `steps` on.
        steps: how long the first one holds.

    Raises:
        ValueError: a negative number of steps, or terms that judge different grids.

    >>> import torch
    >>> from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal())
    >>> loss = Then(first=SumTriplet(), second=HardestTriplet(), steps=100)
    >>> [round(loss(Scores({"inference": grid}, step=n)).item(), 3) for n in (99, 100)]
    [0.9, 0.8]
    """

    def __init__(self, *, first: Loss, second: Loss, steps: int) -> None:
        super().__init__()
        if steps < 0:
            raise ValueError(f"{steps} steps of warm-up were given; use 0 or more")
        if first.needs_grid != second.needs_grid:
            raise ValueError(
                f"one term judges the grid {first.needs_grid!r} and the other "
                f"{second.needs_grid!r}; a curriculum has one grid"
            )
        self.first, self.second, self.steps = first, second, steps
        self.needs = first.needs | second.needs
        self.needs_guide = first.needs_guide or second.needs_guide
        self.needs_words = first.needs_words | second.needs_words
        self.needs_grid = first.needs_grid
        self.needs_guided = first.needs_guided | second.needs_guided
        self.needs_block = first.needs_block or second.needs_block

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        loss: Tensor = self.first(scores) if scores.step < self.steps else self.second(scores)
        return loss


@final
class StartAt(Loss):
    """A term that is silent at first.

    HREM (Fu et al., CVPR 2023) judges its enhanced embeddings only when the plain ones
    have been learnt for a while. Until then neither the term nor its grid costs anything.

    Args:
        term: what holds from step `steps` on.
        steps: how long nothing does.

    Raises:
        ValueError: a negative number of steps.

    >>> import torch
    >>> from counterfoil.losses.base import WeightedSum
    >>> from counterfoil.losses.triplet import HardestTripletLoss
    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal())
    >>> loss = Objective(terms={"late": (1.0, After(term=HardestTriplet(), steps=100))})
    >>> [round(loss(Scores({"inference": grid}, step=n))["late"].item(), 3) for n in (99, 100)]
    [0.0, 0.8]
    """

    def __init__(self, *, term: Loss, steps: int) -> None:
        super().__init__()
        if steps < 0:
            raise ValueError(f"{steps} steps of silence were given; use 0 or more")
        self.term, self.begins = term, max(steps, term.begins)
        self.needs, self.needs_guide = term.needs, term.needs_guide
        self.needs_words, self.needs_grid = term.needs_words, term.needs_grid
        self.needs_guided, self.needs_block = term.needs_guided, term.needs_block

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss; 0 before it begins, also where it is part of another term."""
        if scores.step < self.begins:
            return zero_loss(scores)
        loss: Tensor = self.term(scores)
        return loss


@final
class LinearRamp(Loss):
    """A term whose loss begins again at nothing and rises evenly, when a backbone is let go.

    The authors of VSE-infinity (https://arxiv.org/abs/2011.04305) train on raw images with the
    network frozen for an epoch, and multiply the loss by i / n at step i of the n steps of the
    next, in which everything is trained. As two trainings: one of an epoch with the network in
    `OptimizerConfig.freeze`, and one that starts from it with ``start=0`` here.

    Args:
        term: what is multiplied; before `start` it counts in full.
        steps: over how many it rises.
        start: the step at which it is nothing.

    Raises:
        ValueError: no steps, or a negative start.

    >>> import torch
    >>> from counterfoil.losses.triplet import HardestTripletLoss
    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal())
    >>> loss = Ramped(term=HardestTriplet(), steps=100, start=50)
    >>> [round(loss(Scores({"inference": grid}, step=n)).item(), 3) for n in (49, 50, 75, 200)]
    [0.8, 0.0, 0.2, 0.8]
    """

    def __init__(self, *, term: Loss, steps: int, start: int = 0) -> None:
        super().__init__()
        if steps < 1 or start < 0:
            raise ValueError(
                f"a loss that rises over {steps} steps from step {start} on was asked for; use 1 "
                "step or more, and a start of 0 or more"
            )
        self.term, self.steps, self.start = term, steps, start
        self.begins, self.needs, self.needs_guide = term.begins, term.needs, term.needs_guide
        self.needs_words, self.needs_grid = term.needs_words, term.needs_grid
        self.needs_guided, self.needs_block = term.needs_guided, term.needs_block

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        loss: Tensor = self.term(scores)
        done = scores.step - self.start
        return loss if not 0 <= done < self.steps else loss * (done / self.steps)
