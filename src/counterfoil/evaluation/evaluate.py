"""Evaluate a model on a data set in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import Interval, intervals
from counterfoil.evaluation.metrics import (
    DIRECTION_METRICS,
    METRICS,
    EvaluationReport,
    warn_of_ties,
)
from counterfoil.evaluation.protocols import evaluate_protocol, protocol_by_name
from counterfoil.model import Model
from counterfoil.report.tables import format_interval
from counterfoil.scoring.reducers import Tie

_COLUMNS = tuple(metric.name for metric in DIRECTION_METRICS.values())


@final
@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """Recalls and ranks in both directions; print it to see them with intervals and protocol.

    Attributes:
        report: numbers, setting, and the rank of every query.
    """

    report: EvaluationReport

    @property
    def protocol(self) -> str:
        """Data, protocol, ties, single model or ensemble, in one sentence."""
        return self.report.setting.line()

    @property
    def rsum(self) -> float:
        """Sum of R@1, R@5 and R@10 in both directions."""
        return self.report.rsum

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Every number by name, as in "i2t R@1" and "RSum"."""
        return dict(zip(METRICS, self.report.numbers, strict=True))

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """95 % bootstrap intervals over images, by the names of `metrics`."""
        return dict(zip(METRICS, intervals(self.report), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form: protocol, setting, numbers and intervals."""
        spans = {name: interval.to_dict() for name, interval in self.intervals.items()}
        return {**self.report.to_dict(), "intervals": spans}

    def __repr__(self) -> str:
        cells = [
            format_interval(number, span.low, span.high)
            for number, span in zip(self.metrics.values(), self.intervals.values(), strict=True)
        ]
        i2t, t2i, rsum = cells[: len(_COLUMNS)], cells[len(_COLUMNS) : -1], cells[-1]
        rows = [("", *_COLUMNS), ("image to text", *i2t), ("text to image", *t2i)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(
            [*lines, f"RSum {rsum}; 95 % bootstrap intervals over images", self.protocol]
        )


def evaluate(
    model: Model | Sequence[Model],
    dataset: ImageTextDataset,
    *,
    protocol: str = "whole",
    ties: Tie = "row",
) -> EvaluationResult:
    """Evaluate image-to-text and text-to-image retrieval.

    Args:
        model: a model, or several whose scores are averaged.
        dataset: the images and texts to rank, as in ``data["test"]``.
        protocol: "whole", "flickr-1k", "coco-1k" or "coco-5k".
        ties: how equal scores rank: "row", "optimistic" or "pessimistic".

    Raises:
        ValueError: an unknown protocol, one that does not fit the data, or a model that cannot
            encode the data.
    """
    chosen = protocol_by_name(protocol)
    models = [model] if isinstance(model, Model) else list(model)
    if not models:
        raise ValueError("no model was given; give one, or several for an ensemble")
    members = [member.embed(dataset) for member in models]
    report = evaluate_protocol(members, dataset, chosen, tie=ties)
    warn_of_ties(report)
    return EvaluationResult(report)
