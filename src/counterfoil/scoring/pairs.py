"""Scores of listed pairs, such as another model's proposals, without the whole matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.console import progress
from counterfoil.core.types import Embeddings, Pairs
from counterfoil.scoring.encode import (
    EmbeddedDataset,
    Side,
    device_of,
    evaluation_mode,
    nan_error,
)
from counterfoil.scoring.reducers import NOTHING, rank_keys, rows_of, scores_of, sort_descending

_NUMBERS = {"cpu": 2**22, "cuda": 2**28}  # numbers in the encodings of pairs scored together
_TEXTS = 512  # texts scored together with one image
_AT_ONCE = 2**22  # scores exchanged together
PAIRS = 2**26  # of lists that are scored at once; each takes some 100 bytes


def score_index_pairs(
    members: Sequence[EmbeddedDataset],
    images: Tensor,
    texts: Tensor,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """Score pairs of rows: (P,) float32 on the CPU, the mean over members.

    On the CPU an image with a bag of vectors is scored with its texts as a (1, 512) matrix at most,
    which spares copying the image for each of them; otherwise pairs are gathered in parts of one
    size. How pairs are cut depends on the members, the pairs and the kind of device only, so
    several processes, which deal out the parts, return the same bits as one.

    Args:
        members: models with their encodings of the same images and texts.
        images: (P,) long rows on the CPU.
        texts: (P,) long rows on the CPU.
        device: where to compute, as in `stream_scores`.

    Raises:
        ValueError: a NaN score.
    """
    scores = torch.zeros(len(images))
    if not len(images):
        return scores
    if bool((images.diff() < 0).any()):  # the pairs of an image are scored together
        order = images.argsort(stable=True)
        scores[order] = score_index_pairs(members, images[order], texts[order], device=device)
        return scores
    where = device_of(members[0]) if device is None else torch.device(device)
    grids = where.type == "cpu" and any(m.images.mask.shape[1] > 1 for m in members)
    parts = _by_image(images) if grids else _even(members, len(images), where)
    with (
        evaluation_mode(member.model for member in members),
        progress("pairs scored", len(images)) as advance,
    ):
        for part in parts[distributed.rank() :: distributed.size()]:
            left, right = images[part], texts[part]
            member_scores = [_score(member, left, right, where, grids) for member in members]
            scores[part] = sum(member_scores[1:], member_scores[0]).cpu() / len(member_scores)
            advance(len(left) * distributed.size())
    return _gather_scores(scores, images, texts)


def _by_image(images: Tensor) -> list[slice]:
    """Cut pairs into parts of one image and at most `_TEXTS` texts."""
    ends = torch.bincount(images).cumsum(0).unique().tolist()  # type: ignore[no-untyped-call]
    ends = [end for end in ends if end]
    starts = [0, *ends[:-1]]
    return [
        slice(start, min(start + _TEXTS, end))
        for first, end in zip(starts, ends, strict=True)
        for start in range(first, end, _TEXTS)
    ]


def _even(members: Sequence[EmbeddedDataset], pairs: int, device: torch.device) -> list[slice]:
    numbers = max(m.images.tokens[0].numel() + m.texts.tokens[0].numel() for m in members)
    size = max(1, _NUMBERS.get(device.type, _NUMBERS["cuda"]) // max(1, numbers))
    return [slice(start, min(start + size, pairs)) for start in range(0, pairs, size)]


def _score(
    member: EmbeddedDataset, images: Tensor, texts: Tensor, device: torch.device, grid: bool
) -> Tensor:
    right = _fetch(member.texts, texts, device)
    if grid:
        left = member.images.rows(slice(int(images[0]), int(images[0]) + 1)).to(device)
        return member.model.score_matrix(left, right)[0].float()
    return member.model.score_pairs(_fetch(member.images, images, device), right).float()


def _fetch(side: Embeddings, rows: Tensor, device: torch.device) -> Embeddings:
    """Return these rows on the device; a repeated row is copied there once."""
    if side.tokens.device == device:
        return side.rows(rows)
    once, places = rows.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return side.rows(once).to(device).rows(places)


def _gather_scores(scores: Tensor, images: Tensor, texts: Tensor) -> Tensor:
    """Sum the processes' scores in place; each pair was scored by one process, and is 0 elsewhere.

    The check for NaN comes after, so that all processes raise together.
    """
    for part in torch.split(scores, _AT_ONCE):  # views
        part.copy_(distributed.gather(part.to(distributed.device())).sum(0))
    if bool(scores.isnan().any()):
        place = int(scores.isnan().nonzero()[0])
        raise nan_error(int(images[place]), int(texts[place]))
    return scores


@final
class RescoredPairs:
    """Scores of all pairs in two sets of lists; a pair in both is scored once.

    The lists are (I, h) proposed text rows and (T, h') proposed image rows, -1 for none; the mean
    score of several members counts.
    """

    def __init__(
        self,
        members: Sequence[EmbeddedDataset],
        texts: Tensor,
        images: Tensor,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        self._lists: dict[Side, Tensor] = {"image": texts.cpu(), "text": images.cpu()}
        self._count = max(1, len(images))
        places = [self._places(side)[self._lists[side] >= 0] for side in self._lists]
        self._pairs = torch.cat(places).unique()  # type: ignore[no-untyped-call]
        image = torch.div(self._pairs, self._count, rounding_mode="floor")
        text = self._pairs - image * self._count
        self._scores = score_index_pairs(members, image, text, device=device)

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def pairs(self) -> tuple[Pairs, Tensor]:
        """All different pairs, in order of image and then of text, and their (P,) scores."""
        image = torch.div(self._pairs, self._count, rounding_mode="floor")
        return Pairs(image, self._pairs - image * self._count), self._scores

    def count_within(self, depth: int) -> int:
        """Return the number of different pairs in both sets of lists, cut to a length."""
        sides = (
            (self._places(side)[:, :depth], rows[:, :depth]) for side, rows in self._lists.items()
        )
        places = torch.cat([place[rows >= 0] for place, rows in sides])
        return len(places.unique())  # type: ignore[no-untyped-call]

    def scores(self, side: Side) -> Tensor:
        """Return the (Q, h) float32 scores of one side's proposals, -inf where there is none."""
        none = self._lists[side] < 0
        if not len(self._pairs):
            return torch.full(none.shape, -torch.inf)
        place = torch.searchsorted(self._pairs, self._places(side)).clamp_(max=len(self) - 1)
        return self._scores[place].masked_fill_(none, -torch.inf)

    def best(self, side: Side, k: int) -> tuple[Tensor, Tensor]:
        """Return (Q, k) int32 rows and scores of one side, best first; -1 where a list is short.

        Of equal scores the lower row comes first, by the rank keys of `scoring.reducers`.
        """
        return _best(self.scores(side), self._lists[side], k)

    def _places(self, side: Side) -> Tensor:
        """Return a number for each pair, (Q, h), ascending by image and then by text."""
        rows = self._lists[side].long()
        query = torch.arange(len(rows)).unsqueeze(1)
        return query * self._count + rows if side == "image" else rows * self._count + query


def best_in_parts(
    members: Sequence[EmbeddedDataset],
    rows: Tensor,
    side: Side,
    k: int,
    *,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """What `RescoredPairs.best` returns, for lists whose pairs are too many to be held at once.

    A part of the queries is scored at a time, so that memory does not grow with the lists; a pair
    that both sides propose is scored once for each.

    Args:
        members: models with their encodings.
        rows: (Q, h) proposed rows of the other side, -1 for none.
        side: of the queries.
        k: length of a list.
        device: where to compute, as in `stream_scores`.
    """
    found = []
    for queries in torch.split(torch.arange(len(rows)), max(1, PAIRS // 4 // rows.shape[1])):
        part = rows[queries]
        query, place = (part >= 0).nonzero(as_tuple=True)
        own, other = queries[query], part[query, place].long()
        images, texts = (own, other) if side == "image" else (other, own)
        scores = torch.full(part.shape, -torch.inf)
        scores[query, place] = score_index_pairs(members, images, texts, device=device)
        found.append(_best(scores, part, k))
    best, scored = zip(*found, strict=True)
    return torch.cat(best), torch.cat(scored)


def _best(scores: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of (Q, h) rows by their scores, -inf for none."""
    keys = rank_keys(scores, rows.long().clamp(min=0)).masked_fill_(scores.isneginf(), NOTHING)
    keys = sort_descending(keys)[:, :k].contiguous()
    return rows_of(keys).int(), scores_of(keys)
