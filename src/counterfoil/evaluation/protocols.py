"""Evaluation protocols by name: whole split, Flickr 1K, COCO 1K and COCO 5K.

Numbers of different protocols cannot be compared, so every report carries its protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast, final

import torch
from torch import Tensor

from counterfoil.core.config import parse_choice, parse_literal
from counterfoil.core.types import Pairs
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.metrics import (
    BOUNDS,
    OF_ALL_POSITIVES,
    Direction,
    EvaluationReport,
    EvaluationSetting,
    Protocol,
    RankedQueries,
    RecallMetrics,
    check_text_to_image,
    queries_with_positives,
    ranks_of,
    recall_from_ranks,
    tied_positions,
    true_pairs,
)
from counterfoil.models.base import score_names
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import Ranks, Tie, TopK
from counterfoil.scoring.stream import ScoreReducer, stream_scores

if TYPE_CHECKING:
    from counterfoil.evaluation.truth import Truth
    from counterfoil.scoring.true_places import TruePlaces

WHOLE = Protocol("whole split")
FLICKR_1K = Protocol("Flickr 1K", images=1000)
COCO_1K = Protocol("COCO 1K", folds=5, images=5000)
COCO_5K = Protocol("COCO 5K", images=5000)
PROTOCOLS = {"whole": WHOLE, "flickr-1k": FLICKR_1K, "coco-1k": COCO_1K, "coco-5k": COCO_5K}


@final
@dataclass(frozen=True, slots=True, eq=False)
class SideRanks:
    """Ranks of the queries of a fold in one direction, from 0; -1 for one without a positive."""

    ranks: Tensor
    tied: int = 0  # queries with a tie at their best positive

    @staticmethod
    def of(order: Ranks, tie: Tie) -> SideRanks:
        """The ranks of a pass."""
        return SideRanks(order.ranks(tie), int(order.tied.sum()))


Ranker = Callable[[Tensor, Tensor, Tensor, Pairs | None], tuple[SideRanks, SideRanks]]


def protocol_by_name(name: str) -> Protocol:
    """A protocol by its short name.

    Raises:
        ValueError: the name is unknown; the error suggests the nearest.
    """
    parse_choice(PROTOCOLS, name, "a protocol")
    return PROTOCOLS[name]


def evaluate_protocol(
    members: Sequence[EmbeddedDataset],
    dataset: ImageTextDataset,
    protocol: Protocol = WHOLE,
    *,
    tie: Tie = "row",
    seed: int | None = None,
    also: Sequence[ScoreReducer] = (),
    truth: Truth | None = None,
    bounded: bool = False,
) -> EvaluationReport:
    """Rank all texts for every image and all images for every text, and count.

    Extra positives of the data set are right answers in both directions. A text of no image is
    ranked but is no query, and is in no fold.

    Args:
        members: encoded images and texts under one or more models, whose scores are averaged.
        dataset: the split that was encoded.
        protocol: how to cut the split.
        tie: rule for equal scores.
        seed: of the models, for the record.
        also: reducers that share the pass over the scores; not with folds.
        truth: what is true, see `counterfoil.evaluation.truth`; None for the captions of an image,
            with the places of the best ones only.
        bounded: whether to bound R-precision and mAP@R over what nobody judged, see
            `counterfoil.evaluation.bounds`.

    Raises:
        ValueError: a model encoded another split, the protocol does not fit the split or the truth,
            or bounds of a truth that knows all pairs or with another rule of ties than "row".
    """
    assert not also or protocol.folds == 1, "a fold is not the whole matrix"
    setting = setting_of(members, dataset, protocol, tie, seed)
    if truth is not None:
        check_whole(truth, protocol)
        if bounded:
            check_bounded(truth.name, tie)
        return _by_truth(members, dataset, setting, truth, also, bounded=bounded)

    def rank(
        images: Tensor, texts: Tensor, local: Tensor, more: Pairs | None
    ) -> tuple[SideRanks, SideRanks]:
        i2t = Ranks("image", len(images), local, more)
        t2i = Ranks("text", len(texts), local, more)
        stream_scores(fold_parts(members, images, texts), [i2t, t2i, *also])
        return SideRanks.of(i2t, tie), SideRanks.of(t2i, tie)

    return report_of(rank, dataset.text_to_image, setting, dataset.extra_positives)


def check_bounded(truth: str, tie: str = "row") -> None:
    """Refuse bounds where all pairs are known, or where the first places depend on the truth.

    Raises:
        ValueError: another truth than "judged", or another rule of ties than "row".
    """
    if truth != "judged" or tie != "row":
        raise ValueError(
            f"bounds are about pairs that nobody judged, with ties by row, and truth {truth!r} "
            f"with ties {tie!r} was asked; use truth 'judged' with judgements (--truth judged "
            "--judgements FILE), or leave bounds out"
        )


def check_whole(truth: Truth, protocol: Protocol) -> None:
    """Refuse folds with a truth of all pairs.

    Raises:
        ValueError: the protocol has folds.
    """
    if protocol.folds > 1:
        raise ValueError(
            f"places of all true pairs (truth {truth.name!r}) go over the whole split, and "
            f"{protocol.name} has {protocol.folds} folds; use the protocol 'whole' or 'coco-5k'"
        )


def _by_truth(
    members: Sequence[EmbeddedDataset],
    dataset: ImageTextDataset,
    setting: EvaluationSetting,
    truth: Truth,
    also: Sequence[ScoreReducer],
    *,
    bounded: bool,
) -> EvaluationReport:
    """Rank a whole split by a truth, in one pass."""
    owners = dataset.text_to_image
    reducers = truth.reducers(owners)
    best: list[Ranks] = []
    if truth.i2t.false is not None:  # places are among judged pairs; recalls are among all
        pairs = cast(Pairs, truth.i2t.true)
        best.append(Ranks("image", len(dataset), owners, pairs))
        best.append(Ranks("text", len(owners), owners, pairs))
    first: tuple[TopK, ...] = ()
    if bounded:
        from counterfoil.evaluation.bounds import FIRST, bounds, first_counterparts, first_places

        first = first_counterparts(len(dataset), len(owners))
    stream_scores(members, [*reducers, *best, *first, *also])
    i2t, t2i = (reducer.places(setting.tie) for reducer in reducers)
    described = torch.bincount(owners[owners >= 0], minlength=len(dataset)) > 0
    if best:
        ranked = (
            _queries(best[0], setting.tie, described),
            _queries(best[1], setting.tie, owners >= 0),
        )
    else:
        ranked = (
            _best_of(i2t, truth.i2t.asked, described),
            _best_of(t2i, truth.t2i.asked, owners >= 0),
        )
    report = report_of(lambda *_: ranked, owners, setting)
    images, texts = report.ranked
    own = owners[i2t.answer] == i2t.query, owners[t2i.query] == t2i.answer
    ends: list[Mapping[str, Tensor]] = [{}, {}]
    line = truth.line
    if bounded:
        known = [first_places(top, truth, len(owners)) for top in first]
        ends = [bounds(places.verdicts, places.true).by_name() for places in known]
        line += f"; at least and at most: whatever the unjudged of the first {FIRST} places are"
    return replace(
        report,
        setting=replace(setting, truth=line),
        ranked=(
            replace(images, places=i2t, own=own[0], bounds=ends[0]),
            replace(texts, places=t2i, own=own[1], bounds=ends[1]),
        ),
        further=() if truth.name == "own" else (*OF_ALL_POSITIVES, *(BOUNDS if bounded else ())),
    )


def _queries(order: Ranks, tie: Tie, described: Tensor) -> SideRanks:
    """The ranks of (Q,) bool queries, which have an item of their own: others are none."""
    tied = order.tied.cpu() & described
    return SideRanks(order.ranks(tie).cpu().masked_fill(~described, -1), int(tied.sum()))


def _best_of(places: TruePlaces, asked: Tensor | None, described: Tensor) -> SideRanks:
    """Ranks of the best true counterparts, where everything that is not true is false.

    Args:
        places: of a direction.
        asked: (Q,) bool, the queries: one without a true counterpart comes behind all; None for
            those that have one.
        described: (Q,) bool, images with a caption or captions with an image, which are the
            queries where none are named.
    """
    ranks = torch.full_like(places.false, -1)
    first = places.order == 0
    ranks[places.query[first]] = places.above[first]
    if asked is not None:
        ranks = torch.where(places.counts == 0, places.false, ranks)
    ranks = ranks.masked_fill(~(described if asked is None else asked), -1)
    return SideRanks(ranks, int((places.tied & (ranks >= 0)).sum()))


def setting_of(
    members: Sequence[EmbeddedDataset],
    dataset: ImageTextDataset,
    protocol: Protocol,
    tie: Tie,
    seed: int | None,
) -> EvaluationSetting:
    """The setting of an evaluation, as `evaluate_protocol` takes it.

    Raises:
        ValueError: the tie rule is unknown, or a model encoded another split.
    """
    parse_literal(Tie, tie, "a tie rule")
    images, texts = len(dataset), len(dataset.text_to_image)
    for member in members:
        member.check_sizes(images, texts, "a model")
    return EvaluationSetting(
        protocol,
        images,
        texts,
        tie,
        len(members),
        dataset.name,
        dataset.split_name,
        seed,
        decided=dataset.corrections,
        score=score_names(member.model for member in members),
    )


def evaluate_scores(
    scores: Tensor,
    text_to_image: Tensor,
    protocol: Protocol = WHOLE,
    *,
    tie: Tie = "row",
    dataset: str = "",
    split: str = "",
    extra_positives: Pairs | None = None,
) -> EvaluationReport:
    """Evaluate an (I, T) score matrix that fits in memory, as `evaluate_protocol` does.

    Args:
        scores: (I, T) higher is better.
        text_to_image: (T,) image row of each text; -1 for a text of no image.
        protocol: how to cut the split.
        tie: rule for equal scores.
        dataset: for the record.
        split: for the record.
        extra_positives: rows of further true pairs.

    Raises:
        ValueError: `scores` and `text_to_image` do not fit together, or the protocol does not fit.
    """

    def rank(
        images: Tensor, texts: Tensor, local: Tensor, more: Pairs | None
    ) -> tuple[SideRanks, SideRanks]:
        block = scores[images][:, texts]
        truth = true_pairs(local, len(images), more)
        i2t, t2i = ranks_of(block, local, tie, more)
        return (
            SideRanks(i2t, int(tied_positions(block, truth).sum())),
            SideRanks(t2i, int(tied_positions(block.T, truth.T).sum())),
        )

    setting = EvaluationSetting(
        protocol, scores.shape[0], scores.shape[1], tie, dataset=dataset, split=split
    )
    return report_of(rank, text_to_image, setting, extra_positives)


def folds_of(protocol: Protocol, images: int) -> tuple[Tensor, ...]:
    """Image rows of each fold: equal runs in the order of the split, the first ones longer by one.

    Raises:
        ValueError: the protocol is not defined on that many images.
    """
    if protocol.images not in (None, images):
        raise ValueError(
            f"the protocol {protocol.name!r} is defined on {protocol.images:,} images, but this "
            f"split has {images:,}; use the protocol 'whole'"
        )
    if images < protocol.folds:
        raise ValueError(f"{images} images cannot be cut into {protocol.folds} folds")
    return torch.arange(images).tensor_split(protocol.folds)


def report_of(
    rank: Ranker,
    text_to_image: Tensor,
    setting: EvaluationSetting,
    extra_positives: Pairs | None = None,
) -> EvaluationReport:
    """Rank every fold and count.

    Args:
        rank: ranks in both directions within a fold, as `ranks_of`; called with the rows of its
            images and texts, the place of each text's image among these images, and extra
            positives as places.
        text_to_image: (T,) image row of each text; -1 for a text of no image.
        setting: of the report.
        extra_positives: rows of further true pairs; with folds, those within a fold count.

    Raises:
        ValueError: `text_to_image` does not fit, or the protocol does not fit the split.
    """
    check_text_to_image(text_to_image, setting.images, setting.texts)
    text_to_image = text_to_image.cpu()
    extra_positives = extra_positives and queries_with_positives(
        extra_positives, text_to_image, setting.images
    )
    all_images = torch.arange(setting.images)
    ranks = (torch.full_like(all_images, -1), torch.full_like(text_to_image, -1))
    fold_of = torch.zeros_like(all_images)
    recalls = []
    cuts = folds_of(setting.protocol, setting.images)
    for fold, images in enumerate(cuts):
        texts = _texts_of(text_to_image, images, alone=len(cuts) == 1)
        local = torch.where(text_to_image[texts] < 0, -1, text_to_image[texts] - images[0])
        extra = extra_positives and _inside(extra_positives, images, texts)
        i2t, t2i = rank(images, texts, local, extra)
        ranks[0][images], ranks[1][texts] = i2t.ranks.cpu().long(), t2i.ranks.cpu().long()
        fold_of[images] = fold
        recalls.append(
            (
                recall_from_ranks(ranks[0][images], "i2t", i2t.tied),
                recall_from_ranks(ranks[1][texts], "t2i", t2i.tied),
            )
        )
    text_fold = fold_of[text_to_image.clamp(min=0)].masked_fill(text_to_image < 0, -1)
    return EvaluationReport(
        setting,
        _mean([i2t for i2t, _ in recalls], "i2t", setting.images),
        _mean([t2i for _, t2i in recalls], "t2i", setting.texts),
        tuple(recalls),
        (
            RankedQueries("i2t", ranks[0], all_images, fold_of),
            RankedQueries("t2i", ranks[1], text_to_image, text_fold),
        ),
    )


def fold_parts(
    members: Sequence[EmbeddedDataset], images: Tensor, texts: Tensor
) -> list[EmbeddedDataset]:
    """The models with some of the images and texts that they encoded."""
    i, t = _run(images), _run(texts)
    return [EmbeddedDataset(m.model, m.images.rows(i), m.texts.rows(t)) for m in members]


def _run(rows: Tensor) -> Tensor | slice:
    """Rows as a slice where they follow each other, so that nothing is copied."""
    if len(rows) and bool((rows.diff() == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _inside(pairs: Pairs, images: Tensor, texts: Tensor) -> Pairs:
    """The pairs among some images and texts, both ascending, by their places there."""
    here = torch.isin(pairs.image, images) & torch.isin(pairs.text, texts)
    image, text = pairs.image[here], pairs.text[here]
    return Pairs(torch.searchsorted(images, image), torch.searchsorted(texts, text))


def _texts_of(text_to_image: Tensor, images: Tensor, *, alone: bool) -> Tensor:
    if alone:
        return torch.arange(len(text_to_image))
    return ((text_to_image >= images[0]) & (text_to_image <= images[-1])).nonzero().flatten()


def _mean(folds: Sequence[RecallMetrics], direction: Direction, queries: int) -> RecallMetrics:
    numbers = zip(*(fold.numbers for fold in folds))
    means = (sum(each) / len(folds) for each in numbers)
    counted = sum(fold.queries for fold in folds)
    tied = sum(fold.tied for fold in folds)
    return RecallMetrics.of(
        direction, means, queries=counted, left_out=queries - counted, tied=tied
    )
