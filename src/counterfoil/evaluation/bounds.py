"""Bounds on mAP@R and R-precision while some pairs are not judged, and which pair to judge next.

Of every query the first `FIRST` counterparts are looked at; those that nobody judged may be true or
false, all others that are not known to be true count as false. The bounds are the lowest and the
highest value over all such assignments. They are not those of *all false* and *all true*: each true
counterpart raises R, so one more at a late place lowers both measures. For a given number of true
ones the best assignment takes the earliest unjudged places and the worst the latest, since moving a
true counterpart up never lowers a measure while R is the same. So all numbers are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from counterfoil.core.types import Pairs
from counterfoil.evaluation.metrics import BOUNDS, R_CAP
from counterfoil.scoring.encode import EmbeddedDataset, Side
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import stream_scores

if TYPE_CHECKING:
    from counterfoil.evaluation.truth import Truth

FIRST = 100  # places whose unjudged pairs may be true
SHARE = 0.05  # chance that an unjudged pair is true, by which the next ones are chosen
TRUE, FALSE, UNJUDGED = 1, 0, -1
_AT_ONCE = 1024  # queries computed together, which stay in the cache


@final
@dataclass(frozen=True, slots=True, eq=False)
class FirstPlaces:
    """What is known of the first L counterparts of Q queries.

    Attributes:
        verdicts: (Q, L) int8: `TRUE`, `FALSE` or `UNJUDGED`; `FALSE` behind the end.
        answers: (Q, L) long rows, -1 behind the end.
        true: (Q,) long, known true counterparts at any place.
    """

    verdicts: Tensor
    answers: Tensor
    true: Tensor

    @classmethod
    def of(cls, side: Side, rows: Tensor, true: Pairs, false: Pairs, texts: int) -> FirstPlaces:
        """Look up what is known.

        Args:
            side: of the queries.
            rows: (Q, L) counterparts, best first, -1 behind the end.
            true: known true pairs, each once.
            false: known false pairs.
            texts: number of texts.
        """
        rows = rows.long().cpu()
        query = torch.arange(len(rows)).unsqueeze(1)
        keys = query * texts + rows if side == "image" else rows * texts + query
        verdicts = torch.full(rows.shape, UNJUDGED, dtype=torch.int8)
        for pairs, verdict in ((false, FALSE), (true, TRUE)):
            verdicts[torch.isin(keys, pairs.image * texts + pairs.text)] = verdict
        verdicts[rows < 0] = FALSE
        owners = true.image if side == "image" else true.text
        return cls(verdicts, rows, torch.bincount(owners, minlength=len(rows)))

    def only(self, queries: Tensor) -> FirstPlaces:
        """The same with nothing known or open of all but (Q,) bool queries: they have no bounds."""
        verdicts = self.verdicts.masked_fill(~queries.unsqueeze(1), FALSE)
        return FirstPlaces(verdicts, self.answers, self.true * queries)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Lowest and highest values of Q queries, from 0 to 1.

    Attributes:
        r_precision: (2, Q) double.
        map_at_r: (2, Q) double.
    """

    r_precision: Tensor
    map_at_r: Tensor

    def by_name(self) -> dict[str, Tensor]:
        """The four ends by the names of `counterfoil.evaluation.metrics.BOUNDS`."""
        ends = (*self.r_precision, *self.map_at_r)
        return {metric.name: end for metric, end in zip(BOUNDS, ends, strict=True)}


def first_counterparts(images: int, texts: int) -> tuple[TopK, TopK]:
    """Reducers of a pass that keep the first `FIRST` texts of an image, and images of a text."""
    return (
        TopK("image", images, min(FIRST, texts)),
        TopK("text", texts, min(FIRST, images)),
    )


def first_places(top: TopK, truth: Truth, texts: int) -> FirstPlaces:
    """What a truth that people judged knows of the first counterparts of a pass."""
    known = truth.i2t if top.query == "image" else truth.t2i
    assert isinstance(known.true, Pairs)
    assert known.false is not None
    return FirstPlaces.of(top.query, top.rows, known.true, known.false, texts)


