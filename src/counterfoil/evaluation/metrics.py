"""Recall at k, median and mean rank, from the ranks of the true counterparts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core.types import Embeddings, Pairs
from counterfoil.scoring.encode import EmbeddedDataset

Direction = Literal["i2t", "t2i"]
Tie = Literal["row", "optimistic", "pessimistic"]

CUTOFFS = (1, 5, 10)
TIES = {
    "row": "of equal scores the lower row comes first",
    "optimistic": "a tied competitor counts as worse",
    "pessimistic": "a tied competitor counts as better",
}


@final
@dataclass(frozen=True, slots=True)
class RecallMetrics:
    """Retrieval in one direction: a query counts when any true counterpart is in the first k.

    Attributes:
        direction: "i2t", images ask for texts, or "t2i".
        r1: recall at 1, percent.
        r5: recall at 5, percent.
        r10: recall at 10, percent.
        median_rank: floor of the median place of the best true counterpart, from 1; a mean of
            such numbers when there are folds.
        mean_rank: mean place of the best true counterpart, from 1.
        queries: how many were counted.
        left_out: how many were not, having no true counterpart.
    """

    direction: Direction
    r1: float
    r5: float
    r10: float
    median_rank: float
    mean_rank: float
    queries: int
    left_out: int = 0

    @property
    def numbers(self) -> tuple[float, float, float, float, float]:
        """R@1, R@5, R@10, median rank, mean rank."""
        return self.r1, self.r5, self.r10, self.median_rank, self.mean_rank

    @property
    def total(self) -> float:
        """Sum of the three recalls."""
        return self.r1 + self.r5 + self.r10

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True, eq=False)
class RankedQueries:
    """Where each query found its best true counterpart; kept for intervals and paired tests.

    Attributes:
        direction: which side asks.
        ranks: (Q,) long, from 0; -1 for a query without a true counterpart.
        images: (Q,) long, the image a query is, or belongs to; -1 for a text of no image.
        folds: (Q,) long, the fold a query was ranked in; -1 for one that is in none.
    """

    direction: Direction
    ranks: Tensor
    images: Tensor
    folds: Tensor

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def counted(self) -> Tensor:
        """(Q,) bool, whether the query has a true counterpart."""
        return self.ranks >= 0

    def hits(self, k: int) -> Tensor:
        """(Q,) bool, whether any true counterpart is in the first k."""
        return self.counted & (self.ranks < k)


def recall_from_ranks(ranks: Tensor, direction: Direction) -> RecallMetrics:
    """Recalls in percent, floor(median) + 1 and mean + 1 of ranks that start from 0.

    Args:
        ranks: (Q,) integers; -1 for a query without a true counterpart, which is left out.
        direction: which side asked.

    Raises:
        ValueError: no query has a true counterpart.
    """
    counted = ranks[ranks >= 0].double().sort().values
    if not len(counted):
        side = "image has a caption" if direction == "i2t" else "text belongs to an image"
        raise ValueError(f"none of the {len(ranks)} queries can be evaluated: no {side}")
    r1, r5, r10 = (100.0 * (counted < k).double().mean().item() for k in CUTOFFS)
    middle = (counted[(len(counted) - 1) // 2] + counted[len(counted) // 2]) / 2
    return RecallMetrics(
        direction=direction,
        r1=r1,
        r5=r5,
        r10=r10,
        median_rank=middle.floor().item() + 1,
        mean_rank=counted.mean().item() + 1,
        queries=len(counted),
        left_out=len(ranks) - len(counted),
    )


def ranks_of(
    scores: Tensor, text_to_image: Tensor, tie: Tie = "row", besides: Pairs | None = None
) -> tuple[Tensor, Tensor]:
    """Ranks of the true counterparts in a score matrix that is small enough to hold.

    Args:
        scores: (I, T) higher is better.
        text_to_image: (T,) image row of each text; -1 for a text that describes none of them.
        tie: what becomes of equal scores, see `TIES`.
        besides: rows of pairs that are true besides.

    Returns:
        (I,) rank of each image's best text and (T,) rank of each text's image, from 0; -1 where
        there is none.

    Raises:
        ValueError: the shapes do not agree, a score is not a number, or the rule is unknown.
    """
    check_tie(tie)
    check_owner(text_to_image, scores.shape[0], scores.shape[1])
    if scores.isnan().any():
        raise ValueError(f"{int(scores.isnan().sum())} of the scores are NaN; they have no order")
    truth = text_to_image == torch.arange(scores.shape[0], device=scores.device).unsqueeze(1)
    if besides is not None:
        truth[besides.image, besides.text] = True
    return rank_positions(scores, truth, tie), rank_positions(scores.T, truth.T, tie)


def check_tie(tie: str) -> None:
    """Refuse a tie rule that does not exist."""
    if tie not in get_args(Tie):
        raise ValueError(f"the tie rule {tie!r} is unknown; use one of {', '.join(TIES)}")


def queries_with_positives(besides: Pairs, text_to_image: Tensor, images: int) -> Pairs:
    """Those true pairs whose image and text have a counterpart of their own.

    What is true besides makes answers right; it does not make queries of what asks nothing.

    Args:
        besides: rows of pairs that are true besides.
        text_to_image: (T,) image row of each text; -1 for a text that describes none.
        images: how many there are.
    """
    described = torch.bincount(text_to_image[text_to_image >= 0], minlength=images) > 0
    kept = described[besides.image] & (text_to_image[besides.text] >= 0)
    return Pairs(besides.image[kept], besides.text[kept])


def check_owner(text_to_image: Tensor, images: int, texts: int) -> None:
    """Refuse a relation that does not fit the numbers of images and texts."""
    if text_to_image.shape != (texts,):
        raise ValueError(
            f"owner must name one image row for each of the {texts} texts, but its shape is "
            f"{tuple(text_to_image.shape)}"
        )
    if (
        len(text_to_image)
        and not -1 <= int(text_to_image.min()) <= int(text_to_image.max()) < images
    ):
        raise ValueError(
            f"owner holds rows from {int(text_to_image.min())} to {int(text_to_image.max())}, but "
            f"there are "
            f"{images} images: rows go from 0 to {images - 1}, or -1 for a text of no image"
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


# The record of an evaluation: the numbers, and all that one has to know to read them.


METRICS = (
    *(f"i2t {name}" for name in ("R@1", "R@5", "R@10", "median rank", "mean rank")),
    *(f"t2i {name}" for name in ("R@1", "R@5", "R@10", "median rank", "mean rank")),
    "RSum",
)


@final
@dataclass(frozen=True, slots=True)
class Protocol:
    """What a split is cut into before it is ranked.

    Attributes:
        name: as papers call it.
        folds: into how many disjoint runs of images, in the order of the split, each with all its
            texts; metrics are means over folds.
        images: how many images the protocol is defined on; None for any number.
    """

    name: str
    folds: int = 1
    images: int | None = None


@final
@dataclass(frozen=True, slots=True)
class EvaluationSetting:
    """All that one has to know to read the numbers.

    Attributes:
        protocol: how the split is cut.
        images: how many images there were.
        texts: how many texts there were.
        tie: what became of equal scores.
        members: how many models' scores were averaged.
        dataset: name of the dataset.
        split: name of the split.
        seed: of the model.
        first: who chose what was ranked, by name; empty where everything was.
        depth: of how many counterparts a query.
        corrections: what somebody's decisions changed about the data, in words; empty for nothing.
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

    def line(self) -> str:
        """The protocol in one sentence, to stand beside the numbers."""
        folds = self.protocol.folds
        cut = f"mean of {folds} disjoint folds" if folds > 1 else "ranked as a whole"
        parts = [
            " ".join(part for part in (self.dataset, self.split) if part),
            f"{self.protocol.name}: {self.images:,} images, {self.texts:,} texts, {cut}",
            self.decided and f"the data as decided: {self.decided}",
            self.first and f"{self.shortlists()}, all behind them in its order",
            "any hit: a query counts when any true counterpart is in the first K",
            f"ties: {TIES[self.tie]}",
            "single model" if self.members == 1 else f"ensemble of {self.members} by mean score",
            "" if self.seed is None else f"seed {self.seed}",
        ]
        return "; ".join(part for part in parts if part)

    def shortlists(self) -> str:
        """What was re-ranked, in few words; empty where everything was ranked."""
        return self.first and f"top-{self.depth} of {self.first} re-ranked"


