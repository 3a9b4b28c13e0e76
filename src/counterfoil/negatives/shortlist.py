"""Mining in half precision: a short list from bfloat16 scores, the last word from float32 ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import final

import torch
from torch import Tensor

from counterfoil.engine.sweep import MEMORY, Reducer, sweep
from counterfoil.engine.tiles import Member, Tile, device_of
from counterfoil.engine.topk import TopK
from counterfoil.negatives.filters import Filters
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.mine import half
from counterfoil.negatives.proposed import Rescored

SLACK = 64
SAFETY = 2.0
_SPARSE = {"captions", "pictures", "positive"}  # settings of filters that ask for no score


@final
@dataclass(frozen=True, slots=True)
class Certificate:
    """Why lists from half precision are those of single precision.

    A query whose k-th score in float32 is above the last bfloat16 score on its short list by more
    than `bound` can have missed nothing, as long as no score of the matrix is off by more than
    that. All others were mined again in float32.

    Attributes:
        images: how many images asked.
        texts: how many texts asked.
        certain_images: images whose first lists were certain.
        certain_texts: texts whose first lists were certain.
        pairs: how many pairs were scored again in float32.
        error: largest difference between the two scores of a pair among these.
        bound: the difference that no pair was taken to exceed.
        measured: whether the bound is a multiple of `error`, or was given.
    """

    images: int
    texts: int
    certain_images: int
    certain_texts: int
    pairs: int
    error: float
    bound: float
    measured: bool

    def in_words(self) -> str:
        """The whole of it as a sentence."""
        source = f"{self.bound / self.error:g} times that" if self.error else "the same"
        source = source if self.measured else "as given"
        return (
            f"{self.certain_images:,} of {self.images:,} images and {self.certain_texts:,} of "
            f"{self.texts:,} texts were certain at once, the others were mined again in float32; "
            f"{self.pairs:,} pairs were scored twice and differed by {self.error:.2g} at most, and "
            f"the bound was {self.bound:.2g}, {source}"
        )


def mine_halved(
    members: Sequence[Member],
    owner: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    slack: int = SLACK,
    bound: float | None = None,
    safety: float = SAFETY,
    memory: int = MEMORY,
    device: torch.device | str | None = None,
    tile: tuple[int, int] | None = None,
    filters: Filters | None = None,
) -> tuple[Lists, Certificate]:
    """What `mine` finds, with the whole matrix in bfloat16 and few of its pairs in float32.

    Every query keeps `slack` more than is wanted, these are scored again, and what is not certain
    then (see `Certificate`) is mined again. Given the bound, the lists are those of `mine`, but for
    scores that differ by less than 1e-6, because pairs are multiplied in another order. They are
    the same for any number of processes. Only scores whose large products follow autocast gain,
    such as those of attention; plain cosines are in float32 either way.

    Args:
        members: matchers with what they encoded; several are an ensemble.
        owner: (T,) image of each text, -1 for none; true pairs are left out.
        texts_per_image: length of an image's list, at most the number of texts.
        images_per_text: length of a text's list, at most the number of images.
        slack: how many more than that are scored again; more of it leaves less to mine again.
        bound: by how much no score in bfloat16 is off, where that is known.
        safety: the bound is otherwise so many times the largest error on the short lists.
        memory: bytes, see `sweep`.
        device: where to compute, see `sweep`.
        tile: images and texts scored together, see `sweep`.
        filters: what else to leave out; near duplicates only.

    Raises:
        ValueError: a number out of range, or filters that look at scores.
    """
    _check(texts_per_image, images_per_text, slack, bound, safety, filters)
    images, texts = (len(members[0].images), len(members[0].texts)) if members else (0, 0)
    lengths = max(1, min(texts_per_image, texts)), max(1, min(images_per_text, images))
    near = (
        TopK("image", images, max(1, min(lengths[0] + slack, texts)), owner),
        TopK("text", texts, max(1, min(lengths[1] + slack, images)), owner),
    )
    kind = device_of(members[0]) if device is None and members else torch.device(device or "cpu")
    with torch.autocast(kind.type, dtype=torch.bfloat16):
        seen = [_seen(side, filters) for side in near]
        sweep(members, seen, memory=memory, device=device, tile=tile)
    rescored = Rescored(members, near[0].rows, near[1].rows, device=device)
    error = max(_error(side, rescored) for side in near)
    limit = safety * error if bound is None else bound
    found, certain = [], []
    for side, k in zip(near, lengths, strict=True):
        rows, scores = rescored.hardest(side.query, k)
        sure = _certain(side, scores, limit)
        certain.append(int(sure.sum()))
        left = (~sure).nonzero().squeeze(1)
        if len(left):
            again = _again(members, TopK(side.query, side.queries, k, owner), left, filters)
            sweep(*again, memory=memory, device=device, tile=tile)
            hard = again[1][0].lists
            rows[left], scores[left] = hard.rows.cpu()[left], hard.scores.cpu()[left]
        found.append((rows, half(scores)))
    (hard_texts, text_scores), (hard_images, image_scores) = found
    certificate = Certificate(
        images, texts, certain[0], certain[1], len(rescored), error, limit, bound is None
    )
    return Lists(hard_texts, hard_images, text_scores, image_scores), certificate


def _error(side: TopK, rescored: Rescored) -> float:
    """Largest difference between the two scores of a pair on the short lists."""
    listed = side.rows.cpu() >= 0
    if not bool(listed.any()):
        return 0.0
    coarse, fine = side.scores.cpu()[listed], rescored.scores(side.query)[listed]
    return float((coarse.double() - fine.double()).abs().max())


def _certain(near: TopK, scores: Tensor, bound: float) -> Tensor:
    """(Q,) whether nothing that was left out can belong to a list.

    Args:
        near: the short lists.
        scores: (Q, k) float32 scores of the lists, best first.
        bound: by how much no score is off.
    """
    last = near.scores.cpu()[:, -1].double()
    return last.isneginf() | (scores[:, -1].double() > last + bound)


@final
class _Among(Reducer):
    """Shows a reducer of the whole matrix what a sweep over some of its queries finds.

    Attributes:
        lists: where the results are.
    """

    def __init__(self, lists: TopK, rows: Tensor, shape: tuple[int, int], seen: Reducer) -> None:
        self.lists, self._rows, self._shape, self._seen = lists, rows, shape, seen

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Make room for all queries."""
        self._rows = self._rows.to(device)
        self._seen.start(*self._shape, device)

    def update(self, tile: Tile) -> None:
        """Pass on the tile as it lies in the whole matrix."""
        if self.lists.query == "image":
            self._seen.update(Tile(tile.scores, self._rows[tile.images], tile.texts))
        else:
            self._seen.update(Tile(tile.scores, tile.images, self._rows[tile.texts]))

    def merge(self) -> None:
        """Merge the lists."""
        self._seen.merge()


