"""Metrics as lines of JSON, and in TensorBoard or Weights & Biases where asked."""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.train.plan import Tracker

Line = Mapping[str, float | int | str]


class Sink(ABC):
    """Somewhere else that metrics go."""

    @abstractmethod
    def write(self, step: int, line: Line) -> None:
        """One line of metrics."""

    @abstractmethod
    def close(self) -> None:
        """No more lines will come."""


@final
class Metrics:
    """Appends lines to ``metrics.jsonl``, on the first process only.

    Args:
        path: the file.
        keep: how many bytes of an earlier file stand; the rest came after the checkpoint that is
            being resumed and will be written again.
        track: where lines go beside the file.
        step: the step that is being resumed.
    """

    def __init__(
        self, path: Path, *, keep: int = 0, track: Sequence[Tracker] = (), step: int = 0
    ) -> None:
        self.path, self.bytes = path, keep
        self._sinks: list[Sink] = []
        self._file = None
        if world.rank():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sinks = [_SINKS[name](path.parent, step) for name in track]
        self._file = path.open("ab")
        self.bytes = min(keep, self._file.tell())
        self._file.truncate(self.bytes)

    def write(self, step: int, line: Line) -> None:
        """Append one line, in one write, so that a kill leaves whole lines or a cut last one."""
        if self._file is None:
            return
        text = json.dumps({"step": step, **line}, ensure_ascii=False).encode() + b"\n"
        self._file.write(text)
        self._file.flush()
        self.bytes += len(text)
        for sink in self._sinks:
            sink.write(step, line)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        for sink in self._sinks:
            sink.close()


@final
class Window:
    """Sums since the last line of metrics, kept where they are computed until they are asked for.

    Attributes:
        steps: how many steps it spans.
        pairs: anchor pairs seen in this session.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self.steps = self.pairs = 0

    def add(self, values: Mapping[str, Tensor], pairs: int) -> None:
        """What one step measured, on how many anchor pairs."""
        for name, value in values.items():
            old = self._sums.get(name)
            new = value.detach().float()
            self._sums[name] = new if old is None else old.to(new.device) + new
            self._counts[name] = self._counts.get(name, 0) + 1
        self.steps, self.pairs = self.steps + 1, self.pairs + pairs

    def take(self) -> tuple[dict[str, float], int]:
        """Means over the steps that measured each, and the pairs; then a new window begins."""
        means = {name: total / self._counts[name] for name, total in self.sums().items()}
        pairs = self.pairs
        self._sums, self._counts, self.steps, self.pairs = {}, {}, 0, 0
        return means, pairs

    def sums(self) -> dict[str, float]:
        """The sums so far."""
        return {name: total.item() for name, total in self._sums.items()}

    def counts(self) -> dict[str, int]:
        """In how many steps each was measured, where not in all."""
        return {name: count for name, count in self._counts.items() if count < self.steps}

    def restore(
        self, sums: Mapping[str, float], steps: int, counts: Mapping[str, int] | None = None
    ) -> None:
        """Go on from saved sums."""
        self._counts = {name: (counts or {}).get(name, steps) for name in sums}
        self._sums = {name: torch.tensor(total) for name, total in sums.items()}
        self.steps = steps


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl``; a last line that a kill cut short is left out.

    Raises:
        ValueError: there is no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; train first, or name a training folder") from None
    return list(_parsed(lines))


def _parsed(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict):
            yield value


def check_trackers(track: Sequence[Tracker]) -> None:
    """Refuse a tracker that is not installed, before anything is written."""
    for name in track:
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f'track=("{name}",) needs {name}, which is not installed: '
                'pip install "counterfoil[log]"'
            )


def memory_mb(device: torch.device) -> float:
    """Peak memory of this process: of its GPU where it has one, else of the process itself."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@final
class TensorBoard(Sink):
    """TensorBoard files beside the metrics."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, line: Line) -> None:
        for name, value in line.items():
            if not isinstance(value, str):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


@final
class WandB(Sink):
    """A run of Weights & Biases."""

    def __init__(self, folder: Path, step: int) -> None:
        import wandb

        name = f"{folder.name} from step {step}" if step else folder.name
        self._run: Any = wandb.init(
            project="counterfoil", group=folder.name, name=name, dir=str(folder)
        )

    def write(self, step: int, line: Line) -> None:
        self._run.log(dict(line), step=step)

    def close(self) -> None:
        self._run.finish()


_SINKS: dict[Tracker, type[TensorBoard] | type[WandB]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
}
