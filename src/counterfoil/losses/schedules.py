"""Schedules of losses: a switch, a start, or a linear ramp at a step."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import final

from torch import Tensor

from counterfoil.core.types import Scores
from counterfoil.losses.base import Loss, as_loss, zero_loss

__all__ = ["LinearRamp", "StartAt", "SwitchAfter"]


class LossSchedule(Loss):
    """Base of losses made of other losses: it needs all that they need.

    Attributes:
        settled: step from which on the schedule no longer changes; before it no epoch is selected.
    """

    settled: int = 0

    def __init__(self, *losses: Loss) -> None:
        super().__init__()
        self.needs, self.view = reduce(or_, (loss.needs for loss in losses)), losses[0].view

    def _check(self, scores: Scores) -> None:
        """Check nothing: the parts check for themselves, once they count."""


@final
class SwitchAfter(LossSchedule):
    """One loss for the first steps, another from then on.

    The warm-up of VSE-infinity (https://arxiv.org/abs/2011.04305): all negatives for an epoch, then
    the hardest, which by itself may collapse from a cold start.

    Args:
        first: counts while `Scores.step` is below `steps`.
        second: counts from step `steps` on.
        steps: length of the warm-up.

    Raises:
        ValueError: a negative number of steps, or losses that read different score matrices.

    >>> import torch
    >>> from counterfoil.losses import HardestTripletLoss, SumTripletLoss
    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> loss = SwitchAfter(first=SumTripletLoss(), second=HardestTripletLoss(), steps=100)
    >>> [round(loss(scores, step=n).item(), 3) for n in (99, 100)]
    [0.9, 0.8]
    """

    def __init__(self, *, first: Loss, second: Loss, steps: int) -> None:
        if steps < 0:
            raise ValueError(f"{steps} steps of warm-up were given; use 0 or more")
        first, second = as_loss(first), as_loss(second)
        if first.view != second.view:
            raise ValueError(
                f"one loss reads the score matrix {first.view!r} and the other "
                f"{second.view!r}; a schedule needs one for both"
            )
        super().__init__(first, second)
        self.first, self.second, self.steps = first, second, steps
        self.settled = steps

    def forward(self, scores: Scores) -> Tensor:
        return self.first(scores) if scores.step < self.steps else self.second(scores)


@final
class StartAt(LossSchedule):
    """A loss that counts from a step on, and is 0 before.

    HREM (Fu et al., CVPR 2023) adds the loss of its enhanced embeddings after the plain ones have
    been trained for a while. Until then neither the loss nor its score matrix is computed.

    Args:
        term: the loss that counts from step `steps` on.
        steps: steps without it.

    Raises:
        ValueError: a negative number of steps.

    >>> import torch
    >>> from counterfoil.losses import HardestTripletLoss
    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> loss = StartAt(term=HardestTripletLoss(), steps=100)
    >>> [round(loss(scores, step=n).item(), 3) for n in (99, 100)]
    [0.0, 0.8]
    """

    def __init__(self, *, term: Loss, steps: int) -> None:
        if steps < 0:
            raise ValueError(f"a start at step {steps} was given; use 0 or more")
        term = as_loss(term)
        super().__init__(term)
        self.term, self.begins = term, max(steps, term.begins)
        self.settled = self.begins

    def forward(self, scores: Scores) -> Tensor:
        # checked here too, for a schedule that is part of another loss
        return zero_loss(scores) if scores.step < self.begins else self.term(scores)


@final
class LinearRamp(LossSchedule):
    """A loss with a linear warm-up from 0 at a given step, as when a backbone is unfrozen.

    The authors of VSE-infinity (https://arxiv.org/abs/2011.04305) train on raw images with the
    network frozen for an epoch, and multiply the loss by i / n at step i of the n steps of the
    next, in which everything is trained. As two trainings: one of an epoch with the network in
    `OptimizerConfig.freeze`, and one that starts from it with ``start=0`` here.

    Args:
        term: the loss that is multiplied; before `start` it counts in full.
        steps: length of the rise.
        start: the step at which the loss is 0.

    Raises:
        ValueError: no steps, or a negative start.

    >>> import torch
    >>> from counterfoil.losses import HardestTripletLoss
    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> loss = LinearRamp(term=HardestTripletLoss(), steps=100, start=50)
    >>> [round(loss(scores, step=n).item(), 3) for n in (49, 50, 75, 200)]
    [0.8, 0.0, 0.2, 0.8]
    """

    def __init__(self, *, term: Loss, steps: int, start: int = 0) -> None:
        if steps < 1 or start < 0:
            raise ValueError(
                f"a ramp of {steps} steps from step {start} was given; use 1 "
                "step or more, and a start of 0 or more"
            )
        term = as_loss(term)
        super().__init__(term)
        self.begins = term.begins
        self.term, self.steps, self.start = term, steps, start
        self.settled = start + steps

    def forward(self, scores: Scores) -> Tensor:
        loss, done = self.term(scores), scores.step - self.start
        return loss if not 0 <= done < self.steps else loss * (done / self.steps)