def _again(
    members: Sequence[Member], lists: TopK, rows: Tensor, filters: Filters | None
) -> tuple[list[Member], list[_Among]]:
    """A sweep over some queries: the members that encoded them, and what keeps their lists."""
    shape = len(members[0].images), len(members[0].texts)
    whole = len(rows) == lists.queries
    some = [
        m
        if whole
        else Member(m.matcher, m.images.rows(rows), m.texts)
        if lists.query == "image"
        else Member(m.matcher, m.images, m.texts.rows(rows))
        for m in members
    ]
    return some, [_Among(lists, rows, shape, _seen(lists, filters))]


def _seen(lists: TopK, filters: Filters | None) -> Reducer:
    """What sees the tiles in place of the lists."""
    return filters.on(lists.query, lists) if filters else lists


def _check(
    texts: int,
    images: int,
    slack: int,
    bound: float | None,
    safety: float,
    filters: Filters | None,
) -> None:
    for name, given in (("texts", texts), ("images", images)):
        if given < 1:
            raise ValueError(f"{name}={given}: a list of negatives has at least 1")
    if slack < 0:
        raise ValueError(f"slack={slack}: 0 or more are kept besides the wanted ones")
    if bound is not None and not bound >= 0:
        raise ValueError(f"bound={bound}: 0 or more is needed")
    if not safety >= 1:
        raise ValueError(f"safety={safety}: at least 1 times the measured error is needed")
    if filters is None:
        return
    for setting in fields(filters.plan):
        if setting.name not in _SPARSE and getattr(filters.plan, setting.name) != setting.default:
            raise ValueError(
                f"{setting.name}={getattr(filters.plan, setting.name)} judges scores, which half "
                "precision moves across its border; mine in float32, or filter by captions and "
                "pictures only"
            )