def bounds(verdicts: Tensor, true: Tensor, cap: int = R_CAP) -> Bounds:
    """Bounds of R-precision and mAP@R over all verdicts that are possible.

    Args:
        verdicts: (Q, L) as in `FirstPlaces`.
        true: (Q,) long, known true counterparts at any place.
        cap: most places that the measures read.
    """
    if len(verdicts) > _AT_ONCE:
        starts = range(0, len(verdicts), _AT_ONCE)
        parts = [
            bounds(verdicts[at : at + _AT_ONCE], true[at : at + _AT_ONCE], cap) for at in starts
        ]
        return Bounds(
            torch.cat([part.r_precision for part in parts], 1),
            torch.cat([part.map_at_r for part in parts], 1),
        )
    unjudged = verdicts == UNJUDGED
    count = unjudged.sum(1)
    numbers = unjudged.cumsum(1)[:, :cap]  # of the unjudged ones, from 1
    seen, open_ = (verdicts == TRUE)[:, :cap], unjudged[:, :cap]
    places = torch.arange(seen.shape[1])
    found = torch.full((2, 2, len(verdicts)), torch.nan, dtype=torch.float64)  # measure, end
    # where R is at its cap, one more true one never lowers a measure: the fewest and all are tried
    enough = (cap - true).clamp(min=0).minimum(count)
    tried = [torch.full_like(count, more) for more in range(int(enough.max()) + 1)]
    for more in (*tried, count) if len(count) else ():
        size = (true + more).clamp(max=cap)
        possible = ((more <= enough) | (more == count)) & (size > 0)
        inside = places < size.unsqueeze(1)
        for end, added in (
            (0, numbers > (count - more).unsqueeze(1)),
            (1, numbers <= more.unsqueeze(1)),
        ):
            hits = (seen | (open_ & added)) & inside
            precision = hits.cumsum(1).double() / (places + 1)
            for measure, values in enumerate((hits.double(), precision * hits)):
                value = values.sum(1) / size
                place = found[measure, end]
                pick = torch.fmin(place, value) if end == 0 else torch.fmax(place, value)
                found[measure, end] = torch.where(possible, pick, place)
    return Bounds(found[0], found[1])


@final
@dataclass(frozen=True, slots=True, eq=False)
class NextPairs:
    """Unjudged pairs in the order in which to judge them.

    Attributes:
        pairs: (P,) rows, those first whose verdict narrows the bounds most.
        gain: (P,) double, by how much a verdict narrows the bounds of mAP@R, of the mean over the
            queries of a direction and over both directions.
        places: of the images and of the texts as queries, what is known.
    """

    pairs: Pairs
    gain: Tensor
    places: tuple[FirstPlaces, FirstPlaces]

    def ends(self) -> tuple[float, float]:
        """Lowest and highest mAP@R, mean of both directions, from 0 to 1."""
        each = [bounds(some.verdicts, some.true).map_at_r.nanmean(1) for some in self.places]
        low, high = torch.stack(each).mean(0).tolist()
        return low, high


def next_pairs(
    members: Sequence[EmbeddedDataset], truth: Truth, text_to_image: Tensor
) -> NextPairs:
    """Order the unjudged pairs of all queries by how much a verdict narrows the bounds of mAP@R.

    A verdict is expected to be true with the chance `SHARE`. A pair counts in both directions, as
    an answer of its image and of its text.

    Args:
        members: models with their encodings; the mean score of several counts.
        truth: what people judged.
        text_to_image: (T,) image of each text, -1 for none; only images with a caption and texts
            with an image are queries.
    """
    images, texts = len(members[0].images), len(text_to_image)
    tops = first_counterparts(images, texts)
    stream_scores(members, [*tops])
    described = torch.bincount(text_to_image[text_to_image >= 0], minlength=images) > 0
    places = (
        first_places(tops[0], truth, texts).only(described),
        first_places(tops[1], truth, texts).only(text_to_image >= 0),
    )
    gain: dict[int, float] = {}
    for side, some in zip(tops, places, strict=True):
        asked = max(1, int((some.true > 0).sum()))
        query, place = (some.verdicts == UNJUDGED).nonzero(as_tuple=True)
        answer = some.answers[query, place]
        keys = query * texts + answer if side.query == "image" else answer * texts + query
        values = narrowing(some)[query, place] / (2 * asked)
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            gain[key] = gain.get(key, 0.0) + value
    order = torch.tensor(sorted(gain, key=lambda key: (-gain[key], key)), dtype=torch.long)
    gains = torch.tensor([gain[key] for key in order.tolist()], dtype=torch.float64)
    return NextPairs(Pairs(order // texts, order % texts), gains, places)


def narrowing(places: FirstPlaces, share: float = SHARE, cap: int = R_CAP) -> Tensor:
    """By how much a verdict narrows the bounds of mAP@R of its query: (Q, L) double, 0 to 1.

    Args:
        places: what is known.
        share: chance of a verdict to be *true*.
        cap: most places that the measures read.
    """
    verdicts, true = places.verdicts, places.true
    now = bounds(verdicts, true, cap).map_at_r
    width = (now[1] - now[0]).nan_to_num(0)
    found = torch.zeros(verdicts.shape, dtype=torch.float64)
    # behind the cap a pair counts in R alone, so all of a query narrow alike: the first is tried
    late = verdicts[:, cap:] == UNJUDGED
    tried = verdicts == UNJUDGED
    tried[:, cap:] &= late.cumsum(1) == 1
    query, place = tried.nonzero(as_tuple=True)
    left = torch.zeros(len(query), dtype=torch.float64)
    for verdict, weight in ((TRUE, share), (FALSE, 1 - share)):
        for start in range(0, len(query), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            some = verdicts[query[part]].clone()
            some[torch.arange(len(some)), place[part]] = verdict
            ends = bounds(some, true[query[part]] + (verdict == TRUE), cap).map_at_r
            left[part] += weight * (ends[1] - ends[0]).nan_to_num(0)
    found[query, place] = width[query] - left
    behind = found[:, cap:].sum(1, keepdim=True)  # of the one that was tried
    found[:, cap:] = behind * late
    return found
