"""Retrieval by cascade: a first model ranks everything, others put the head of each list in order.

What a transformer reads pair by pair costs too much to rank whole. What stands outside a shortlist
keeps the first model's order, behind the shortlist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import Pairs
from counterfoil.evaluation.metrics import (
    EvaluationReport,
    EvaluationSetting,
    Protocol,
    Tie,
    check_tie,
    rank_positions,
)
from counterfoil.evaluation.protocols import (
    WHOLE,
    check_pools,
    evaluate_protocol,
    fold_parts,
    report_of,
)
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.pairs import RescoredPairs
from counterfoil.scoring.reducers import Ranks, TopK
from counterfoil.scoring.stream import MEMORY, stream_scores

AFFORDABLE = 100_000  # pairs that are all scored, whether that is asked for or not
DEPTH = 50


@final
@dataclass(frozen=True, slots=True)
class Shortlisting:
    """Who shortlists, and how much.

    Attributes:
        first: models with what they encoded; their mean score ranks.
        name: of them together.
        depth: how many counterparts of a query are re-ranked.
        full: rank everything too, to tell what the shortlists lose; small splits are in any case.

    Raises:
        ValueError: no model, or a depth below 1.
    """

    first: tuple[EmbeddedDataset, ...]
    name: str
    depth: int = DEPTH
    full: bool = False

    def __post_init__(self) -> None:
        if not self.first:
            raise ValueError("no model is there to shortlist; name at least one")
        check_depth(self.depth)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Shortlists:
    """What the shortlists let through.

    Attributes:
        ceiling: percent of queries whose shortlist holds a true counterpart, i2t and t2i; no
            re-ranking recalls more.
        first: as the first models rank.
        full: as the others rank everything; None where they did not.
    """

    ceiling: tuple[float, float]
    first: EvaluationReport
    full: EvaluationReport | None

    def describe(self, reached: EvaluationReport) -> str:
        """The ceiling, and what was lost of the full ranking, in a sentence.

        Args:
            reached: with these shortlists.
        """
        i2t, t2i = self.ceiling
        said = f"{reached.setting.shortlists()}; ceiling of any R@K: i2t {i2t:.1f}, t2i {t2i:.1f}"
        if self.full is None:
            return f"{said}; the full ranking was not made"
        lost = self.full.rsum - reached.rsum
        return f"{said}; RSum lost against the full ranking: {lost:.1f}"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    """Retrieval by cascade.

    Attributes:
        report: re-ranked.
        shortlists: what they let through.
        texts: (I, K) first texts of every image, -1 for none; within its fold where there are some.
        text_scores: (I, K), -inf for none.
        images: (T, K) first images of every text.
        image_scores: (T, K).
    """

    report: EvaluationReport
    shortlists: Shortlists
    texts: Tensor
    text_scores: Tensor
    images: Tensor
    image_scores: Tensor


def check_depth(depth: int) -> None:
    """Refuse shortlists of nothing."""
    if depth < 1:
        raise ValueError(f"depth={depth}: at least 1 counterpart of a query has to be re-ranked")


def evaluate_cascade(
    members: Sequence[EmbeddedDataset],
    by: Shortlisting,
    text_to_image: Tensor,
    image_count: int,
    protocol: Protocol = WHOLE,
    *,
    head: int,
    tie: Tie = "row",
    dataset: str = "",
    split: str = "",
    seed: int | None = None,
    memory: int = MEMORY,
    besides: Pairs | None = None,
    decided: str = "",
) -> Cascade:
    """Rank by some models what others have shortlisted, both ways, and count.

    A pair on the shortlists of its image and of its text is scored once. Shortlists as long as the
    split give the ranking of `counterfoil.evaluation.protocols.evaluate_protocol`, bit for bit.

    Args:
        members: encoded images and texts under the models that re-rank.
        by: who shortlists.
        text_to_image: (T,) image row of each text; -1 for a text of no image.
        image_count: how many images there are.
        protocol: how to cut the split; shortlists are made within folds.
        head: length of the lists that are returned.
        tie: what becomes of equal scores; of those, shortlists take the lower row.
        dataset: for the record.
        split: for the record.
        seed: for the record.
        memory: bytes for encodings on the device and tiles kept.
        besides: rows of pairs that are true besides.
        decided: for the record.

    Raises:
        ValueError: pools and `text_to_image` do not fit together, or the protocol does not fit the
            split.
    """
    check_tie(tie)
    for member in (*members, *by.first):
        check_pools(member, image_count, len(text_to_image))
    setting = EvaluationSetting(
        protocol, image_count, len(text_to_image), tie, len(members), dataset, split, seed
    )
    setting = replace(setting, decided=decided)
    ranker = _Ranker(members, by, head, image_count, len(text_to_image), tie, memory)
    report = report_of(
        ranker, text_to_image, replace(setting, first=by.name, depth=by.depth), besides
    )
    done = iter(ranker.firsts)
    alone = replace(setting, members=len(by.first), seed=None)
    first = report_of(lambda *_: next(done), text_to_image, alone)
    full = None
    if ranker.covered:
        full = replace(report, setting=setting)
    elif by.full or image_count * len(text_to_image) <= AFFORDABLE:
        full = evaluate_protocol(
            members,
            text_to_image,
            image_count,
            protocol,
            tie=tie,
            dataset=dataset,
            split=split,
            seed=seed,
            besides=besides,
            decided=decided,
        )
    pairs = zip(ranker.hits, report.ranked, strict=True)
    i2t, t2i = (100.0 * hit[ranked.counted].double().mean().item() for hit, ranked in pairs)
    (texts, images), (text_scores, image_scores) = ranker.rows, ranker.scores
    shortlists = Shortlists((i2t, t2i), first, full)
    return Cascade(report, shortlists, texts, text_scores, images, image_scores)


@final
class _Swept:
    """Ranks and first counterparts of some images and texts, from one pass over all pairs."""

    def __init__(
        self,
        members: Sequence[EmbeddedDataset],
        text_to_image: Tensor,
        besides: Pairs | None,
        k: int,
        memory: int,
    ) -> None:
        images, texts = len(members[0].images), len(members[0].texts)
        self.orders = (
            Ranks("image", images, text_to_image, besides),
            Ranks("text", texts, text_to_image, besides),
        )
        self.lists = TopK("image", images, min(k, texts)), TopK("text", texts, min(k, images))
        stream_scores(members, [*self.orders, *self.lists], memory=memory)

    def ranks(self, tie: Tie) -> tuple[Tensor, Tensor]:
        i2t, t2i = (order.ranks(tie).cpu() for order in self.orders)
        return i2t, t2i


@final
class _Ranker:
    """Ranks fold after fold, and remembers what else there is to know of it."""

    def __init__(
        self,
        members: Sequence[EmbeddedDataset],
        by: Shortlisting,
        head: int,
        images: int,
        texts: int,
        tie: Tie,
        memory: int,
    ) -> None:
        self.members, self.by, self.tie, self.memory = members, by, tie, memory
        self.head, self.covered = head, by.depth >= max(images, texts)
        self.firsts: list[tuple[Tensor, Tensor]] = []
        self.hits = torch.zeros(images, dtype=torch.bool), torch.zeros(texts, dtype=torch.bool)
        self.rows = torch.full((images, head), -1), torch.full((texts, head), -1)
        self.scores = tuple(torch.full(rows.shape, -torch.inf) for rows in self.rows)

    def __call__(
        self, images: Tensor, texts: Tensor, text_to_image: Tensor, besides: Pairs | None
    ) -> tuple[Tensor, Tensor]:
        """Ranks in both directions of a fold."""
        members, fold = fold_parts(self.members, images, texts), (images, texts)
        first = _Swept(
            fold_parts(self.by.first, *fold), text_to_image, besides, self.by.depth, self.memory
        )
        self.firsts.append(first.ranks(self.tie))
        lists = first.lists[0].rows.cpu().long(), first.lists[1].rows.cpu().long()
        truth = _truth(lists, text_to_image, besides)
        for place, rows in enumerate(fold):
            self.hits[place][rows] = truth[place].any(1)
        if self.covered:
            swept = _Swept(members, text_to_image, besides, self.head, self.memory)
            for place, best in enumerate(swept.lists):
                self._keep(place, fold, best.rows.cpu(), best.scores.cpu())
            return swept.ranks(self.tie)
        rescored = RescoredPairs(members, *lists)
        self._keep(0, fold, *rescored.best("image", self.head))
        self._keep(1, fold, *rescored.best("text", self.head))
        scores = rescored.scores("image"), rescored.scores("text")
        i2t, t2i = (
            _reranked(*each, self.tie)
            for each in zip(scores, lists, truth, self.firsts[-1], strict=True)
        )
        return i2t, t2i

    def _keep(self, side: int, fold: tuple[Tensor, Tensor], rows: Tensor, scores: Tensor) -> None:
        """The first counterparts of a fold, by their rows in the split."""
        asked, answers = fold[side], fold[1 - side]
        columns = torch.arange(rows.shape[1])
        found = answers[rows.long().clamp(min=0)].masked_fill(rows < 0, -1)
        self.rows[side][asked.unsqueeze(1), columns] = found
        self.scores[side][asked.unsqueeze(1), columns] = scores


def _truth(
    lists: tuple[Tensor, Tensor], text_to_image: Tensor, besides: Pairs | None
) -> tuple[Tensor, Tensor]:
    """Where true counterparts stand on the lists of images and of texts."""
    texts, images = lists
    described = text_to_image[texts.clamp(min=0)].masked_fill(texts < 0, -1)
    asked = torch.arange(len(texts)).unsqueeze(1)
    found = described == asked, (images == text_to_image.unsqueeze(1)) & (images >= 0)
    if besides is not None:
        for image, text in zip(besides.image.tolist(), besides.text.tolist(), strict=True):
            found[0][image] |= texts[image] == text
            found[1][text] |= images[text] == image
    return found


def _reranked(scores: Tensor, rows: Tensor, truth: Tensor, behind: Tensor, tie: Tie) -> Tensor:
    """(Q,) ranks: among the shortlist where something true is on it, else as `behind` has it."""
    last = torch.iinfo(rows.dtype).max
    order = rows.masked_fill(rows < 0, last).argsort(1)  # of equal scores the lower row comes first
    found = rank_positions(scores.gather(1, order), truth.gather(1, order), tie)
    rest = behind.maximum((rows >= 0).sum(1)).masked_fill(behind < 0, -1)
    return rest.where(found < 0, found)
