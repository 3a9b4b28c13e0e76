"""Seeds for each use at each step, and the state of everything that is random."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil import world


def seed_of(seed: int, what: str, number: int) -> int:
    """A seed for one use at one step, so that a resumed run draws what it would have drawn."""
    name = f"{seed}/{what}/{number}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:7], "big")


def seed_everything(seed: int) -> None:
    """Seed dropout and what else draws from the global generators, differently on each process."""
    torch.manual_seed(seed_of(seed, "process", world.rank()))
    random.seed(seed_of(seed, "python", world.rank()))


@final
@dataclass(frozen=True, slots=True)
class Randomness:
    """State of the global generators of all processes.

    Attributes:
        tensors: PyTorch's, by ``<rank>/cpu`` and ``<rank>/cuda``.
        python: that of the module `random`, by rank.
    """

    tensors: Mapping[str, Tensor]
    python: tuple[Any, ...]

    @staticmethod
    def now() -> Randomness:
        """The state of this moment; every process calls this."""
        device = world.device()
        states = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(device)
        gathered = {what: world.gather(state.to(device)).cpu() for what, state in states.items()}
        tensors = {
            f"{rank}/{what}": state
            for what, stacked in gathered.items()
            for rank, state in enumerate(stacked)
        }
        return Randomness(tensors, tuple(world.gather_objects(random.getstate())))

    def restore(self) -> None:
        """Continue from this state on this process."""
        rank = world.rank()
        torch.set_rng_state(self.tensors[f"{rank}/cpu"])
        if world.device().type == "cuda" and f"{rank}/cuda" in self.tensors:
            torch.cuda.set_rng_state(self.tensors[f"{rank}/cuda"], world.device())
        version, state, gauss = self.python[rank]
        random.setstate((version, tuple(state), gauss))
