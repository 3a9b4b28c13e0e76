"""Metrics as JSON lines, in TensorBoard and in Weights & Biases; figures of guides and captions."""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.io import parse_json, read_text_lines
from counterfoil.core.types import INFERENCE, Role, ScoreMatrix, VectorScores
from counterfoil.losses.base import full_precision
from counterfoil.losses.ndgl import expand_copies, guide_agreement
from counterfoil.training.config import Tracker

Line = Mapping[str, float | int | str]


Sink = tuple[Callable[[int, Line], object], Callable[[], object]]  # writes a line; closes


@final
class MetricsLog:
    """Appends lines to ``metrics.jsonl``, and sends them to trackers, on the first process only.

    Resuming at a step keeps `keep` bytes of an earlier file: the rest came after the checkpoint and
    will be written again.
    """

    def __init__(
        self, path: Path, *, keep: int = 0, track: Sequence[Tracker] = (), step: int = 0
    ) -> None:
        self.path, self.bytes = path, keep
        self._sinks: list[Sink] = []
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
        for send, _ in self._sinks:
            send(step, line)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
        for _, close in self._sinks:
            close()


@final
class MetricWindow:
    """Sums over the steps since the last line of metrics, on the device until they are read."""

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
        """Number of steps of figures that not all steps have."""
        return {name: count for name, count in self._counts.items() if count < self.steps}

    def restore(
        self, sums: Mapping[str, float], steps: int, counts: Mapping[str, int] | None = None
    ) -> None:
        """Continue from saved sums."""
        self._counts = {name: (counts or {}).get(name, steps) for name in sums}
        self._sums = {name: torch.tensor(total) for name, total in sums.items()}
        self.steps = steps


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl``; a last line that a kill cut short is left out.

    Raises:
        ValueError: there is no such file, or another line is damaged.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist; train first, or name a training folder")
    parsed: list[dict[str, Any]] = []
    lines = read_text_lines(path, "metrics")
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            value = parse_json(line, where)
        except ValueError:
            if number < len(lines):
                raise
            continue
        if not isinstance(value, dict):
            raise ValueError(f"{where} holds no step of a training; train again")
        parsed.append(value)
    return parsed


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


def _tensorboard(folder: Path, step: int) -> Sink:
    """TensorBoard files beside the metrics."""
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def send(step: int, line: Line) -> None:
        for name, value in line.items():
            if not isinstance(value, str):
                writer.add_scalar(name, value, step)

    return send, writer.close


def _wandb(folder: Path, step: int) -> Sink:
    """A run of Weights & Biases."""
    import wandb

    name = f"{folder.name} from step {step}" if step else folder.name
    run: Any = wandb.init(project="counterfoil", group=folder.name, name=name, dir=str(folder))
    return lambda step, line: run.log(dict(line), step=step), run.finish


_SINKS: dict[Tracker, Callable[[Path, int], Sink]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}


# Figures beside the losses: of generated captions, of the guide, of a batch without a matrix.

DISAGREE = "guide_disagree"
SHARE = "share_"  # begins the names of the terms' shares of the gradient, in percent


def generated_difficulty(written: Tensor, matrix: ScoreMatrix) -> dict[str, Tensor]:
    """Measure how hard generated captions are for the model: TAGS, Fig. 3, while training goes on.

    Percent of them that score above the caption they were made of, the mean difference in units of
    a score, and its percentiles; nothing where no caption was generated. `written` are the (B, N)
    scores of the captions of each anchor, -inf where there is none.
    """
    scores = written.detach().double()
    there = scores > -torch.inf
    gaps = ((scores - matrix.anchor.detach().double().unsqueeze(1)) / matrix.scale)[there]
    if not len(gaps):
        return {}
    levels = (10, 25, 50, 75, 90)
    shares = torch.tensor(levels, dtype=torch.double, device=gaps.device) / 100
    return {
        "written_above": 100 * (gaps > 0).double().mean(),
        "written_gap": gaps.mean(),
        **{f"written_gap_p{n}": at for n, at in zip(levels, gaps.quantile(shares), strict=True)},
    }


@final
class StepMonitor:
    """Records figures of the steps that are logged (`wanted`); other steps cost nothing."""

    def __init__(self) -> None:
        self.wanted = False
        self.figures: dict[str, Tensor] = {}

    def record(
        self,
        matrices: Mapping[str, ScoreMatrix],
        losses: Mapping[str, Tensor],
        pairs: Mapping[Role, Tensor] | None = None,
    ) -> None:
        """Note the figures of a step, if they are wanted and it has a guide or written captions."""
        if not self.wanted:
            return
        matrix, written = matrices[INFERENCE], (pairs or {}).get(Role.WRITTEN)
        # of lists the true pairs alone are known in the block, and nothing there to compare
        guided = matrix.guide is not None and bool(
            (expand_copies(matrix).isfinite() & ~matrix.positive).any()
        )
        self.figures = guide_figures(matrices, losses) if guided else {}
        if written is not None:
            self.figures |= generated_difficulty(written, matrix)

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

    Texts come in random order, and few are looked at, so that it costs little beside the loss.
    """
    images = vectors.text_to_image[:sample]
    scores = full_precision(vectors.texts[:sample]) @ full_precision(vectors.images).T
    text = torch.arange(len(images), device=images.device)
    true = scores[text, images]
    scores[text, images] = -torch.inf
    if vectors.exempt is not None:
        there = vectors.exempt.text < len(images)
        scores[vectors.exempt.text[there], vectors.exempt.image[there]] = -torch.inf
    if vectors.equal is not None:
        rows = torch.arange(len(vectors.images), device=images.device)
        image, said = vectors.equal.places(rows, text)
        scores[said, image] = -torch.inf
    hardest = scores.amax(1).nan_to_num(neginf=0)  # a text that is true of every image
    return {"true_score": true.mean(), "hardest_score": hardest.mean()}


def guide_figures(
    matrices: Mapping[str, ScoreMatrix], losses: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Figures of one guided step: how the model agrees with its guide, and each term's share.

    The shares, in percent, are of the norms of the gradients that reach the scores of all matrices;
    the graph of the losses is kept.
    """
    agreement = {f"guide_{n}": value for n, value in guide_agreement(matrices[INFERENCE]).items()}
    scores = [matrix.scores for matrix in matrices.values() if matrix.scores.requires_grad]
    norms = {name: _gradient_norm(loss, scores) for name, loss in losses.items()}
    total = torch.stack(list(norms.values())).sum().clamp(min=1e-30)
    return {
        **agreement,
        **{f"{SHARE}{name}": 100 * norm / total for name, norm in norms.items()},
    }


def describe_figures(figures: Mapping[str, float]) -> str:
    """Summary of the figures for a line of progress; "" without figures."""
    if DISAGREE not in figures:
        return ""
    shares = " ".join(
        f"{name.removeprefix(SHARE)} {share:.0f} %"
        for name, share in figures.items()
        if name.startswith(SHARE)
    )
    return (
        f"{figures[DISAGREE]:.0f} % of hardest negatives differ from the guide's, "
        f"KL {figures['guide_kl']:.2g}, gradient {shares}"
    )


def _gradient_norm(loss: Tensor, scores: Sequence[Tensor]) -> Tensor:
    """Norm of a loss's gradient with respect to the scores."""
    if not (loss.requires_grad and scores):
        return loss.new_zeros(())
    # the graph is kept: the backward pass of the step comes after this
    gradients = torch.autograd.grad(loss, scores, retain_graph=True, materialize_grads=True)
    norm: Tensor = torch.cat([gradient.flatten().float() for gradient in gradients]).norm()
    return norm
