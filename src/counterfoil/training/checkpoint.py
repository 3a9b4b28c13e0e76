"""Checkpoints of a training: seeds, random states, weights, optimiser and progress in one file.

``checkpoints/last.safetensors`` is replaced as a whole and names the file with the best weights,
``checkpoints/best-<step>.safetensors``, which is written before it and removed only after a better
one is named. A kill at any moment therefore leaves a pair that belongs together.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from counterfoil.core import distributed
from counterfoil.core.resumable import difference
from counterfoil.core.tensors import read_tensors, with_prefix, write_tensors


def derive_seed(seed: int, purpose: str, number: int) -> int:
    """Return a seed for one purpose at one step.

    Draws depend on the step alone, not on the draws before it, so a resumed run repeats them.
    """
    name = f"{seed}/{purpose}/{number}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:7], "big")


def seed_everything(seed: int) -> None:
    """Seed the global generators (dropout), differently on each process."""
    torch.manual_seed(derive_seed(seed, "process", distributed.rank()))
    random.seed(derive_seed(seed, "python", distributed.rank()))


def random_states() -> tuple[dict[str, Tensor], list[object]]:
    """Return the states of the global generators of all processes; every process calls this.

    PyTorch's by ``<rank>/cpu`` and ``<rank>/cuda``, and that of the module `random` by rank.
    """
    device = distributed.device()
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    tensors = {
        f"{rank}/{device_type}": generator_state
        for device_type, state in states.items()
        for rank, generator_state in enumerate(distributed.gather(state.to(device)).cpu())
    }
    return tensors, distributed.gather_objects(random.getstate())


def restore_random_states(tensors: Mapping[str, Tensor], python: Sequence[Any]) -> None:
    """Continue from the states of `random_states` on this process."""
    rank = distributed.rank()
    torch.set_rng_state(tensors[f"{rank}/cpu"])
    if distributed.device().type == "cuda" and f"{rank}/cuda" in tensors:
        torch.cuda.set_rng_state(tensors[f"{rank}/cuda"], distributed.device())
    version, state, gauss = python[rank]
    random.setstate((version, tuple(state), gauss))


def state_shapes(step: nn.Module) -> list[object]:
    """Names and shapes of what a training saves, for the digest of its checkpoints."""
    return [(name, list(value.shape)) for name, value in step.state_dict().items()]


@final
@dataclass(frozen=True, slots=True)
class BestEpoch:
    """The best epoch on dev: steps and epochs by then, the value it was chosen by, all figures."""

    step: int
    epoch: int
    value: float
    dev: Mapping[str, float]


@final
@dataclass(slots=True)
class TrainProgress:
    """Progress of a training; saved by field name in its checkpoint."""

    step: int = 0  # optimiser steps made; place in the sampler and schedule follow from it
    seconds: float = 0.0  # spent so far, over all sessions
    metrics: int = 0  # bytes of ``metrics.jsonl`` that belong to these steps
    best: BestEpoch | None = None  # so far
    highest: float | None = None  # dev figure so far, also of an epoch that is not kept
    first: int = 0  # epoch whose dev figure competed first: the first behind a warm-up of the loss
    rising: bool = False  # the last dev figure is that
    window: Mapping[str, float] = field(default_factory=dict)  # sums since the last metrics line
    windowed: int = 0  # steps in these sums
    since: int = -1  # first step at which the loss stayed at its value for equal scores, or -1
    warned: bool = False  # of a collapse
    lists: str = ""  # name of the re-mined lists that are drawn from; "" for the first lists
    counted: Mapping[str, int] = field(default_factory=dict)  # steps of figures not in all of them


@final
@dataclass(frozen=True, slots=True)
class TrainState:
    """The tensors that a training changes; `average` is empty where weights are not averaged."""

    step: nn.Module
    optimiser: torch.optim.Optimizer
    average: Mapping[str, Tensor] = field(default_factory=dict)


@final
class CheckpointFolder:
    """The checkpoints of one training; `run` is a digest of what its numbers depend on.

    `facts` are these by name, as plain JSON, to say what differs.
    """

    def __init__(self, folder: Path, run: str, facts: Mapping[str, Any] | None = None) -> None:
        self.folder, self.run = folder, run
        self.facts: dict[str, Any] = json.loads(json.dumps(facts or {}))

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.folder / "last.safetensors"

    def best(self, best: BestEpoch) -> Path:
        """The weights of the best epoch."""
        return self.folder / f"best-{best.step}.safetensors"

    def save(self, moving: TrainState, progress: TrainProgress) -> None:
        """Write the checkpoint; every process calls this, the first one writes."""
        generators, python = random_states()
        if distributed.rank() == 0:
            tensors = {f"step/{name}": t for name, t in moving.step.state_dict().items()}
            tensors |= {f"optimiser/{name}": t for name, t in _flatten_optimiser(moving).items()}
            tensors |= {f"average/{name}": t for name, t in moving.average.items()}
            tensors |= {f"random/{name}": t for name, t in generators.items()}
            about = {"run": self.run, "facts": self.facts, "processes": distributed.size()}
            progressed = {"progress": asdict(progress), "python": python}
            write_tensors(self.last, tensors, {**about, **progressed})
            self._remove_best_except(progress.best)
        distributed.barrier()

    def save_best(self, best: BestEpoch, weights: Mapping[str, Tensor]) -> None:
        """Write the weights of the best epoch so far; the next `save` names them."""
        if distributed.rank() == 0:
            about = {"run": self.run, "facts": self.facts, "best": asdict(best)}
            write_tensors(self.best(best), weights, about)
        distributed.barrier()

    def load_best(self, best: BestEpoch) -> dict[str, Tensor]:
        """Read the weights of the best epoch; an error if they are damaged or of another run."""
        tensors, about = read_tensors(self.best(best), "the best weights")
        self._check(self.best(best), about)
        return tensors

    def restore(self, moving: TrainState) -> TrainProgress | None:
        """Restore the last checkpoint, generators included; return None without one.

        Raises:
            ValueError: it is damaged, or of another version, training or number of processes.
        """
        self._remove_partial_files()
        if not self.last.exists():
            return None
        tensors, about = read_tensors(self.last, "a checkpoint")
        self._check(self.last, about)
        if about["processes"] != distributed.size():
            raise ValueError(
                f"{self.last} was written by {about['processes']} processes and there are "
                f"{distributed.size()} now; resume with {about['processes']}"
            )
        moving.step.load_state_dict(with_prefix(tensors, "step"))
        _load_optimiser(moving, with_prefix(tensors, "optimiser"))
        saved = with_prefix(tensors, "average")
        for name, tensor in moving.average.items():
            tensor.copy_(saved[name])
        restore_random_states(with_prefix(tensors, "random"), about["python"])
        progress = TrainProgress(**about["progress"])
        progress.best = about["progress"]["best"] and BestEpoch(**about["progress"]["best"])
        if (
            distributed.rank() == 0
        ):  # the process may have been killed before older checkpoints were removed
            self._remove_best_except(progress.best)
        return progress

    def clear(self) -> None:
        """Remove the checkpoints of a training that is to start again."""
        if distributed.rank() == 0:
            self.last.unlink(missing_ok=True)
            self._remove_best_except(None)
        self._remove_partial_files()

    def _check(self, path: Path, about: Mapping[str, Any]) -> None:
        if about.get("run") != self.run:
            found = difference(about.get("facts"), self.facts) or "its inputs have changed"
            raise ValueError(
                f"{path} belongs to another training: {found}; resume with what it was started "
                "with, or train in another folder"
            )

    def _remove_partial_files(self) -> None:
        """Remove half-written files after a kill."""
        if distributed.rank() == 0:
            for path in self.folder.glob(".*"):
                path.unlink()
        distributed.barrier()

    def _remove_best_except(self, best: BestEpoch | None) -> None:
        for path in self.folder.glob("best-*.safetensors"):
            if best is None or path != self.best(best):
                path.unlink()


def _parameter_names(moving: TrainState) -> dict[int, str]:
    """Parameter names by the optimiser's numbers, which change when parameter groups do."""
    names = {id(parameter): name for name, parameter in moving.step.named_parameters()}
    order = [p for group in moving.optimiser.param_groups for p in group["params"]]
    return {number: names[id(parameter)] for number, parameter in enumerate(order)}


def _flatten_optimiser(moving: TrainState) -> dict[str, Tensor]:
    """Return the optimiser's running means by parameter name."""
    names = _parameter_names(moving)
    return {
        f"{names[number]}/{key}": torch.as_tensor(value)
        for number, state in moving.optimiser.state_dict()["state"].items()
        for key, value in state.items()
    }


def _load_optimiser(moving: TrainState, flat: Mapping[str, Tensor]) -> None:
    names = _parameter_names(moving).items()
    state = {number: means for number, name in names if (means := with_prefix(flat, name))}
    groups = moving.optimiser.state_dict()["param_groups"]
    moving.optimiser.load_state_dict({"state": state, "param_groups": groups})