def without_models(protocol: str) -> str:
    """A protocol line without the number of models and their seeds: where rows may differ."""
    models = ("single model", "ensemble of ", "seed ", "seeds ")
    return "; ".join(part for part in protocol.split("; ") if not part.startswith(models))


@final
@dataclass(frozen=True, slots=True, eq=False)
class EvaluationReport:
    """Retrieval in both directions under one protocol.

    Attributes:
        setting: what was measured, and how.
        i2t: images ask for texts; means over folds.
        t2i: texts ask for images; means over folds.
        folds: both directions in each fold.
        ranked: where each query found its counterpart, i2t then t2i.
    """

    setting: EvaluationSetting
    i2t: RecallMetrics
    t2i: RecallMetrics
    folds: tuple[tuple[RecallMetrics, RecallMetrics], ...]
    ranked: tuple[RankedQueries, RankedQueries]

    @property
    def rsum(self) -> float:
        """Sum of the six recalls."""
        return self.i2t.total + self.t2i.total

    @property
    def numbers(self) -> tuple[float, ...]:
        """One number for each of `METRICS`."""
        return (*self.i2t.numbers, *self.t2i.numbers, self.rsum)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, without the single queries."""
        return {
            "protocol": self.setting.line(),
            "setting": asdict(self.setting),
            "i2t": self.i2t.to_dict(),
            "t2i": self.t2i.to_dict(),
            "rsum": self.rsum,
            "folds": [{"i2t": i2t.to_dict(), "t2i": t2i.to_dict()} for i2t, t2i in self.folds],
        }


# One vector for every item, whatever a model makes of it.


_AT_ONCE = 4096

MEAN_OF_BAGS = "a bag of vectors stands for itself by the mean of its unit vectors"


def single_unit_vectors(encoded: Sequence[Embeddings]) -> Tensor:
    """(N, D) unit vectors, whose inner product is the mean cosine over models.

    An item that is a bag of vectors is the mean of its unit vectors, made one long: a summary that
    the model itself does not use.

    Args:
        encoded: the same N items as each model encodes them; D is the sum of the widths.
    """
    each = [_means(one) for one in encoded]
    return torch.cat(each, 1) / math.sqrt(len(each))


def holds_bags(members: Sequence[EmbeddedDataset]) -> bool:
    """Whether some item is more than one vector."""
    sides = (side for member in members for side in (member.images, member.texts))
    return any(side.mask.shape[1] > 1 for side in sides)


def _means(encoded: Embeddings) -> Tensor:
    parts = []
    for start in range(0, len(encoded), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        tokens, mask = encoded.tokens[part], encoded.mask[part]
        units = normalize(tokens.float(), dim=-1).masked_fill(~mask.unsqueeze(2), 0)
        parts.append(normalize(units.sum(1), dim=-1).cpu())
    return torch.cat(parts)
