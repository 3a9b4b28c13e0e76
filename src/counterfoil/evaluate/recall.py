"""Recall at k, median and mean rank, from the ranks of the true counterparts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor

from counterfoil.records import Pairs

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
class Recall:
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

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
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


def recall(ranks: Tensor, direction: Direction) -> Recall:
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
    return Recall(
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
    scores: Tensor, owner: Tensor, tie: Tie = "row", besides: Pairs | None = None
) -> tuple[Tensor, Tensor]:
    """Ranks of the true counterparts in a score matrix that is small enough to hold.

    Args:
        scores: (I, T) higher is better.
        owner: (T,) image row of each text; -1 for a text that describes none of them.
        tie: what becomes of equal scores, see `TIES`.
        besides: rows of pairs that are true besides.

    Returns:
        (I,) rank of each image's best text and (T,) rank of each text's image, from 0; -1 where
        there is none.

    Raises:
        ValueError: the shapes do not agree, a score is not a number, or the rule is unknown.
    """
    check_tie(tie)
    check_owner(owner, scores.shape[0], scores.shape[1])
    if scores.isnan().any():
        raise ValueError(f"{int(scores.isnan().sum())} of the scores are NaN; they have no order")
    truth = owner == torch.arange(scores.shape[0], device=scores.device).unsqueeze(1)
    if besides is not None:
        truth[besides.image, besides.text] = True
    return places(scores, truth, tie), places(scores.T, truth.T, tie)


def check_tie(tie: str) -> None:
    """Refuse a tie rule that does not exist."""
    if tie not in get_args(Tie):
        raise ValueError(f"the tie rule {tie!r} is unknown; use one of {', '.join(TIES)}")


def asked_anyway(besides: Pairs, owner: Tensor, images: int) -> Pairs:
    """Those true pairs whose image and text have a counterpart of their own.

    What is true besides makes answers right; it does not make queries of what asks nothing.

    Args:
        besides: rows of pairs that are true besides.
        owner: (T,) image row of each text; -1 for a text that describes none.
        images: how many there are.
    """
    described = torch.bincount(owner[owner >= 0], minlength=images) > 0
    kept = described[besides.image] & (owner[besides.text] >= 0)
    return Pairs(besides.image[kept], besides.text[kept])


def check_owner(owner: Tensor, images: int, texts: int) -> None:
    """Refuse a relation that does not fit the numbers of images and texts."""
    if owner.shape != (texts,):
        raise ValueError(
            f"owner must name one image row for each of the {texts} texts, but its shape is "
            f"{tuple(owner.shape)}"
        )
    if len(owner) and not -1 <= int(owner.min()) <= int(owner.max()) < images:
        raise ValueError(
            f"owner holds rows from {int(owner.min())} to {int(owner.max())}, but there are "
            f"{images} images: rows go from 0 to {images - 1}, or -1 for a text of no image"
        )


def places(scores: Tensor, truth: Tensor, tie: Tie) -> Tensor:
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
