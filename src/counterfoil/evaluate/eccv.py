"""ECCV Caption: mAP@R, R-Precision and R@1 against many true counterparts per query.

Chun et al., "ECCV Caption: Correcting False Negatives by Collecting Machine-and-Human-verified
Image-Caption Associations for MS-COCO", ECCV 2022. The annotations are not part of this package:
install `eccv_caption` (MIT licence) and give the path of its `eccv_image_to_caption.json` and
`eccv_caption_to_image.json` to `counterfoil.evaluate.truth.read`. Both are asked over the whole
COCO 5K test split, so the rankings must come from all 25,000 captions and 5,000 images.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.evaluate.recall import CUTOFFS, Direction
from counterfoil.evaluate.truth import Truth

PUBLISHED_QUERIES: dict[Direction, int] = {"i2t": 1261, "t2i": 1332}
DEPTH = 50  # the longest list of true captions is 48


@final
@dataclass(frozen=True, slots=True)
class ManyTrue:
    """Retrieval where a query has several true counterparts; all in percent.

    Attributes:
        direction: which side asks.
        map_at_r: mean over queries of (1 / R) * sum of the precisions at the true places among
            the first R, R being the query's number of true counterparts.
        r_precision: share of true counterparts among the first R.
        r1: queries whose first item is true.
        r5: queries with any true item in the first 5.
        r10: queries with any true item in the first 10.
        queries: how many were asked.
    """

    direction: Direction
    map_at_r: float
    r_precision: float
    r1: float
    r5: float
    r10: float
    queries: int

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Precisions:
    """Average precision at R and R-Precision of each query, (Q,) as fractions."""

    map_at_r: Tensor
    r_precision: Tensor


def precisions(rankings: Tensor, truth: Truth) -> Precisions:
    """Average precision at R and R-Precision of each query.

    Args:
        rankings: (Q, K) item ids, best first, in the order of ``truth.queries``.
        truth: what is true.

    Raises:
        ValueError: a query without true items, or rankings shorter than the longest list.
    """
    sizes = truth.sizes
    if int(sizes.min()) < 1:
        raise ValueError(f"{int((sizes < 1).sum())} queries have no true item; leave them out")
    if int(sizes.max()) > rankings.shape[1]:
        raise ValueError(
            f"a query has {int(sizes.max())} true items but rankings are {rankings.shape[1]} deep; "
            f"rank at least {int(sizes.max())} items"
        )
    place = torch.arange(1, rankings.shape[1] + 1)
    hits = truth.hits(rankings) & (place <= sizes.unsqueeze(1))
    precision = hits.double().cumsum(1) / place
    average = (precision * hits).sum(1) / sizes
    return Precisions(average, hits.double().sum(1) / sizes)


def any_hit(rankings: Tensor, truth: Truth) -> tuple[float, float, float]:
    """Percent of queries with any true item in the first 1, 5 and 10."""
    hits = truth.hits(rankings)
    r1, r5, r10 = (100.0 * hits[:, :k].any(1).double().mean().item() for k in CUTOFFS)
    return r1, r5, r10


def score(rankings: Tensor, truth: Truth, direction: Direction) -> ManyTrue:
    """All metrics of one direction.

    Args:
        rankings: (Q, K) item ids, best first, in the order of ``truth.queries``, see
            `counterfoil.evaluate.truth.align`; `DEPTH` is deep enough.
        truth: what is true.
        direction: which side asked.
    """
    each = precisions(rankings, truth)
    r1, r5, r10 = any_hit(rankings, truth)
    return ManyTrue(
        direction=direction,
        map_at_r=100.0 * each.map_at_r.mean().item(),
        r_precision=100.0 * each.r_precision.mean().item(),
        r1=r1,
        r5=r5,
        r10=r10,
        queries=len(truth),
    )
