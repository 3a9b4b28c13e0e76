"""Metrics as JSON lines, in TensorBoard and in Weights & Biases; figures of guides and captions."""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.types import INFERENCE, Role, ScoreMatrix, VectorScores
from counterfoil.losses.base import full_precision
from counterfoil.losses.ndgl import guide_agreement
from counterfoil.training.config import Tracker

Line = Mapping[str, float | int | str]


class MetricSink(ABC):
    """A tracker that metrics go to beside the file."""

    @abstractmethod
    def write(self, step: int, line: Line) -> None:
        """One line of metrics."""

    @abstractmethod
    def close(self) -> None:
        """Close the tracker."""


@final
class MetricsLog:
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
        self._sinks: list[MetricSink] = []
        self._file = None
        if distributed.rank():
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

    def __enter__(self) -> MetricsLog:
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
class MetricWindow:
    """Sums since the last line of metrics, on the device until they are read.

    Attributes:
        steps: how many steps it spans.
        pairs: anchor pairs seen in this session.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self.steps = self.pairs = 0

    def add(self, values: Mapping[str, Tensor], pairs: int) -> None:
        """Add the figures of one step and its anchor pairs."""
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
    parsed: list[dict[str, Any]] = []
    for line in lines:
        with suppress(json.JSONDecodeError):
            parsed.append(json.loads(line))
    return [value for value in parsed if isinstance(value, dict)]


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
class TensorBoardSink(MetricSink):
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
class WandBSink(MetricSink):
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


_SINKS: dict[Tracker, type[TensorBoardSink] | type[WandBSink]] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandBSink,
}


# Difficulty of generated captions for the model that is trained on them.
#
# TAGS (https://arxiv.org/abs/2111.03349), Fig. 3: score of the written caption minus score of the
# caption that it was made of, while training goes on.


ABOVE, GAP = "written_above", "written_gap"
LEVELS = (10, 25, 50, 75, 90)


def generated_difficulty(written: Tensor, grid: ScoreMatrix) -> dict[str, Tensor]:
    """Figures of the captions written for B anchors; none where nothing was written.

    Args:
        written: (B, N) their scores, -inf where there is none.
        grid: whose anchors they are compared with.

    Returns:
        Percent that score above their anchor, the mean difference in units of a score, and its
        percentiles `LEVELS`.
    """
    scores = written.detach().double()
    there = scores > -torch.inf
    gaps = ((scores - grid.anchor.detach().double().unsqueeze(1)) / grid.scale)[there]
    if not len(gaps):
        return {}
    shares = torch.tensor(LEVELS, dtype=torch.double, device=gaps.device) / 100
    return {
        ABOVE: 100 * (gaps > 0).double().mean(),
        GAP: gaps.mean(),
        **{f"{GAP}_p{n}": at for n, at in zip(LEVELS, gaps.quantile(shares), strict=True)},
    }


# Figures beside the losses: of the guide and of generated captions.


DISAGREE, DIVERGENCE, OUTRANKED = "guide_disagree", "guide_kl", "guide_outranked"
SHARE = "share_"  # begins the names of the terms' shares of the gradient, in percent


@final
class StepMonitor:
    """Records figures of the steps that are logged; other steps cost nothing.

    Attributes:
        wanted: whether the next step is recorded.
        figures: of the last recorded step by name, see `guide_figures` and
            `generated_difficulty`.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.figures: dict[str, Tensor] = {}

    def record(
        self,
        grids: Mapping[str, ScoreMatrix],
        losses: Mapping[str, Tensor],
        pairs: Mapping[Role, Tensor] | None = None,
    ) -> None:
        """Note the figures of a step, if they are wanted and it has a guide or written captions."""
        if not self.wanted:
            return
        grid, written = grids[INFERENCE], (pairs or {}).get(Role.WRITTEN)
        self.figures = {} if grid.guide is None else guide_figures(grids, losses)
        if written is not None:
            self.figures |= generated_difficulty(written, grid)

    def record_tiled(self, vectors: VectorScores) -> None:
        """Note the figures of a step without a score matrix, if they are wanted."""
        if self.wanted:
            self.figures = vector_figures(vectors)

    def take(self) -> dict[str, float]:
        """The figures as numbers, once."""
        figures, self.figures = self.figures, {}
        return {name: round(value.item(), 6) for name, value in figures.items()}


@torch.no_grad()
def vector_figures(vectors: VectorScores, sample: int = 1000) -> dict[str, Tensor]:
    """Mean scores of the true images and of the hardest wrong images of the first texts.

    Args:
        vectors: of the batch, texts in random order.
        sample: texts looked at, so that it costs little beside the loss.
    """
    own = vectors.text_to_image[:sample]
    scores = full_precision(vectors.texts[:sample]) @ full_precision(vectors.images).T
    text = torch.arange(len(own), device=own.device)
    true = scores[text, own]
    scores[text, own] = -torch.inf
    if vectors.exempt is not None:
        there = vectors.exempt.text < len(own)
        scores[vectors.exempt.text[there], vectors.exempt.image[there]] = -torch.inf
    hardest = scores.amax(1).nan_to_num(neginf=0)  # a text that is true of every image
    return {"true_score": true.mean(), "hardest_score": hardest.mean()}


def guide_figures(
    grids: Mapping[str, ScoreMatrix], losses: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Figures of one guided step.

    Args:
        grids: what was judged by name, the inference grid with its guide among it.
        losses: weighted losses by name, whose graph is kept.

    Returns:
        Percent of anchors whose hardest negative is another one for the guide, the mean divergence,
        percent of anchors whose positive some negative outranks in the guide (an alarm for false
        negatives), and each term's share, in percent, of the norms of the gradients that reach
        the scores of all grids.
    """
    agreement = guide_agreement(grids[INFERENCE])
    scores = [grid.scores for grid in grids.values() if grid.scores.requires_grad]
    norms = {name: _gradient_norm(loss, scores) for name, loss in losses.items()}
    total = torch.stack(list(norms.values())).sum().clamp(min=1e-30)
    return {
        DISAGREE: agreement.disagree,
        DIVERGENCE: agreement.divergence,
        OUTRANKED: agreement.outranked,
        **{f"{SHARE}{name}": 100 * norm / total for name, norm in norms.items()},
    }


def describe_figures(figures: Mapping[str, float]) -> str:
    """The same in a few words, for a line of progress; "" where nothing was seen."""
    if DISAGREE not in figures:
        return ""
    shares = " ".join(
        f"{name.removeprefix(SHARE)} {share:.0f} %"
        for name, share in figures.items()
        if name.startswith(SHARE)
    )
    return (
        f"{figures[DISAGREE]:.0f} % of hardest negatives differ from the guide's, "
        f"KL {figures[DIVERGENCE]:.2g}, gradient {shares}"
    )


def _gradient_norm(loss: Tensor, scores: Sequence[Tensor]) -> Tensor:
    """Norm of a loss's gradient with respect to the scores."""
    if not (loss.requires_grad and scores):
        return loss.new_zeros(())
    # the graph is kept: the backward pass of the step comes after this
    gradients = torch.autograd.grad(loss, scores, retain_graph=True, materialize_grads=True)
    norm: Tensor = torch.cat([gradient.flatten().float() for gradient in gradients]).norm()
    return norm
