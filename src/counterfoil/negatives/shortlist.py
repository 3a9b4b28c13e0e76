"""Mining in half precision: a short list from bfloat16 scores, the last word from float32 ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil.engine.kept import EVERY, Keeper
from counterfoil.engine.rerank import Rescored
from counterfoil.engine.sweep import MEMORY, Reducer, sweep
from counterfoil.engine.tiles import Member, Side, Tile, device_of
from counterfoil.engine.topk import TopK
from counterfoil.negatives.certificate import Certificate, certain, disagreement
from counterfoil.negatives.filters import Filters
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.mine import facts_of, half, seen_by

SLACK = 64
SAFETY = 2.0
_SPARSE = {"captions", "pictures", "positive"}  # settings of filters that ask for no score


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
    keep: Path | None = None,
    every: float = EVERY,
    stop: Callable[[], bool] | None = None,
    run: str = "",
) -> tuple[Lists, Certificate]:
    """What `mine` finds, with the whole matrix in bfloat16 and few of its pairs in float32.

    Every query keeps `slack` more than is wanted, these are scored again, and what is not certain
    then (see `Certificate`) is mined again. Given the bound, the lists are those of `mine`, but for
    scores that differ by less than 1e-6, because pairs are multiplied in another order. They are
    the same for any number of processes. Only scores whose large products follow autocast gain,
    such as those of attention; plain cosines are in float32 either way.

    The bound that is taken by default is measured on the short lists, not proven for the others.

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
        keep: folder where the sweep in bfloat16 saves how far it is, see `mine`; what comes after
            it begins anew.
        every: seconds between two saves.
        stop: asked now and then while tiles are scored, see `mine`.
        run: digest of what else the lists depend on.

    Raises:
        ValueError: a number out of range, filters that look at scores, or `keep` holds something
            else.
        WorkStopped: `stop` asked for it.
    """
    _check(texts_per_image, images_per_text, slack, bound, safety, filters)
    images, texts = (len(members[0].images), len(members[0].texts)) if members else (0, 0)
    wanted = max(1, min(texts_per_image, texts)), max(1, min(images_per_text, images))
    near = (
        TopK("image", images, max(1, min(wanted[0] + slack, texts)), owner),
        TopK("text", texts, max(1, min(wanted[1] + slack, images)), owner),
    )
    matrix = _Matrix(members, owner, filters, memory, device, tile, stop)
    matrix.halved(near, keep, every, run)
    rescored = Rescored(members, near[0].rows, near[1].rows, device=device)
    error = max(disagreement(side, rescored) for side in near)
    limit = safety * error if bound is None else bound
    hard_texts, hard_images = (
        matrix.settled(side, rescored, k, limit) for side, k in zip(near, wanted, strict=True)
    )
    counts = images, texts, hard_texts.certain, hard_images.certain
    return (
        Lists(hard_texts.rows, hard_images.rows, half(hard_texts.scores), half(hard_images.scores)),
        Certificate(*counts, len(rescored), error, limit, bound is None),
    )


@final
@dataclass(frozen=True, slots=True)
class _Settled:
    """Lists of one side, and how many of them were certain at once."""

    rows: Tensor
    scores: Tensor
    certain: int


@final
@dataclass(frozen=True, slots=True)
class _Matrix:
    """The scores of all pairs, and how to go through them."""

    members: Sequence[Member]
    owner: Tensor
    filters: Filters | None
    memory: int
    device: torch.device | str | None
    tile: tuple[int, int] | None
    stop: Callable[[], bool] | None

    def halved(self, near: tuple[TopK, TopK], keep: Path | None, every: float, run: str) -> None:
        """Fill the short lists from scores in bfloat16."""
        seen = seen_by(near[0], self.filters), seen_by(near[1], self.filters)
        keeper = None
        if keep or self.stop:
            whole = facts_of(self.members, self.owner, near, self.filters)
            facts = {"run": run, "precision": "bfloat16", **whole}
            kept = dict(zip(("texts", "images"), seen))
            keeper = Keeper(kept, facts, folder=keep, every=every, stop=self.stop)
        kind = torch.device(self.device or (device_of(self.members[0]) if self.members else "cpu"))
        with torch.autocast(kind.type, dtype=torch.bfloat16):
            self._sweep(self.members, seen, keeper)

    def settled(self, near: TopK, rescored: Rescored, k: int, bound: float) -> _Settled:
        """The k best of each short list, and what is not certain from scores in float32."""
        rows, scores = rescored.best(near.query, k)
        first = self.members[0]
        answers = len(first.texts if near.query == "image" else first.images)
        sure = certain(near, answers, scores, bound)
        left = (~sure).nonzero().squeeze(1)
        if len(left):
            lists = self._again(TopK(near.query, near.queries, k, self.owner), left)
            rows[left], scores[left] = lists.rows.cpu()[left], lists.scores.cpu()[left]
        return _Settled(rows, scores, int(sure.sum()))

    def _again(self, lists: TopK, rows: Tensor) -> TopK:
        """Fill the lists of these queries from scores in float32; the others stay empty."""
        first = self.members[0]
        shape = len(first.images), len(first.texts)
        some = self.members
        if len(rows) < lists.queries:
            some = [_asking(member, lists.query, rows) for member in some]
        among = _Among(lists.query, rows, shape, seen_by(lists, self.filters))
        keeper = None if self.stop is None else Keeper({}, {}, stop=self.stop)
        self._sweep(some, [among], keeper)
        return lists

    def _sweep(
        self, members: Sequence[Member], seen: Sequence[Reducer], keeper: Keeper | None
    ) -> None:
        sweep(members, seen, memory=self.memory, device=self.device, tile=self.tile, keeper=keeper)


def _asking(member: Member, side: Side, rows: Tensor) -> Member:
    """The member with these queries only."""
    if side == "image":
        return Member(member.matcher, member.images.rows(rows), member.texts)
    return Member(member.matcher, member.images, member.texts.rows(rows))


@final
class _Among(Reducer):
    """Shows a reducer of the whole matrix what a sweep over some of its queries finds.

    Args:
        side: who asks.
        rows: (q,) long, ascending, the queries that are swept.
        shape: images and texts of the whole matrix.
        seen: the reducer.
    """

    def __init__(self, side: Side, rows: Tensor, shape: tuple[int, int], seen: Reducer) -> None:
        self._side, self._rows, self._shape, self._seen = side, rows, shape, seen

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Make room for all queries."""
        self._rows = self._rows.to(device)
        self._seen.start(*self._shape, device)

    def update(self, tile: Tile) -> None:
        """Pass on the tile as it lies in the whole matrix."""
        if self._side == "image":
            self._seen.update(Tile(tile.scores, self._rows[tile.images], tile.texts))
        else:
            self._seen.update(Tile(tile.scores, tile.images, self._rows[tile.texts]))

    def merge(self) -> None:
        """Merge the lists."""
        self._seen.merge()


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
