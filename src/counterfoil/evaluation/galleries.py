"""Retrieval examples with pictures: the best and the worst queries of an evaluation as cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.metrics import RankedQueries
from counterfoil.report.page import CardColumn, CardSection, ExampleCard, PageItem, thumbnail

DEPTH = 7


@final
@dataclass(frozen=True, slots=True, eq=False)
class RankedLists:
    """One direction of an evaluation, with its lists."""

    ranked: RankedQueries  # rank of the best match of each query
    rows: Tensor  # (Q, K) rows of the first items, best first; -1 for none
    scores: Tensor | None = None  # (Q, K) their scores
    # ranks of the same queries under other runs, by name
    others: tuple[tuple[str, RankedQueries], ...] = ()


def best_and_worst(lists: RankedLists, count: int) -> tuple[list[int], list[int]]:
    """Choose the best and the worst queries, one per image, in a fixed order.

    Best are those at rank 0 with the widest gap between the first two scores (the first rows if
    there are no scores); worst are those of the greatest rank.
    """
    ranks, scores = lists.ranked.ranks.tolist(), lists.scores
    gaps = [0.0] * len(ranks)
    if scores is not None and scores.shape[1] > 1:
        gaps = (scores[:, 0] - scores[:, 1]).tolist()
    best = sorted((q for q, r in enumerate(ranks) if r == 0), key=lambda q: (-gaps[q], q))
    worst = sorted((q for q, r in enumerate(ranks) if r > 0), key=lambda q: (-ranks[q], q))
    images = lists.ranked.images
    return _one_per_image(best, images, count), _one_per_image(worst, images, count)


def _one_per_image(queries: Iterable[int], images: Tensor, count: int) -> list[int]:
    """The first query of each image, at most `count`."""
    chosen: dict[int, int] = {}
    for query in queries:
        if len(chosen) == count:
            break
        chosen.setdefault(int(images[query]), query)
    return list(chosen.values())


def galleries(
    dataset: ImageTextDataset,
    i2t: RankedLists,
    t2i: RankedLists,
    *,
    count: int = 3,
    depth: int = DEPTH,
) -> tuple[CardSection, ...]:
    """Cards of the best and the worst retrievals in both directions.

    An evaluation in folds gives none: lists go over the whole split, and ranks within folds would
    not fit them.

    Args:
        dataset: the split.
        i2t: lists of captions, by image.
        t2i: lists of images, by caption.
        count: retrievals of each kind.
        depth: items of each list, the missed match among them.
    """
    if int(i2t.ranked.folds.max()) > 0:
        return ()
    sections: list[CardSection] = []
    for lists, title, noun in (
        (t2i, "Text to image", "captions"),
        (i2t, "Image to text", "images"),
    ):
        notes = (
            f"The surest of the {noun} that were answered right at once.",
            f"The {noun} whose true counterpart came last.",
        )
        for queries, kind, note in zip(
            best_and_worst(lists, count), ("best", "worst"), notes, strict=True
        ):
            cards = tuple(_retrieval(dataset, lists, query, depth) for query in queries)
            if cards:
                sections.append(CardSection(f"{title}: {kind}", note, cards))
    return tuple(sections)


def is_positive(dataset: ImageTextDataset, image: int, text: int) -> bool:
    """Return True if a caption, by its row, describes an image; never for row -1."""
    if min(image, text) < 0:
        return False
    extra = dataset.extra_positives
    also = extra is not None and bool(((extra.image == image) & (extra.text == text)).any())
    return also or int(dataset.text_to_image[text]) == image


def shown_caption(
    dataset: ImageTextDataset,
    row: int,
    query: int = -1,
    place: int = -1,
    score: float | None = None,
) -> PageItem:
    """A caption as an item of a page.

    Args:
        dataset: the split.
        row: row of the caption.
        query: image whose captions are matches; -1 for none.
        place: rank from 0; -1 for none.
        score: of the pair, if known.
    """
    true = is_positive(dataset, query, row)
    return PageItem(dataset.texts[row], place=place + 1, true=true, score=score)


def shown_image(
    dataset: ImageTextDataset,
    row: int,
    query: int = -1,
    place: int = -1,
    score: float | None = None,
) -> PageItem:
    """An image as an item of a page: its picture, or its first caption if there are no pictures.

    The arguments are those of `shown_caption`, images and captions exchanged.
    """
    captions = (dataset.text_to_image == row).nonzero().flatten()
    words = dataset.texts[int(captions[0])] if len(captions) else f"image {row}"
    picture = thumbnail(dataset.pictures.open(row)) if dataset.pictures else None
    return PageItem(words, picture, place + 1, is_positive(dataset, row, query), score)


def _retrieval(
    dataset: ImageTextDataset, lists: RankedLists, query: int, depth: int
) -> ExampleCard:
    rank = int(lists.ranked.ranks[query])
    rows = [row for row in lists.rows[query, :depth].tolist() if row >= 0]
    listed = rank < len(rows)
    rows = rows if listed else rows[: depth - 1]  # the last place goes to the missed match
    scores = [None] * len(rows) if lists.scores is None else lists.scores[query].tolist()
    from_image, image = lists.ranked.direction == "i2t", int(lists.ranked.images[query])
    item = shown_caption if from_image else shown_image
    items = tuple(
        item(dataset, row, image if from_image else query, place, score)
        for place, (row, score) in enumerate(zip(rows, scores))
    )
    missed = None
    if not listed and from_image:  # the first of several captions, which need not be the best
        first = int((dataset.text_to_image == image).nonzero()[0])
        missed = PageItem(dataset.texts[first], true=True)
    elif not listed:
        missed = shown_image(dataset, image, query, rank)
    kind = "First true caption" if from_image else "True image"
    others = "".join(f"; {name}: {int(o.ranks[query]) + 1:,}" for name, o in lists.others)
    return ExampleCard(
        shown_image(dataset, query) if from_image else PageItem(dataset.texts[query]),
        f"{kind} at place {rank + 1:,}{others}",
        (CardColumn("", "", items, missed),),
    )


def side_by_side(
    dataset: ImageTextDataset, runs: Mapping[str, RankedLists], query: int, depth: int
) -> ExampleCard:
    """A query with the first items of several runs, by name, and the place of its first match.

    An image that is the match and not among the first `depth` takes the place of the last of them.
    """
    columns: list[CardColumn] = []
    for name, lists in runs.items():
        by_text = lists.ranked.direction == "t2i"
        item = shown_image if by_text else shown_caption
        rank = int(lists.ranked.ranks[query])  # below 0 if nothing matches the query
        missed = by_text and rank >= depth
        rows = [row for row in lists.rows[query, : depth - missed].tolist() if row >= 0]
        scores = [None] * len(rows) if lists.scores is None else lists.scores[query].tolist()
        items = tuple(
            item(dataset, row, query, place, score)
            for place, (row, score) in enumerate(zip(rows, scores))
        )
        match = shown_image(dataset, int(lists.ranked.images[query]), query, rank)
        note = "no true counterpart" if rank < 0 else f"first true one at place {rank + 1:,}"
        columns.append(CardColumn(name, note, items, match if missed else None))
    asked = PageItem(dataset.texts[query]) if by_text else shown_image(dataset, query)
    return ExampleCard(asked, "", tuple(columns))


def differ(first: RankedQueries, second: RankedQueries, count: int) -> tuple[list[int], list[int]]:
    """Queries that the second model answers better than the first, and those it answers worse.

    They are in order of how many times better the rank is, so that from 100 to 10 is as much as
    from 10 to 1; at most one per image and `count` of each, and of equal ones the lower row first.

    Raises:
        ValueError: the ranks are of other queries.
    """
    if len(first) != len(second) or bool((first.images != second.images).any()):
        raise ValueError(
            f"two models were ranked on different queries, {len(first):,} and {len(second):,}; "
            "measure both on one split"
        )
    gain = (first.ranks.double() + 1).log() - (second.ranks.double() + 1).log()
    gain = gain.where(first.counted & second.counted, 0.0)

    def most(gain: Tensor) -> list[int]:
        order = gain.argsort(descending=True, stable=True).tolist()
        return _one_per_image((q for q in order if gain[q] > 0), first.images, count)

    return most(gain), most(-gain)
