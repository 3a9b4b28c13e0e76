"""Evaluate a model on a data set in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar, final

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import Interval, intervals
from counterfoil.evaluation.metrics import (
    DIRECTION_METRICS,
    METRICS,
    EvaluationReport,
    Metric,
    RankFunction,
    further_metrics,
    further_numbers,
    warn_of_ties,
)
from counterfoil.evaluation.protocols import evaluate_protocol, protocol_by_name
from counterfoil.model import Model, as_models
from counterfoil.report.tables import format_interval
from counterfoil.scoring.reducers import Tie

_T = TypeVar("_T")
_SMALL = 10.0  # no percent; shown with three decimals


@final
@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """Recalls and ranks in both directions; print it to see them with intervals and protocol.

    Attributes:
        report: numbers, setting, and the rank of every query.
        further: metrics besides those of the report.
    """

    report: EvaluationReport
    further: tuple[Metric, ...] = ()

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
        more = (further_numbers(ranked, self.further) for ranked in self.report.ranked)
        return self._named(self.report.numbers, [*chain(*more)])

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """95 % bootstrap intervals over images, by the names of `metrics`."""
        more = intervals(self.report, metrics=self.further)[:-1] if self.further else ()
        return self._named(intervals(self.report), more)

    def _named(self, shown: Sequence[_T], more: Sequence[_T]) -> dict[str, _T]:
        """Values of `METRICS` and of the further metrics of both directions; RSum is the last."""
        names = (f"{side} {metric.name}" for side in ("i2t", "t2i") for metric in self.further)
        return {
            **dict(zip(METRICS[:-1], shown)),
            **dict(zip(names, more, strict=True)),
            METRICS[-1]: shown[-1],
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form: protocol, setting, numbers and intervals."""
        plain = self.report.to_dict()
        for side in ("i2t", "t2i"):
            plain[side] |= {m.key: self.metrics[f"{side} {m.name}"] for m in self.further}
        spans = {name: interval.to_dict() for name, interval in self.intervals.items()}
        return {**plain, "intervals": spans}

    def __repr__(self) -> str:
        columns = [*(metric.name for metric in DIRECTION_METRICS.values())]
        columns += [metric.name for metric in self.further]
        rows = [["", *columns]]
        for side, title in (("i2t", "image to text"), ("t2i", "text to image")):
            rows.append([title, *(self._cell(f"{side} {name}") for name in columns)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        rsum = f"RSum {self._cell('RSum')}; 95 % bootstrap intervals over images"
        return "\n".join([*lines, rsum, self.protocol])

    def _cell(self, name: str) -> str:
        number, span = self.metrics[name], self.intervals[name]
        fine = name.partition(" ")[2] in self._fine
        return format_interval(number, span.low, span.high, ".3f" if fine else ".1f")

    @cached_property
    def _fine(self) -> set[str]:
        """The further metrics of small numbers, which need more decimals."""
        of_ones = {metric.name for metric in self.further if metric.scale == 1.0}
        sides = {
            n: max(abs(self.metrics[f"{side} {n}"]) for side in ("i2t", "t2i")) for n in of_ones
        }
        return {name for name, largest in sides.items() if largest < _SMALL}


def evaluate(
    model: Model | str | Sequence[Model | str],
    dataset: ImageTextDataset,
    *,
    protocol: str = "whole",
    ties: Tie = "row",
    metrics: Sequence[str | RankFunction] = (),
) -> EvaluationResult:
    """Evaluate image-to-text and text-to-image retrieval.

    Args:
        model: a model, its name or folder, or several whose scores are averaged.
        dataset: the images and texts to rank, as in ``data["test"]``.
        protocol: "whole", "flickr-1k", "coco-1k" or "coco-5k".
        ties: how equal scores rank: "row", "optimistic" or "pessimistic".
        metrics: further metrics: "R@20", "MRR@10" and the like, and functions of the (Q,) ranks of
            the best positives, from 1, that return (Q,) values, whose mean counts, or one number.

    Raises:
        ValueError: an unknown protocol or metric, a protocol that does not fit the data, or a
            model that cannot encode the data.
    """
    chosen, further = protocol_by_name(protocol), further_metrics(metrics)
    models = as_models(model)
    if not models:
        raise ValueError("no model was given; give one, or several for an ensemble")
    members = [member.embed(dataset) for member in models]
    report = evaluate_protocol(members, dataset, chosen, tie=ties)
    warn_of_ties(report)
    return EvaluationResult(report, further)
