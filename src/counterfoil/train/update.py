"""One optimiser step from a group of batches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from counterfoil import world
from counterfoil.records import Batch
from counterfoil.train.cached import cached_backward
from counterfoil.train.learner import B, Learner
from counterfoil.train.optimise import clipped
from counterfoil.train.plan import TrainPlan
from counterfoil.train.step import OWN, Step


@final
class Update(Generic[B]):
    """Moves the parameters once for each group of batches that it is given.

    Args:
        plan: how to train.
        step: the step, on the device it computes on.

    Attributes:
        optimiser: of the step's moving parameters.
        rate: the learning rate of the last step.
    """

    def __init__(self, plan: TrainPlan, step: Learner[B]) -> None:
        self.plan, self.step = plan, step
        self.optimiser = plan.optimiser.build(step)
        self._parameters = [p for p in step.parameters() if p.requires_grad]
        world.agree(step.state_dict().values())
        self._several = None if world.size() == 1 or plan.chunk else _parallel(step)
        self._judged = torch.zeros(())
        self.rate = 0.0

    def __call__(self, group: Sequence[B], factor: float, *, epoch: int = 0) -> dict[str, Tensor]:
        """One step; its mean losses and the norm of its gradient.

        Args:
            group: batches on the step's device, whose gradients are averaged.
            factor: multiplier of the learning rates.
            epoch: whole epochs made before.
        """
        self.plan.optimiser.wake(self.optimiser, epoch)
        self.optimiser.zero_grad()
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(group):
            losses = self._backward(batch, 1 / len(group), last=number == len(group) - 1)
            sums = {name: sums.get(name, 0) + loss for name, loss in losses.items()}
        means = {f"loss_{name}": total / len(group) for name, total in sums.items()}
        norm = clipped(self._parameters, self.plan.optimiser.clip)
        self.rate = self.plan.optimiser.set_rate(self.optimiser, factor)
        self.optimiser.step()
        world.agree(self.step.buffers())  # running statistics are each process's own
        self._judged = _objective(losses)
        total = torch.stack(list(means.values())).sum()
        return {"loss": total, **means, "grad_norm": norm}

    def judged(self) -> float:
        """Loss of the last batch, without the model's own losses."""
        return self._judged.item()

    def _backward(self, batch: B, share: float, *, last: bool) -> dict[str, Tensor]:
        if self.plan.chunk:
            assert isinstance(self.step, Step)
            assert isinstance(batch, Batch)
            losses = cached_backward(self.step, batch, self.plan.chunk, share=share)
            if last:
                world.mean_gradients(self._parameters)
            return losses
        with self._communication(wanted=last):
            losses = (self._several or self.step)(batch)
            torch.autograd.backward(torch.stack(list(losses.values())).sum() * share)
        return {name: loss.detach() for name, loss in losses.items()}

    def _communication(self, *, wanted: bool) -> AbstractContextManager[object]:
        if self._several is None or wanted:
            return nullcontext()
        return self._several.no_sync()


def _parallel(step: nn.Module) -> DistributedDataParallel:
    """The step on several processes; terms that begin later leave parameters unused till then."""
    warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
    return DistributedDataParallel(step, find_unused_parameters=True)


def _objective(losses: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([loss for n, loss in losses.items() if not n.startswith(OWN)]).sum()
