"""Evaluate a model on a data set in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from counterfoil.core.console import info
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import Interval, intervals
from counterfoil.evaluation.metrics import (
    DIRECTION_METRICS,
    JOINT_METRICS,
    EvaluationReport,
    Metric,
    Protocol,
    RankFunction,
    further_metrics,
    warn_of_ties,
)
from counterfoil.evaluation.protocols import (
    check_bounded,
    check_whole,
    evaluate_protocol,
    protocol_by_name,
)
from counterfoil.model import Model, as_models
from counterfoil.report.tables import MISSING, format_interval
from counterfoil.scoring.reducers import Tie

if TYPE_CHECKING:
    from counterfoil.evaluation.results import EvaluationComparison
    from counterfoil.evaluation.truth import Truth

_T = TypeVar("_T")


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
        return self._named(self.report.numbers)

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """95 % bootstrap intervals over images, by the names of `metrics`."""
        return self._named(intervals(self.report))

    def _named(self, values: Sequence[_T]) -> dict[str, _T]:
        """Values of all numbers by name, those of both directions last."""
        named = dict(zip(self.report.names, values, strict=True))
        return named | {metric.name: named.pop(metric.name) for metric in JOINT_METRICS}

    def compare(
        self, other: EvaluationResult, names: tuple[str, str] = ("first", "second")
    ) -> EvaluationComparison:
        """Compare another model on the same queries with this one, by paired intervals and tests.

        Print what is returned to see it as ``counterfoil evaluate A B`` prints it: differences are
        those of `other` from this result.

        Args:
            other: evaluation with the same data, protocol and metrics.
            names: of this result and of the other.

        Raises:
            TypeError: `other` is no result of `evaluate`.
            ValueError: it has other queries or metrics, or the names are equal.
        """
        from counterfoil.evaluation.results import EvaluationComparison

        if not isinstance(other, EvaluationResult):
            raise TypeError(
                f"compare takes what cf.evaluate returned for the other model, not {other!r:.60}"
            )
        if len(set(names)) != 2:
            raise ValueError(f"names={names!r:.60} has to be two different names, one a result")
        mine, theirs = self.report.setting, other.report.setting
        for word in ("dataset", "split", "protocol", "tie", "truth"):
            one, another = getattr(mine, word), getattr(theirs, word)
            if one != another:
                raise ValueError(
                    f"the two results differ in {word}, {one!r} and {another!r}; a paired test "
                    "needs both models evaluated alike on the same data"
                )
        return EvaluationComparison.of(dict(zip(names, (self.report, other.report), strict=True)))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form: protocol, setting, numbers and intervals."""
        plain = self.report.to_dict()
        spans = {name: interval.to_dict() for name, interval in self.intervals.items()}
        return {**plain, "intervals": spans}

    def __repr__(self) -> str:
        best = [*DIRECTION_METRICS.values()]
        every = [m for m in self.report.further if m.of_places is not None or m.bound]
        best += [metric for metric in self.report.further if metric not in every]
        both = "; ".join(f"{metric.name} {self._cell(metric.name)}" for metric in JOINT_METRICS)
        last = [f"{both}; 95 % bootstrap intervals over images", self.protocol]
        return "\n".join([*self._block(best), *self._block(every), *last])

    def _block(self, metrics: Sequence[Metric]) -> list[str]:
        """The lines of some metrics, both directions; none without metrics."""
        if not metrics:
            return []
        rows = [["", *(metric.name for metric in metrics)]]
        for side, title in (("i2t", "image to text"), ("t2i", "text to image")):
            rows.append([title, *(self._cell(f"{side} {metric.name}") for metric in metrics)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

    def _cell(self, name: str) -> str:
        number, span = self.metrics[name], self.intervals[name]
        if math.isnan(number):
            return MISSING
        form = ".3f" if name in self.report.fine else ".1f"
        return format_interval(number, span.low, span.high, form)


def evaluate(
    model: Model | str | Sequence[Model | str],
    dataset: ImageTextDataset,
    *,
    protocol: str = "whole",
    ties: Tie = "row",
    metrics: Sequence[str | RankFunction] = (),
    truth: str = "own",
    judgements: Path | str | None = None,
    bounds: bool = False,
) -> EvaluationResult:
    """Evaluate image-to-text and text-to-image retrieval.

    Args:
        model: a model, its name or folder, or several whose scores are averaged.
        dataset: the images and texts to rank, as in ``data["test"]``; of a data set with a test
            split that is evaluated, and said.
        protocol: "whole", "flickr-1k", "coco-1k" or "coco-5k".
        ties: how equal scores rank: "row", "optimistic" or "pessimistic".
        metrics: further metrics: "R@20", "MRR@10" and the like, and functions of the ranks of the
            best positives, a (Q,) torch.float64 tensor from 1 (`ranks.numpy()` for NumPy), that
            return (Q,) values, whose mean counts, or one number; "mAP@R", "R-precision", "mAP" and
            "nDCG" read the places of all positives.
        truth: what is true: "own", the captions of an image; "judged", and the pairs that people
            judged true, where those that nobody judged are left out; "complete", every true pair,
            as `scenes` and ECCV Caption know them. With the last two, measures of all true pairs
            stand beside recalls and ranks.
        judgements: file or folder with what people judged or with lists of all true pairs, see
            `counterfoil.evaluation.truth.open_truth`.
        bounds: with truth "judged", also the lowest and the highest R-precision and mAP@R that the
            pairs allow that nobody judged, see `counterfoil.evaluation.bounds`.

    Raises:
        ValueError: an unknown protocol, metric or truth, one that does not fit the data, or a model
            that cannot encode the data.
    """
    chosen, further = protocol_by_name(protocol), further_metrics(metrics)
    dataset = _test_split(dataset)
    if bounds:
        check_bounded(truth, ties)
    known = truth_of(dataset, truth, judgements, chosen, further)
    models = as_models(model)
    if not models:
        raise ValueError("no model was given; give one, or several for an ensemble")
    keep = len(models) > 1
    members = [member.embed(dataset, keep_pixels=keep) for member in models]
    report = evaluate_protocol(members, dataset, chosen, tie=ties, truth=known, bounded=bounds)
    more = tuple(metric for metric in further if metric not in report.further)
    report = replace(report, further=(*report.further, *more))
    warn_of_ties(report)
    return EvaluationResult(report)


def truth_of(
    dataset: ImageTextDataset,
    truth: str,
    judgements: Path | str | None,
    protocol: Protocol,
    further: Sequence[Metric] = (),
) -> Truth | None:
    """The truth that an evaluation reads; None where the ranks of the own captions are enough.

    Raises:
        ValueError: as `open_truth`, a protocol with folds, or a metric of other true pairs than
            the own with the truth "own".
    """
    places = [metric for metric in further if metric.of_places is not None]
    if truth == "own" and judgements is None and not places:
        return None
    from counterfoil.evaluation.truth import open_truth  # for those who ask

    known = open_truth(truth, dataset, judgements)
    check_whole(known, protocol)
    for metric in places if truth == "own" else ():
        if metric.others:
            raise ValueError(
                f"{metric.name!r} is about true pairs besides the own captions; use truth 'judged' "
                "or 'complete'"
            )
    return known


def _test_split(dataset: ImageTextDataset) -> ImageTextDataset:
    """The test split of a whole data set that has several."""
    names = dataset.split_names if isinstance(dataset, ImageTextDataset) else ()
    if "test" not in names or len(names) < 2 or dataset.split_name != "all":
        return dataset
    every = ", ".join(map(repr, names))
    info(
        f"{dataset.name} has the splits {', '.join(names)}: test is evaluated; another is "
        f"data[{names[0]!r}], all are data.split({every})"
    )
    return dataset["test"]
