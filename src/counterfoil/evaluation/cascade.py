"""Retrieval by cascade: a first model ranks everything, others re-rank the head of each list.

Cross-encoders, which read an image and a text together, are too slow to rank a whole split. Items
outside a shortlist follow behind it in the order of the first model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import Pairs
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.metrics import (
    EvaluationReport,
    EvaluationSetting,
    Protocol,
    rank_positions,
    tied_positions,
)
from counterfoil.evaluation.protocols import (
    WHOLE,
    SideRanks,
    evaluate_protocol,
    fold_parts,
    report_of,
    setting_of,
)
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.pairs import RescoredPairs
from counterfoil.scoring.reducers import Ranks, Tie, TopK
from counterfoil.scoring.stream import stream_scores

AFFORDABLE = 100_000  # pairs up to which the full ranking is always made
DEPTH = 50  # of a shortlist
DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # of shorter ones that are measured, too


@final
@dataclass(frozen=True, slots=True)
class Shortlister:
    """First models of a cascade, and the length of their shortlists.

    Attributes:
        first: models with their embeddings; their mean score ranks.
        name: of the models together.
        depth: number of items of each query that are re-ranked.
        full: rank everything too, to measure the loss by shortlists; small splits always do.

    Raises:
        ValueError: no model, or a depth below 1.
    """

    first: tuple[EmbeddedDataset, ...]
    name: str
    depth: int = DEPTH
    full: bool = False

    def __post_init__(self) -> None:
        if not self.first:
            raise ValueError("no model makes the shortlists; name at least one")
        check_depth(self.depth)


@final
@dataclass(frozen=True, slots=True, eq=False)
class CascadePoint:
    """A cascade with shortlists of one length."""

    depth: int  # pairs that are scored for a query
    pairs: int  # different pairs that are scored for all queries, of both directions
    report: EvaluationReport  # the ranking


@final
@dataclass(frozen=True, slots=True, eq=False)
class ShortlistReport:
    """Quality of the shortlists.

    Attributes:
        ceiling: percent of queries whose shortlist holds a positive, i2t and t2i; an upper bound
            of every recall.
        first: ranking by the first models alone.
        full: ranking of everything by the other models; None where it was not made.
        curve: the same cascade with shorter lists, up to those in use; () where these are as long
            as the split.
    """

    ceiling: tuple[float, float]
    first: EvaluationReport
    full: EvaluationReport | None
    curve: tuple[CascadePoint, ...] = ()

    def describe(self, reached: EvaluationReport) -> str:
        """The ceiling, and the loss of `reached` against the full ranking, in a sentence."""
        (i2t, t2i), depth = self.ceiling, reached.setting.shortlists()
        ceiling = f"{depth}; ceiling of any R@K: i2t {i2t:.1f}, t2i {t2i:.1f}"
        if self.full is None:
            return f"{ceiling}; the full ranking was not made"
        loss = self.full.rsum - reached.rsum
        return f"{ceiling}; RSum lost against the full ranking: {loss:.1f}"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    """What a cascade retrieves: shortlists by a fast model, ordered by a slow one.

    Attributes:
        report: re-ranked.
        shortlists: their quality.
        texts: (I, K) first texts of every image, -1 for none; within its fold where there are some.
        text_scores: (I, K), -inf for none.
        images: (T, K) first images of every text.
        image_scores: (T, K).
    """

    report: EvaluationReport
    shortlists: ShortlistReport
    texts: Tensor
    text_scores: Tensor
    images: Tensor
    image_scores: Tensor


def check_depth(depth: int) -> None:
    """Refuse a depth at which shortlists would be empty."""
    if depth < 1:
        raise ValueError(f"depth={depth}: at least 1 counterpart of a query has to be re-ranked")


def evaluate_cascade(
    members: Sequence[EmbeddedDataset],
    by: Shortlister,
    dataset: ImageTextDataset,
    protocol: Protocol = WHOLE,
    *,
    head: int,
    tie: Tie = "row",
    seed: int | None = None,
) -> Cascade:
    """Re-rank the shortlists of other models in both directions, and count.

    A pair on the shortlists of its image and of its text is scored once. Shortlists as long as the
    split give the ranking of `counterfoil.evaluation.protocols.evaluate_protocol`, bit for bit.

    Args:
        members: encoded images and texts under the models that re-rank.
        by: the models that make the shortlists.
        dataset: the split that was encoded.
        protocol: how to cut the split; shortlists are made within folds.
        head: length of the lists that are returned.
        tie: rule for equal scores; of those, shortlists take the lower row.
        seed: of the models that re-rank, for the record.

    Raises:
        ValueError: a model encoded another split, or the protocol does not fit the split.
    """
    setting = setting_of(members, dataset, protocol, tie, seed)
    alone = setting_of(by.first, dataset, protocol, tie, None)
    text_to_image = dataset.text_to_image
    ranker = _FoldRanker(members, by, head, setting)
    cascaded = replace(setting, first=by.name, depth=by.depth)
    report = report_of(ranker, text_to_image, cascaded, dataset.extra_positives)
    first_ranks = iter(ranker.firsts)  # of each fold, in order
    first = report_of(lambda *_: next(first_ranks), text_to_image, alone)
    full = None
    if ranker.covered:
        full = replace(report, setting=setting)
    elif by.full or setting.images * setting.texts <= AFFORDABLE:
        full = evaluate_protocol(members, dataset, protocol, tie=tie, seed=seed)
    pairs = zip(ranker.hits, report.ranked, strict=True)
    i2t, t2i = (100.0 * hit[ranked.counted].double().mean().item() for hit, ranked in pairs)
    (texts, images), (text_scores, image_scores) = ranker.rows, ranker.scores
    curve = []
    for depth, ranks in ranker.curve.items():
        remaining = iter(ranks)
        cut = replace(setting, first=by.name, depth=depth)
        shorter = report_of(lambda *_, remaining=remaining: next(remaining), text_to_image, cut)
        curve.append(CascadePoint(depth, ranker.pairs[depth], shorter))
    shortlists = ShortlistReport((i2t, t2i), first, full, tuple(curve))
    return Cascade(report, shortlists, texts, text_scores, images, image_scores)


@final
class _FullPass:
    """Ranks and first counterparts of some images and texts, from one pass over all pairs."""

    def __init__(
        self,
        members: Sequence[EmbeddedDataset],
        text_to_image: Tensor,
        extra_positives: Pairs | None,
        k: int,
    ) -> None:
        images, texts = len(members[0].images), len(members[0].texts)
        self.orders = (
            Ranks("image", images, text_to_image, extra_positives),
            Ranks("text", texts, text_to_image, extra_positives),
        )
        self.lists = TopK("image", images, min(k, texts)), TopK("text", texts, min(k, images))
        stream_scores(members, [*self.orders, *self.lists])

    def ranks(self, tie: Tie) -> tuple[SideRanks, SideRanks]:
        i2t, t2i = (SideRanks.of(order, tie) for order in self.orders)
        return i2t, t2i


@final
class _FoldRanker:
    """Ranks fold after fold; collects lists, shortlist hits and ranks of parts of the cascade."""

    def __init__(
        self,
        members: Sequence[EmbeddedDataset],
        by: Shortlister,
        head: int,
        setting: EvaluationSetting,
    ) -> None:
        images, texts = setting.images, setting.texts
        self.members, self.by, self.tie = members, by, setting.tie
        self.head, self.covered = head, by.depth >= max(images, texts)
        self.firsts: list[tuple[SideRanks, SideRanks]] = []
        depths = [] if self.covered else sorted({*(d for d in DEPTHS if d < by.depth), by.depth})
        self.curve: dict[int, list[tuple[SideRanks, SideRanks]]] = {depth: [] for depth in depths}
        self.pairs = dict.fromkeys(depths, 0)
        self.hits = torch.zeros(images, dtype=torch.bool), torch.zeros(texts, dtype=torch.bool)
        self.rows = torch.full((images, head), -1), torch.full((texts, head), -1)
        self.scores = tuple(torch.full(rows.shape, -torch.inf) for rows in self.rows)

    def __call__(
        self, images: Tensor, texts: Tensor, text_to_image: Tensor, extra_positives: Pairs | None
    ) -> tuple[SideRanks, SideRanks]:
        """Ranks in both directions of a fold."""
        members, fold = fold_parts(self.members, images, texts), (images, texts)
        first_members = fold_parts(self.by.first, *fold)
        first = _FullPass(first_members, text_to_image, extra_positives, self.by.depth)
        self.firsts.append(first.ranks(self.tie))
        lists = first.lists[0].rows.cpu().long(), first.lists[1].rows.cpu().long()
        positive = _positives(lists, text_to_image, extra_positives)
        for side, rows in enumerate(fold):
            self.hits[side][rows] = positive[side].any(1)
        if self.covered:
            full = _FullPass(members, text_to_image, extra_positives, self.head)
            for side, best in enumerate(full.lists):
                self._store(side, fold, best.rows.cpu(), best.scores.cpu())
            return full.ranks(self.tie)
        rescored = RescoredPairs(members, *lists)
        self._store(0, fold, *rescored.best("image", self.head))
        self._store(1, fold, *rescored.best("text", self.head))
        scores = rescored.scores("image"), rescored.scores("text")
        for depth, ranks in self.curve.items():
            # the beginning of a longer shortlist is the shorter one
            i2t, t2i = (
                _reranked(s[:, :depth], rows[:, :depth], true[:, :depth], behind, self.tie)
                for s, rows, true, behind in zip(
                    scores, lists, positive, self.firsts[-1], strict=True
                )
            )
            ranks.append((i2t, t2i))
            self.pairs[depth] += rescored.count_within(depth)
        return i2t, t2i

    def _store(self, side: int, fold: tuple[Tensor, Tensor], rows: Tensor, scores: Tensor) -> None:
        """Store the first counterparts of a fold by their rows in the split."""
        queries, items = fold[side].unsqueeze(1), fold[1 - side]
        columns = torch.arange(rows.shape[1])
        first = items[rows.long().clamp(min=0)].masked_fill(rows < 0, -1)
        self.rows[side][queries, columns] = first
        self.scores[side][queries, columns] = scores


def _positives(
    lists: tuple[Tensor, Tensor], text_to_image: Tensor, extra_positives: Pairs | None
) -> tuple[Tensor, Tensor]:
    """(I, K) and (T, K) bool, True where an item on the list of an image or a text is positive."""
    texts, images = lists
    image_of_text = text_to_image[texts.clamp(min=0)].masked_fill(texts < 0, -1)
    of_images = image_of_text == torch.arange(len(texts)).unsqueeze(1)
    of_texts = (images == text_to_image.unsqueeze(1)) & (images >= 0)
    if extra_positives is not None:
        pairs = zip(extra_positives.image.tolist(), extra_positives.text.tolist(), strict=True)
        for image, text in pairs:
            of_images[image] |= texts[image] == text
            of_texts[text] |= images[text] == image
    return of_images, of_texts


def _reranked(
    scores: Tensor, rows: Tensor, positive: Tensor, before: SideRanks, tie: Tie
) -> SideRanks:
    """Ranks within the shortlist where a positive is on it, else behind it, as `before`."""
    first = before.ranks.cpu()
    last = torch.iinfo(rows.dtype).max
    order = rows.masked_fill(rows < 0, last).argsort(1)  # of equal scores the lower row comes first
    within = rank_positions(scores.gather(1, order), positive.gather(1, order), tie)
    behind = first.maximum((rows >= 0).sum(1)).masked_fill(first < 0, -1)
    tied = int(tied_positions(scores, positive).sum())
    return SideRanks(behind.where(within < 0, within), tied)
