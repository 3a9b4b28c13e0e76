"""Recall at k, ranks, measures of all true counterparts, and the record of an evaluation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core.config import parse_literal
from counterfoil.core.console import warn
from counterfoil.core.types import Embeddings, Pairs
from counterfoil.data.dataset import FEW_IMAGES
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import Tie

if TYPE_CHECKING:
    from counterfoil.scoring.true_places import TruePlaces

Direction = Literal["i2t", "t2i"]
TruthName = Literal["own", "judged", "complete"]

TIES = {
    "row": "of equal scores the lower row comes first",
    "optimistic": "a tied competitor counts as worse",
    "pessimistic": "a tied competitor counts as better",
}


@final
@dataclass(frozen=True, slots=True)
class Metric:
    """A number of one direction, of the ranks of the best positives or of the places of all.

    Attributes:
        name: as in tables.
        of_ranks: (Q,) double ranks from 1, ascending, to (Q,) values, whose mean is the number, or
            to the number itself; None with `of_places`.
        scale: 100 for percent.
        in_rsum: whether RSum adds it up.
        is_mean: whether `of_ranks` gives values of queries.
        of_resamples: (Q,) double ranks from 1, ascending, and (b, Q) how often each was drawn, to
            (b,) numbers, where that is faster than `of_ranks` of each resample; none is empty.
        of_places: places of all true counterparts to (Q,) values, whose mean is the number; NaN for
            a query that is left out.
        others: whether counterparts that a query comes with, as the captions of an image, are left
            out: the true ones of other images count.
        bound: whether it is an end of the bounds under incomplete judgement, see
            `counterfoil.evaluation.bounds`.
    """

    name: str
    of_ranks: Callable[[Tensor], Tensor] | None
    scale: float = 1.0
    in_rsum: bool = False
    is_mean: bool = True
    of_resamples: Callable[[Tensor, Tensor], Tensor] | None = None
    of_places: Callable[[TruePlaces], Tensor] | None = None
    others: bool = False
    bound: bool = False

    @property
    def key(self) -> str:
        """The name in JSON.

        >>> [named_metric(name).key for name in ("R@20", "median rank", "mAP@R")]
        ['r20', 'median_rank', 'map_at_r']
        """
        plain = self.name.lower().replace("@r", "_at_r").replace("@", "")
        return plain.replace(" ", "_").replace("-", "_")

    def from_ranks(self, ranks: Tensor) -> float:
        """The metric of a direction: the mean over its queries.

        Args:
            ranks: (Q,) double, ascending, from 0.
        """
        assert self.of_ranks is not None
        return self.scale * self.of_ranks(ranks + 1).double().mean().item()

    def values(self, ranked: RankedQueries) -> Tensor:
        """(Q,) double, what each query contributes: their mean is the number; NaN for none."""
        values = torch.full(ranked.ranks.shape, torch.nan, dtype=torch.float64)
        if self.of_ranks is not None:
            counted = ranked.counted.nonzero().squeeze(1)
            order = counted[ranked.ranks[counted].argsort(stable=True)]
            values[order] = self.scale * self.of_ranks(ranked.ranks[order].double() + 1).double()
            return values
        if self.bound:
            return values.where(~ranked.counted, self.scale * ranked.bounds[self.name])
        assert self.of_places is not None
        if ranked.places is None:
            raise ValueError(
                f"{self.name} needs the places of all true counterparts, which a saved evaluation "
                "does not hold; evaluate again"
            )
        places = ranked.places.only(~ranked.own) if self.others else ranked.places
        return values.where(~ranked.counted, self.scale * self.of_places(places))


def _first(k: int) -> Metric:
    return Metric(f"R@{k}", lambda ranks: ranks <= k, scale=100.0)


def _reciprocal(k: int | None = None) -> Metric:
    def of_ranks(ranks: Tensor) -> Tensor:
        return (1 / ranks).where(ranks <= (k or torch.inf), 0.0)

    return Metric(f"MRR@{k}" if k else "MRR", of_ranks, scale=100.0)


# -- measures of all true counterparts: a query without a true or without a false one is left out

SMALL = 10.0  # no percent; shown with three decimals
R_CAP = 50  # most places that R-precision and mAP@R read


def _left_out(places: TruePlaces, values: Tensor) -> Tensor:
    """(Q,) values, NaN for queries that have nothing to tell apart."""
    return values.masked_fill((places.counts == 0) | (places.false == 0), torch.nan)


def _r_precision(places: TruePlaces) -> Tensor:
    """Share of true ones among the first R, the number of true ones, at most `R_CAP`."""
    size = places.counts.clamp(max=R_CAP)
    return _left_out(places, places.sum(places.place < size[places.query]) / size)


def _map_at_r(places: TruePlaces) -> Tensor:
    """Sum of the precisions at the true ones among the first R, divided by R."""
    size = places.counts.clamp(max=R_CAP)
    precision = (places.order + 1).double() / (places.place + 1)
    inside = places.place < size[places.query]
    return _left_out(places, places.sum(precision * inside) / size)


def _average_precision(places: TruePlaces) -> Tensor:
    """Mean of the precisions at all true ones."""
    precision = (places.order + 1).double() / (places.place + 1)
    return _left_out(places, places.sum(precision) / places.counts)


def _ndcg(places: TruePlaces) -> Tensor:
    """Discounted gain, 1 for a true one, divided by that of the best order."""
    gain, best = (1 / (rank.double() + 2).log2() for rank in (places.place, places.order))
    return _left_out(places, places.sum(gain) / places.sum(best))


def _area(places: TruePlaces) -> Tensor:
    """Share of pairs of a true and a false one in which the true one scores higher; ties half."""
    lost = places.sum(places.outscored) / (places.counts * places.false)
    return _left_out(places, 1 - lost)


OF_ALL_POSITIVES = tuple(
    Metric(name, None, scale=100.0, of_places=of_places, others=name.endswith("of others"))
    for name, of_places in (
        ("R-precision", _r_precision),
        ("mAP@R", _map_at_r),
        ("mAP", _average_precision),
        ("nDCG", _ndcg),
        ("mAP of others", _average_precision),
        ("AUC of others", _area),
    )
)


BOUNDS = tuple(
    Metric(f"{name} at {end}", None, scale=100.0, bound=True)
    for name in ("R-precision", "mAP@R")
    for end in ("least", "most")
)


def _floors_of_medians(ranks: Tensor, times: Tensor) -> Tensor:
    """(b,) floors of the medians of (Q,) ascending ranks that are there (b, Q) times."""
    until = times.cumsum(1)
    drawn = until[:, -1:]
    low, high = (
        ranks[torch.searchsorted(until, place, right=True)]
        for place in ((drawn - 1) // 2, drawn // 2)
    )
    return ((low + high) / 2).floor().squeeze(1)


def _floor_of_median(ranks: Tensor) -> Tensor:
    return _floors_of_medians(ranks, torch.ones_like(ranks, dtype=torch.long).unsqueeze(0))


def _recall(k: int, *, in_rsum: bool = True) -> dict[str, Metric]:
    return {"metric": replace(_first(k), in_rsum=in_rsum)}


@final
@dataclass(frozen=True, slots=True)
class RecallMetrics:
    """Retrieval in one direction: a query counts when any positive is in the first k.

    The fields with a `Metric` are the table of metrics: evaluations, intervals, comparisons,
    reports, model cards and the command line show what stands here, in this order.

    Attributes:
        direction: "i2t", images are the queries, or "t2i".
        r1: recall at 1, percent.
        r5: recall at 5, percent.
        r10: recall at 10, percent.
        median_rank: floor of the median rank of the best positive, from 1; a mean of such numbers
            when there are folds.
        mean_rank: mean rank of the best positive, from 1.
        queries: number of queries with a positive.
        left_out: number of queries without.
        tied: number of queries with a wrong counterpart that scores exactly as the best positive.
    """

    direction: Direction
    r1: float = field(metadata=_recall(1))
    r5: float = field(metadata=_recall(5))
    r10: float = field(metadata=_recall(10))
    median_rank: float = field(
        metadata={
            "metric": Metric(
                "median rank", _floor_of_median, is_mean=False, of_resamples=_floors_of_medians
            )
        }
    )
    mean_rank: float = field(metadata={"metric": Metric("mean rank", lambda ranks: ranks)})
    queries: int
    left_out: int = 0
    tied: int = 0

    @property
    def numbers(self) -> tuple[float, ...]:
        """One number for each of `DIRECTION_METRICS`, in its order."""
        return tuple(getattr(self, key) for key in DIRECTION_METRICS)

    @classmethod
    def of(
        cls,
        direction: Direction,
        numbers: Iterable[float],
        *,
        queries: int,
        left_out: int,
        tied: int,
    ) -> RecallMetrics:
        """The record of one number for each of `DIRECTION_METRICS`."""
        named: dict[str, Any] = dict(zip(DIRECTION_METRICS, numbers, strict=True))
        return cls(direction, **named, queries=queries, left_out=left_out, tied=tied)

    @property
    def recalls(self) -> dict[str, float]:
        """The recalls by key, as in "r1"."""
        return {key: getattr(self, key) for key in RECALLS}

    @property
    def total(self) -> float:
        """Sum of the three recalls that RSum adds up."""
        metrics = DIRECTION_METRICS.items()
        return float(sum(getattr(self, key) for key, metric in metrics if metric.in_rsum))

    def to_dict(self) -> dict[str, Any]:
        """The metrics by name, as plain values for JSON."""
        return asdict(self)


DIRECTION_METRICS: dict[str, Metric] = {
    each.name: each.metadata["metric"] for each in fields(RecallMetrics) if each.metadata
}  # by field, in order
RECALLS = {key: metric for key, metric in DIRECTION_METRICS.items() if metric.scale == 100.0}

RankFunction = Callable[[Tensor], Any]
_FAMILIES = "R@K and MRR@K with any number K, MRR"
_MORE_POSITIVES = ("ndcg@", "map@", "p@", "precision")
_SOME_RANKS = (1.0, 2.0, 3.0, 50.0)  # on which functions are tried


def further_metrics(asked: Sequence[str | RankFunction]) -> tuple[Metric, ...]:
    """The metrics that are asked for besides those of `RecallMetrics`.

    Args:
        asked: names as "R@20", "MRR" and "MRR@10", and functions: of a (Q,) torch.float64 tensor,
            the ranks of the best positives, ascending, from 1, to (Q,) values, whose mean counts,
            or to one number. The name of the function is that of the metric.

    Raises:
        ValueError: an unknown name, a function without a name or of another result, or two of one
            name.
    """
    if isinstance(asked, str) or callable(asked):
        one = getattr(asked, "__name__", repr(asked))
        raise ValueError(f"metrics={one} is one metric; write metrics=[{one}]")
    metrics = tuple(named_metric(one) if isinstance(one, str) else _of_user(one) for one in asked)
    shown = {metric.name for metric in DIRECTION_METRICS.values()}
    metrics = tuple(metric for metric in metrics if metric.name not in shown)
    keys = [field.name for field in fields(RecallMetrics)]
    for metric in metrics:
        if metric.key in keys:
            raise ValueError(f"two metrics are called {metric.name!r}; rename one")
        keys.append(metric.key)
    return metrics


def named_metric(name: str) -> Metric:
    """The metric of a name.

    >>> named_metric("R@20").from_ranks(torch.tensor([0.0, 19, 20, 99]))
    50.0
    >>> named_metric("MRR@10").from_ranks(torch.tensor([0.0, 1, 20, 99]))
    37.5

    Raises:
        ValueError: the name is unknown.
    """
    for metric in (*DIRECTION_METRICS.values(), *OF_ALL_POSITIVES):
        if name.strip().lower() == metric.name.lower():
            return metric
    match re.fullmatch(r"(r|recall|mrr)(?:@([1-9][0-9]{0,8}))?", name.strip().lower()):
        case re.Match() as found if found[1] == "mrr":
            return _reciprocal(int(found[2]) if found[2] else None)
        case re.Match() as found if found[2]:
            return _first(int(found[2]))
    names = ", ".join(
        metric.name
        for metric in (*DIRECTION_METRICS.values(), *OF_ALL_POSITIVES)
        if not metric.name.startswith("R@")
    )
    if name.lower().startswith(_MORE_POSITIVES):
        raise ValueError(
            f"{name!r} is not counted here; there are {names}; export the rankings with "
            "`counterfoil export MODEL --to trec` and count it with ranx"
        )
    raise ValueError(
        f"{name!r} is not a metric; known are {_FAMILIES}, {names}, and any function of ranks"
    )


def _of_user(function: RankFunction) -> Metric:
    """The metric of a user's function, which is tried first."""
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        raise ValueError(
            f"{function!r} is no metric; give a name as 'R@20', or a function of ranks that has a "
            "name (def hit_in_3(ranks): return ranks <= 3)"
        )

    def of_ranks(ranks: Tensor) -> Tensor:
        values = torch.as_tensor(function(ranks.clone())).double()
        if values.shape not in ((), ranks.shape) or not bool(values.isfinite().all()):
            some = "" if values.isfinite().all() else " with NaN or infinite values"
            raise ValueError(
                f"the metric {name} gave {tuple(values.shape)}{some} for {len(ranks)} ranks; a "
                "finite value of each, or one number, is needed"
            )
        return values

    tried = torch.tensor(_SOME_RANKS, dtype=torch.double)
    try:
        values = of_ranks(tried)
    except Exception as error:  # whatever a user's function raises
        if isinstance(error, ValueError) and "the metric" in str(error):
            raise
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"the metric {name} fails on the ranks {tried.tolist()}, a one-dimensional float64 "
            f"tensor of torch (for NumPy, begin with ranks = ranks.numpy()): {what}"
        ) from error
    return Metric(name, of_ranks, is_mean=values.dim() == 1)


