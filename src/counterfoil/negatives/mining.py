"""Offline hard negatives, listed once over the whole data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import final
from zlib import crc32

import torch
from torch import Tensor

from counterfoil.negatives.filters import FilteredReducer, NegativeFilters
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.checkpoint import EVERY, Fact, StreamCheckpoint
from counterfoil.scoring.embedding_store import model_digest
from counterfoil.scoring.encode import EmbeddedDataset, ScoreTile, Side, device_of
from counterfoil.scoring.pairs import RescoredPairs
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import MEMORY, ScoreReducer, stream_scores


def mine_lists(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    memory: int = MEMORY,
    device: torch.device | str | None = None,
    tile: tuple[int, int] | None = None,
    filters: NegativeFilters | None = None,
    keep: Path | None = None,
    every: float = EVERY,
    stop: Callable[[], bool] | None = None,
    run: str = "",
) -> HardNegativeLists:
    """The hardest wrong texts of every image and wrong images of every text, from one pass.

    AOQ (https://arxiv.org/abs/2003.03669), section 3.2. Departs from the authors' code in: float32
    scores of any model instead of float16 cosines; equal scores go to the lower row. The lists
    are the same, bit for bit, for any number of processes and however often it was stopped.

    Args:
        members: models with what they encoded; several are an ensemble.
        text_to_image: (T,) image of each text, -1 for none; true pairs are left out.
        texts_per_image: length of an image's list, at most the number of texts.
        images_per_text: length of a text's list, at most the number of images.
        memory: bytes, see `sweep`.
        device: where to compute, see `sweep`.
        tile: images and texts scored together, see `sweep`.
        filters: what else to leave out of the lists.
        keep: folder that all processes share, where each saves how far it is; what is there is
            taken up. Whoever saves the lists removes it.
        every: seconds between two saves.
        stop: asked now and then; when it answers True on any process, all of them stop.
        run: digest of what else the lists depend on: the data, guides.

    Raises:
        ValueError: a list shorter than 1, or `keep` holds something else.
        WorkStopped: `stop` asked for it.
    """
    for name, given in (("texts", texts_per_image), ("images", images_per_text)):
        if given < 1:
            raise ValueError(f"{name}={given}: a list of negatives has at least 1")
    images, texts = (len(members[0].images), len(members[0].texts)) if members else (0, 0)
    hard_texts = TopK("image", images, max(1, min(texts_per_image, texts)), text_to_image)
    hard_images = TopK("text", texts, max(1, min(images_per_text, images)), text_to_image)
    lists = hard_texts, hard_images
    seen = mining_members(hard_texts, filters), mining_members(hard_images, filters)
    keeper = None
    if keep or stop:
        facts = {
            "run": run,
            "precision": "float32",
            **mining_fingerprint(members, text_to_image, lists, filters),
        }
        kept = dict(zip(("texts", "images"), seen))
        keeper = StreamCheckpoint(kept, facts, folder=keep, every=every, stop=stop)
    stream_scores(members, seen, memory=memory, device=device, tile=tile, keeper=keeper)
    return HardNegativeLists(
        hard_texts.rows.cpu(),
        hard_images.rows.cpu(),
        half_members(hard_texts.scores),
        half_members(hard_images.scores),
    )


def mining_fingerprint(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    lists: tuple[TopK, TopK],
    filters: NegativeFilters | None,
) -> dict[str, Fact]:
    """What lists depend on, in words.

    Args:
        members: models with what they encoded.
        text_to_image: (T,) image of each text.
        lists: those of images, and those of texts.
        filters: what else is left out.
    """
    return {
        "models": ", ".join(model_digest(member.model) for member in members),
        "images and texts": ", ".join(f"{len(m.images)} x {len(m.texts)}" for m in members),
        "true pairs": crc32(text_to_image.cpu().contiguous().numpy().tobytes()),
        "texts of an image": lists[0].k,
        "images of a text": lists[1].k,
        "filters": "; ".join(filters.plan.describe()) if filters else "",
    }


def mining_members(lists: TopK, filters: NegativeFilters | None) -> TopK | FilteredReducer:
    """What sees the tiles in place of the lists."""
    if filters is None:
        return lists
    seen = filters.on(lists.query, lists)
    assert isinstance(seen, TopK | FilteredReducer)
    return seen


def half_members(scores: Tensor) -> Tensor:
    """float16 on the CPU; a finite score stays finite."""
    largest = torch.finfo(torch.half).max
    finite = scores.clamp(-largest, largest).half()
    return torch.where(scores.isinf(), scores.half(), finite).cpu().contiguous()


# Why lists from half precision are those of single precision.


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

    def describe(self) -> str:
        """The whole of it as a sentence."""
        source = f"{self.bound / self.error:g} times that" if self.error else "the same"
        source = source if self.measured else "as given"
        return (
            f"{self.certain_images:,} of {self.images:,} images and {self.certain_texts:,} of "
            f"{self.texts:,} texts were certain at once, the others were mined again in float32; "
            f"{self.pairs:,} pairs were scored twice and differed by {self.error:.2g} at most, and "
            f"the bound was {self.bound:.2g}, {source}"
        )


def score_disagreement(near: TopK, rescored: RescoredPairs) -> float:
    """Largest difference between the two scores of a pair on the short lists.

    Args:
        near: the short lists, merged.
        rescored: the scores of their pairs in float32.
    """
    listed = near.rows.cpu() >= 0
    if not bool(listed.any()):
        return 0.0
    coarse, fine = near.scores.cpu()[listed], rescored.scores(near.query)[listed]
    return float((coarse.double() - fine.double()).abs().max())


def certain_entries(near: TopK, answers: int, scores: Tensor, bound: float) -> Tensor:
    """(Q,) whether nothing that was left out can belong to a list.

    Args:
        near: the short lists, merged.
        answers: how many counterparts there are; lists as long as that have left out nothing.
        scores: (Q, k) float32 scores of the lists, best first.
        bound: by how much no score is off.
    """
    last = near.scores.cpu()[:, -1].double()
    return last.isneginf() | (near.k >= answers) | (scores[:, -1].double() > last + bound)


# Mining in half precision: a short list from bfloat16 scores, the last word from float32 ones.


SLACK = 64
SAFETY = 2.0
_SPARSE = {"captions", "pictures", "positive"}  # settings of filters that ask for no score


def mine_half_precision(
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    slack: int = SLACK,
    bound: float | None = None,
    safety: float = SAFETY,
    memory: int = MEMORY,
    device: torch.device | str | None = None,
    tile: tuple[int, int] | None = None,
    filters: NegativeFilters | None = None,
    keep: Path | None = None,
    every: float = EVERY,
    stop: Callable[[], bool] | None = None,
    run: str = "",
) -> tuple[HardNegativeLists, Certificate]:
    """What `mine` finds, with the whole matrix in bfloat16 and few of its pairs in float32.

    Every query keeps `slack` more than is wanted, these are scored again, and what is not certain
    then (see `Certificate`) is mined again. Given the bound, the lists are those of `mine`, but for
    scores that differ by less than 1e-6, because pairs are multiplied in another order. They are
    the same for any number of processes. Only scores whose large products follow autocast gain,
    such as those of attention; plain cosines are in float32 either way.

    The bound that is taken by default is measured on the short lists, not proven for the others.

    Args:
        members: models with what they encoded; several are an ensemble.
        text_to_image: (T,) image of each text, -1 for none; true pairs are left out.
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
        TopK("image", images, max(1, min(wanted[0] + slack, texts)), text_to_image),
        TopK("text", texts, max(1, min(wanted[1] + slack, images)), text_to_image),
    )
    matrix = _Matrix(members, text_to_image, filters, memory, device, tile, stop)
    matrix.halved(near, keep, every, run)
    rescored = RescoredPairs(members, near[0].rows, near[1].rows, device=device)
    error = max(score_disagreement(side, rescored) for side in near)
    limit = safety * error if bound is None else bound
    hard_texts, hard_images = (
        matrix.settled(side, rescored, k, limit) for side, k in zip(near, wanted, strict=True)
    )
    counts = images, texts, hard_texts.certain, hard_images.certain
    return (
        HardNegativeLists(
            hard_texts.rows,
            hard_images.rows,
            half_members(hard_texts.scores),
            half_members(hard_images.scores),
        ),
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

    members: Sequence[EmbeddedDataset]
    text_to_image: Tensor
    filters: NegativeFilters | None
    memory: int
    device: torch.device | str | None
    tile: tuple[int, int] | None
    stop: Callable[[], bool] | None

    def halved(self, near: tuple[TopK, TopK], keep: Path | None, every: float, run: str) -> None:
        """Fill the short lists from scores in bfloat16."""
        seen = mining_members(near[0], self.filters), mining_members(near[1], self.filters)
        keeper = None
        if keep or self.stop:
            whole = mining_fingerprint(self.members, self.text_to_image, near, self.filters)
            facts = {"run": run, "precision": "bfloat16", **whole}
            kept = dict(zip(("texts", "images"), seen))
            keeper = StreamCheckpoint(kept, facts, folder=keep, every=every, stop=self.stop)
        kind = torch.device(self.device or (device_of(self.members[0]) if self.members else "cpu"))
        with torch.autocast(kind.type, dtype=torch.bfloat16):
            self._sweep(self.members, seen, keeper)

    def settled(self, near: TopK, rescored: RescoredPairs, k: int, bound: float) -> _Settled:
        """The k best of each short list, and what is not certain from scores in float32."""
        rows, scores = rescored.best(near.query, k)
        first = self.members[0]
        answers = len(first.texts if near.query == "image" else first.images)
        sure = certain_entries(near, answers, scores, bound)
        left = (~sure).nonzero().squeeze(1)
        if len(left):
            lists = self._again(TopK(near.query, near.queries, k, self.text_to_image), left)
            rows[left], scores[left] = lists.rows.cpu()[left], lists.scores.cpu()[left]
        return _Settled(rows, scores, int(sure.sum()))

    def _again(self, lists: TopK, rows: Tensor) -> TopK:
        """Fill the lists of these queries from scores in float32; the others stay empty."""
        first = self.members[0]
        shape = len(first.images), len(first.texts)
        some = self.members
        if len(rows) < lists.queries:
            some = [_asking(member, lists.query, rows) for member in some]
        among = _Among(lists.query, rows, shape, mining_members(lists, self.filters))
        keeper = None if self.stop is None else StreamCheckpoint({}, {}, stop=self.stop)
        self._sweep(some, [among], keeper)
        return lists

    def _sweep(
        self,
        members: Sequence[EmbeddedDataset],
        seen: Sequence[ScoreReducer],
        keeper: StreamCheckpoint | None,
    ) -> None:
        stream_scores(
            members, seen, memory=self.memory, device=self.device, tile=self.tile, keeper=keeper
        )


def _asking(member: EmbeddedDataset, side: Side, rows: Tensor) -> EmbeddedDataset:
    """The member with these queries only."""
    if side == "image":
        return EmbeddedDataset(member.model, member.images.rows(rows), member.texts)
    return EmbeddedDataset(member.model, member.images, member.texts.rows(rows))


@final
class _Among(ScoreReducer):
    """Shows a reducer of the whole matrix what a sweep over some of its queries finds.

    Args:
        side: who asks.
        rows: (q,) long, ascending, the queries that are swept.
        shape: images and texts of the whole matrix.
        seen: the reducer.
    """

    def __init__(
        self, side: Side, rows: Tensor, shape: tuple[int, int], seen: ScoreReducer
    ) -> None:
        self._side, self._rows, self._shape, self._seen = side, rows, shape, seen

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Make room for all queries."""
        self._rows = self._rows.to(device)
        self._seen.start(*self._shape, device)

    def update(self, tile: ScoreTile) -> None:
        """Pass on the tile as it lies in the whole matrix."""
        if self._side == "image":
            self._seen.update(ScoreTile(tile.scores, self._rows[tile.images], tile.texts))
        else:
            self._seen.update(ScoreTile(tile.scores, tile.images, self._rows[tile.texts]))

    def merge(self) -> None:
        """Merge the lists."""
        self._seen.merge()


def _check(
    texts: int,
    images: int,
    slack: int,
    bound: float | None,
    safety: float,
    filters: NegativeFilters | None,
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


# Coarse to fine: one model proposes negatives, another one keeps those it finds hardest.


def rerank_proposals(
    proposed: HardNegativeLists,
    members: Sequence[EmbeddedDataset],
    text_to_image: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    device: torch.device | str | None = None,
) -> HardNegativeLists:
    """The hardest of the negatives that another model has proposed, by these models' scores.

    An embedding model lists, with `mine`, more than is wanted; a model that is dear to ask scores
    those pairs only. What was not proposed cannot come back: with proposals as long as the data set
    the lists are those of `mine`, but for scores that differ by less than 1e-6, because pairs are
    multiplied in another order. They are the same for any number of processes.

    Args:
        proposed: another model's lists of the same data set.
        members: models with what they encoded; several are an ensemble.
        text_to_image: (T,) image of each text, -1 for none; true pairs are left out.
        texts_per_image: length of an image's list, at most what was proposed.
        images_per_text: length of a text's list, at most what was proposed.
        device: where to compute, see `sweep`.

    Raises:
        ValueError: no model, a list shorter than 1 or longer than what was proposed, or proposals
            for another data set.
    """
    texts, images = proposed.texts.cpu(), proposed.images.cpu()
    _check_proposed(members, texts, images)
    for name, given, many in (
        ("texts", texts_per_image, texts.shape[1]),
        ("images", images_per_text, images.shape[1]),
    ):
        if not 1 <= given <= many:
            raise ValueError(
                f"{name}={given}: 1 to {many} can be kept of {many} proposed; keep fewer, or "
                "propose more"
            )
    own = text_to_image.cpu().int()
    rows = torch.arange(len(texts), dtype=torch.int32).unsqueeze(1)
    texts = texts.masked_fill(own[texts.long()] == rows, -1)
    images = images.masked_fill(images == own.unsqueeze(1), -1)
    rescored = RescoredPairs(members, texts, images, device=device)
    hard_texts, text_scores = rescored.best("image", texts_per_image)
    hard_images, image_scores = rescored.best("text", images_per_text)
    return HardNegativeLists(
        hard_texts, hard_images, half_members(text_scores), half_members(image_scores)
    )


def _check_proposed(members: Sequence[EmbeddedDataset], texts: Tensor, images: Tensor) -> None:
    have = len(texts), len(images)
    if not members:
        raise ValueError("no model is there to look at what was proposed; give at least one")
    for member in members:
        want = len(member.images), len(member.texts)
        if have != want:
            raise ValueError(
                f"the proposals are for {have[0]} images and {have[1]} texts, but {want[0]} and "
                f"{want[1]} were encoded; propose from the same split"
            )
    for what, rows, count in (("text", texts, have[1]), ("image", images, have[0])):
        if rows.numel() and int(rows.max()) >= count:
            raise ValueError(
                f"{what} row {int(rows.max())} was proposed, but there are {count}; propose from "
                "the same split"
            )