def further_numbers(ranked: RankedQueries, metrics: Sequence[Metric]) -> tuple[float, ...]:
    """The metrics of one direction, means over its folds."""
    folds = [ranked.counted & (ranked.folds == fold) for fold in range(int(ranked.folds.max()) + 1)]
    return tuple(
        sum(_of_fold(metric, ranked, inside) for inside in folds) / len(folds) for metric in metrics
    )


def _of_fold(metric: Metric, ranked: RankedQueries, inside: Tensor) -> float:
    if metric.of_ranks is None:
        return metric.values(ranked)[inside].nanmean().item()
    return metric.from_ranks(ranked.ranks[inside].double().sort().values)


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RankedQueries:
    """Rank of the best positive of each query, for intervals and paired tests.

    Attributes:
        direction: of the queries.
        ranks: (Q,) long, from 0; -1 for a query without a positive.
        images: (Q,) long, the image that a query is or belongs to; -1 for a text of no image.
        folds: (Q,) long, the fold of each query; -1 for none.
        places: where all true counterparts stand, if the evaluation asked.
        own: (P,) bool, which of these pairs are an image and its own caption.
        bounds: (Q,) double by the names of `BOUNDS`, if the evaluation asked.
    """

    direction: Direction
    ranks: Tensor
    images: Tensor
    folds: Tensor
    places: TruePlaces | None = None
    own: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    bounds: Mapping[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"RankedQueries({self.direction}: {len(self):,} queries)"

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def counted(self) -> Tensor:
        """(Q,) bool, whether the query has a positive."""
        return self.ranks >= 0


def recall_from_ranks(ranks: Tensor, direction: Direction, tied: int = 0) -> RecallMetrics:
    """Every metric of ranks that start from 0.

    Args:
        ranks: (Q,) integers; -1 for a query without a positive, which is left out.
        direction: of the queries.
        tied: number of queries with a tie at their best positive.

    Raises:
        ValueError: no query has a positive.
    """
    counted = ranks[ranks >= 0].double().sort().values
    if not len(counted):
        side = "image has a caption" if direction == "i2t" else "text belongs to an image"
        raise ValueError(f"none of the {len(ranks)} queries can be evaluated: no {side}")
    return RecallMetrics.of(
        direction,
        (metric.from_ranks(counted) for metric in DIRECTION_METRICS.values()),
        queries=len(counted),
        left_out=len(ranks) - len(counted),
        tied=tied,
    )


def ranks_of(
    scores: Tensor, text_to_image: Tensor, tie: Tie = "row", extra_positives: Pairs | None = None
) -> tuple[Tensor, Tensor]:
    """Ranks of the best positives in a score matrix that fits in memory.

    Args:
        scores: (I, T) higher is better.
        text_to_image: (T,) image row of each text; -1 for a text that describes none of them.
        tie: rule for equal scores, see `TIES`.
        extra_positives: rows of further true pairs.

    Returns:
        (I,) rank of each image's best text and (T,) rank of each text's image, from 0; -1 where
        there is none.

    Raises:
        ValueError: the shapes do not agree, a score is not a number, or the rule is unknown.
    """
    parse_literal(Tie, tie, "a tie rule")
    check_text_to_image(text_to_image, scores.shape[0], scores.shape[1])
    if scores.isnan().any():
        raise ValueError(f"{int(scores.isnan().sum())} of the scores are NaN; they have no order")
    truth = true_pairs(text_to_image, len(scores), extra_positives)
    return rank_positions(scores, truth, tie), rank_positions(scores.T, truth.T, tie)


def true_pairs(text_to_image: Tensor, images: int, extra_positives: Pairs | None) -> Tensor:
    """(I, T) bool, the true pairs of some images and texts."""
    truth = text_to_image == torch.arange(images, device=text_to_image.device).unsqueeze(1)
    if extra_positives is not None:
        truth[extra_positives.image, extra_positives.text] = True
    return truth


def queries_with_positives(extra_positives: Pairs, text_to_image: Tensor, images: int) -> Pairs:
    """The extra positives whose image has a caption and whose text has an image.

    Extra positives make more answers right; they add no queries.

    Args:
        extra_positives: rows of further true pairs.
        text_to_image: (T,) image row of each text; -1 for a text that describes none.
        images: number of images.
    """
    described = torch.bincount(text_to_image[text_to_image >= 0], minlength=images) > 0
    counted = described[extra_positives.image] & (text_to_image[extra_positives.text] >= 0)
    return Pairs(extra_positives.image[counted], extra_positives.text[counted])


def check_text_to_image(text_to_image: Tensor, images: int, texts: int) -> None:
    """Check the image row of each text against the numbers of images and texts.

    Raises:
        ValueError: the shape differs, or a row is out of range.
    """
    if text_to_image.shape != (texts,):
        raise ValueError(
            f"text_to_image must hold one image row for each of the {texts} texts, but its shape "
            f"is {tuple(text_to_image.shape)}"
        )
    if (
        len(text_to_image)
        and not -1 <= int(text_to_image.min()) <= int(text_to_image.max()) < images
    ):
        raise ValueError(
            f"text_to_image holds rows from {int(text_to_image.min())} to "
            f"{int(text_to_image.max())}, but there are {images} images: rows go from 0 to "
            f"{images - 1}, or -1 for a text of no image"
        )


def rank_positions(scores: Tensor, truth: Tensor, tie: Tie) -> Tensor:
    """(Q,) rank from 0 of the best true one in each row of (Q, C) scores; -1 where none is true."""
    best = scores.masked_fill(~truth, -torch.inf).amax(1, keepdim=True)
    above = (scores > best).sum(1)
    equal = scores == best
    if tie == "pessimistic":
        above += (equal & ~truth).sum(1)
    if tie == "row":
        first = (equal & truth).int().argmax(1, keepdim=True)
        before = torch.arange(scores.shape[1], device=scores.device) < first
        above += (equal & before).sum(1)
    return above.masked_fill(~truth.any(1), -1)


def tied_positions(scores: Tensor, truth: Tensor) -> Tensor:
    """(Q,) bool, whether a false one scores as the best true one in rows of (Q, C) scores."""
    best = scores.masked_fill(~truth, -torch.inf).amax(1, keepdim=True)
    return ((scores == best) & ~truth).any(1) & truth.any(1)


# --- the record of an evaluation: numbers, data and protocol ---------------------------------


@final
@dataclass(frozen=True, slots=True)
class JointMetric:
    """A number of both directions, made of their numbers.

    Attributes:
        name: as in tables.
        of: the numbers of image to text and those of text to image, each by field of
            `RecallMetrics` and all of one shape, to the number.
        is_sum: whether it is a sum of means over queries, so that each image has a share of it: a
            test needs that.
    """

    name: str
    of: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
    is_sum: bool = False

    @property
    def key(self) -> str:
        """The name in JSON."""
        return self.name.lower().replace("@", "").replace(" ", "_")


def _rsum(i2t: Mapping[str, Tensor], t2i: Mapping[str, Tensor]) -> Tensor:
    summed = [key for key, metric in DIRECTION_METRICS.items() if metric.in_rsum]
    return torch.stack([side[key] for side in (i2t, t2i) for key in summed]).sum(0)


# Evaluations, intervals, comparisons, reports and the command line show what stands here.
JOINT_METRICS = (JointMetric("RSum", _rsum, is_sum=True),)


METRICS = (
    *(f"{side} {metric.name}" for side in ("i2t", "t2i") for metric in DIRECTION_METRICS.values()),
    *(metric.name for metric in JOINT_METRICS),
)
RSUM = METRICS.index("RSum")  # its place among the numbers of a report


@final
@dataclass(frozen=True, slots=True)
class Protocol:
    """The folds of a split, each of which is ranked by itself.

    Attributes:
        name: as in papers.
        folds: number of disjoint runs of images, in the order of the split, each with all its
            texts; metrics are means over folds.
        images: number of images that the protocol is defined on; None for any number.
    """

    name: str
    folds: int = 1
    images: int | None = None


@final
@dataclass(frozen=True, slots=True)
class EvaluationSetting:
    """Data, models and protocol of an evaluation.

    Attributes:
        protocol: how the split is cut.
        images: number of images.
        texts: number of texts.
        tie: rule for equal scores.
        members: number of models whose scores are averaged.
        dataset: name of the data set.
        split: name of the split.
        seed: of the model.
        first: names of the models that made the shortlists; empty where everything was ranked.
        depth: length of the shortlists.
        decided: description of the corrections applied to the data; empty for none.
        score: what a score is, see `RetrievalModel.score_name`.
        truth: what is true, in words; empty for the captions of an image.
    """

    protocol: Protocol
    images: int
    texts: int
    tie: Tie = "row"
    members: int = 1
    dataset: str = ""
    split: str = ""
    seed: int | None = None
    first: str = ""
    depth: int = 0
    decided: str = ""
    score: str = ""
    truth: str = ""

    @property
    def place(self) -> str:
        """Data set and split."""
        return " ".join(part for part in (self.dataset, self.split) if part)

    def line(self) -> str:
        """The protocol in one sentence, for display beside the numbers."""
        folds = self.protocol.folds
        cut = f"mean of {folds} disjoint folds" if folds > 1 else "ranked as a whole"
        parts = [
            self.place,
            f"{self.protocol.name}: {self.images:,} images, {self.texts:,} texts, {cut}",
            self.decided and f"the data as decided: {self.decided}",
            self.first and f"{self.shortlists()}, all behind them in its order",
            f"truth {self.truth or 'own: the captions of an image'}",
            "any hit: a query counts when any true counterpart is in the first K",
            f"ties: {TIES[self.tie]}",
            describe_members(self.members, self.score),
            "" if self.seed is None else f"seed {self.seed}",
            self.images < FEW_IMAGES
            and f"few images: one more hit of an image moves a recall by {100 / self.images:.1f}",
        ]
        return "; ".join(part for part in parts if part)

    def shortlists(self) -> str:
        """Description of the shortlists; empty where everything was ranked."""
        return self.first and f"top-{self.depth} of {self.first} re-ranked"


def describe_members(members: int, score: str) -> str:
    """Number of models whose mean score ranks, and what a score is."""
    kind = "single model" if members == 1 else f"ensemble of {members} by mean score"
    return f"{kind}, score: {score}" if score else kind


def common_line(settings: Sequence[EvaluationSetting]) -> str:
    """The protocol of several evaluations: their seed if it is the same, and all their scores."""
    seeds = {setting.seed for setting in settings}
    score = " / ".join(dict.fromkeys(setting.score for setting in settings if setting.score))
    seed = seeds.pop() if len(seeds) == 1 else None
    return replace(settings[0], seed=seed, score=score).line()


def without_models(protocol: str) -> str:
    """A protocol line without the number of models and their seeds, in which rows may differ."""
    models = ("single model", "ensemble of ", "seed ", "seeds ")
    return "; ".join(part for part in protocol.split("; ") if not part.startswith(models))


@final
@dataclass(frozen=True, eq=False, repr=False)
class EvaluationReport:
    """Retrieval in both directions under one protocol.

    Attributes:
        setting: data, models and protocol.
        i2t: images are the queries; means over folds.
        t2i: texts are the queries; means over folds.
        folds: both directions in each fold.
        ranked: rank of each query's best positive, i2t then t2i.
        further: metrics that are shown besides those of `RecallMetrics`.
    """

    setting: EvaluationSetting
    i2t: RecallMetrics
    t2i: RecallMetrics
    folds: tuple[tuple[RecallMetrics, RecallMetrics], ...]
    ranked: tuple[RankedQueries, RankedQueries]
    further: tuple[Metric, ...] = ()

    def __repr__(self) -> str:
        lines = []
        for title, side in (("image to text", self.i2t), ("text to image", self.t2i)):
            named = zip(DIRECTION_METRICS.values(), side.numbers, strict=True)
            lines.append(f"{title}: " + ", ".join(f"{m.name} {number:.1f}" for m, number in named))
        return "\n".join([*lines, f"RSum {self.rsum:.1f}", self.setting.line()])

    @property
    def rsum(self) -> float:
        """Sum of the six recalls."""
        return self.i2t.total + self.t2i.total

    @cached_property
    def joint(self) -> dict[str, float]:
        """The numbers of both directions, by their keys in JSON."""
        i2t, t2i = (
            dict(
                zip(DIRECTION_METRICS, torch.tensor(side.numbers, dtype=torch.float64), strict=True)
            )
            for side in (self.i2t, self.t2i)
        )
        return {m.key: m.of(i2t, t2i).item() for m in JOINT_METRICS} | {"rsum": self.rsum}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """`METRICS`, and further ones by direction, as in "i2t MRR"."""
        further = (f"{side} {m.name}" for side in ("i2t", "t2i") for m in self.further)
        return (*METRICS, *further)

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """One number for each of `names`."""
        further = (further_numbers(ranked, self.further) for ranked in self.ranked)
        return (*self.i2t.numbers, *self.t2i.numbers, *self.joint.values(), *chain(*further))

    @cached_property
    def fine(self) -> frozenset[str]:
        """Names of the further metrics of small numbers, which need three decimals."""
        of_ones = {metric.name for metric in self.further if metric.scale == 1.0}
        numbers = dict(zip(self.names, self.numbers, strict=True))
        sides = {name: [f"{side} {name}" for side in ("i2t", "t2i")] for name in of_ones}
        return frozenset(
            name
            for names in sides.values()
            for name in names
            if max(abs(numbers[one]) for one in names) < SMALL
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, without the single queries."""
        numbers = dict(zip(self.names, self.numbers, strict=True))
        i2t, t2i = (
            side.to_dict()
            | {m.key: finite_or_none(numbers[f"{side.direction} {m.name}"]) for m in self.further}
            for side in (self.i2t, self.t2i)
        )
        return {
            "protocol": self.setting.line(),
            "setting": asdict(self.setting),
            "i2t": i2t,
            "t2i": t2i,
            **{key: finite_or_none(number) for key, number in self.joint.items()},
            "folds": [{"i2t": i2t.to_dict(), "t2i": t2i.to_dict()} for i2t, t2i in self.folds],
        }


def finite_or_none(number: float) -> float | None:
    """None for NaN, which JSON does not have: a metric without a query that it can measure."""
    return None if math.isnan(number) else number


MANY_TIES = 0.01  # of the queries


def warn_of_ties(report: EvaluationReport) -> None:
    """Warn of each direction in which more than one query in a hundred ties at its true pair."""
    for side, query, answer in ((report.i2t, "images", "text"), (report.t2i, "texts", "image")):
        if side.tied > MANY_TIES * side.queries:
            warn(
                f"{side.tied:,} of {side.queries:,} {query} ({100 * side.tied / side.queries:.1f} "
                f"%) have a wrong {answer} that scores exactly as high as their best true one, so "
                f"their ranks depend on the rule of ties; used: {TIES[report.setting.tie]}. Rank "
                "with the optimistic and the pessimistic rule to see how much (equal captions or "
                "pictures, or scores that have lost their last digits, tie so)"
            )


# --- one vector for every item ----------------------------------------------------------------

_AT_ONCE = 4096  # items in one batch

MEAN_OF_BAGS = "a bag of vectors stands for itself by the mean of its unit vectors"


def single_unit_vectors(encoded: Sequence[Embeddings]) -> Tensor:
    """(N, D) unit vectors, whose inner product is the mean cosine over models.

    A bag of vectors becomes the mean of its unit vectors, scaled to length 1: a summary that the
    model itself does not use.

    Args:
        encoded: embeddings of the same N items by each model; D is the sum of the widths.
    """
    means = [_means(embeddings) for embeddings in encoded]
    return torch.cat(means, 1) / math.sqrt(len(means))


def holds_bags(members: Sequence[EmbeddedDataset]) -> bool:
    """Return True if a model represents items by several vectors."""
    sides = (side for member in members for side in (member.images, member.texts))
    return any(side.mask.shape[1] > 1 for side in sides)


def _means(encoded: Embeddings) -> Tensor:
    """(N, D) unit vectors: the mean of the unit vectors of each bag."""
    parts = []
    for start in range(0, len(encoded), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        tokens, mask = encoded.tokens[part], encoded.mask[part]
        units = normalize(tokens.float(), dim=-1).masked_fill(~mask.unsqueeze(2), 0)
        parts.append(normalize(units.sum(1), dim=-1).cpu())
    return torch.cat(parts)
