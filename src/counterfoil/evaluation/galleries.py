"""Retrieval examples with pictures: the best and the worst queries of an evaluation as cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

from counterfoil.core.types import Pairs
from counterfoil.evaluation.metrics import RankedQueries
from counterfoil.report.page import CardColumn, CardSection, ExampleCard, PageItem, thumbnail

if TYPE_CHECKING:
    from PIL import Image


DEPTH = 7


@final
@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One direction of an evaluation, with its lists.

    Attributes:
        ranked: rank of the best match of each query.
        rows: (Q, K) rows of the first items, best first; -1 for none.
        scores: (Q, K) their scores, or None.
        others: ranks of the same queries under other runs, by name.
    """

    ranked: RankedQueries
    rows: Tensor
    scores: Tensor | None = None
    others: tuple[tuple[str, RankedQueries], ...] = ()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Exhibits:
    """Captions and pictures of a split.

    Attributes:
        captions: (T,) raw captions.
        text_to_image: (T,) image of each, -1 for none.
        picture: opens the picture of an image row; None if only features exist.
        besides: rows of additional positive pairs.
    """

    captions: Sequence[str]
    text_to_image: Tensor
    picture: Callable[[int], Image.Image] | None
    besides: Pairs | None = None

    def true(self, image: int, text: int) -> bool:
        """Whether a caption, by its row, describes an image; never for row -1."""
        if min(image, text) < 0:
            return False
        more = self.besides
        extra = more is not None and bool(((more.image == image) & (more.text == text)).any())
        return extra or int(self.text_to_image[text]) == image


def pick(found: Found, count: int) -> tuple[list[int], list[int]]:
    """Choose the best and the worst queries, one per image, in a fixed order.

    Best are those at rank 0 with the widest gap between the first two scores (the first rows if
    scores were not kept); worst are those of the greatest rank.
    """
    ranks = found.ranked.ranks
    if found.scores is None or found.scores.shape[1] < 2:
        gaps = [0.0] * len(ranks)
    else:
        gaps = (found.scores[:, 0] - found.scores[:, 1]).tolist()
    places = ranks.tolist()
    good = sorted((q for q, r in enumerate(places) if r == 0), key=lambda q: (-gaps[q], q))
    bad = sorted((q for q, r in enumerate(places) if r > 0), key=lambda q: (-places[q], q))
    return _one_per_image(good, found, count), _one_per_image(bad, found, count)


def galleries(
    exhibits: Exhibits, i2t: Found, t2i: Found, *, count: int = 3, depth: int = DEPTH
) -> tuple[CardSection, ...]:
    """Cards of the best and the worst retrievals in both directions.

    An evaluation in folds gives none: lists go over the whole split, and ranks within folds would
    not fit them.

    Args:
        exhibits: captions and pictures.
        i2t: lists of captions, by image.
        t2i: lists of images, by caption.
        count: retrievals of each kind.
        depth: items of each list, the missed match among them.
    """
    sections: list[CardSection] = []
    if int(i2t.ranked.folds.max()) > 0:
        return ()
    for found, title, queries in (
        (t2i, "Text to image", "captions"),
        (i2t, "Image to text", "images"),
    ):
        best, worst = pick(found, count)
        for rows, kind, note in (
            (best, "best", f"The surest of the {queries} that were answered right at once."),
            (worst, "worst", f"The {queries} whose true counterpart came last."),
        ):
            cards = tuple(_retrieval(exhibits, found, query, depth) for query in rows)
            if cards:
                sections.append(CardSection(f"{title}: {kind}", note, cards))
    return tuple(sections)


def shown_caption(
    exhibits: Exhibits, row: int, wanted: int = -1, place: int = -1, score: float | None = None
) -> PageItem:
    """A caption as an item of a page.

    Args:
        exhibits: captions and pictures.
        row: row of the caption.
        wanted: image whose captions are matches.
        place: rank from 0; -1 for none.
        score: of the pair, if known.
    """
    true = exhibits.true(wanted, row)
    return PageItem(exhibits.captions[row], place=place + 1, true=true, score=score)


def shown_image(
    exhibits: Exhibits, row: int, wanted: int = -1, place: int = -1, score: float | None = None
) -> PageItem:
    """An image as an item of a page: its picture, or its first caption if there are no pictures.

    Args:
        exhibits: captions and pictures.
        row: row of the image.
        wanted: caption whose images are matches.
        place: rank from 0; -1 for none.
        score: of the pair, if known.
    """
    own = (exhibits.text_to_image == row).nonzero().flatten()
    words = exhibits.captions[int(own[0])] if len(own) else f"image {row}"
    picture = thumbnail(exhibits.picture(row)) if exhibits.picture else None
    return PageItem(words, picture, place + 1, exhibits.true(row, wanted), score)


def _one_per_image(queries: Sequence[int], found: Found, count: int) -> list[int]:
    chosen: dict[int, int] = {}
    for query in queries:
        chosen.setdefault(int(found.ranked.images[query]), query)
        if len(chosen) == count:
            break
    return list(chosen.values())


def _retrieval(exhibits: Exhibits, found: Found, query: int, depth: int) -> ExampleCard:
    rank = int(found.ranked.ranks[query])
    rows = [row for row in found.rows[query, :depth].tolist() if row >= 0]
    seen = rank < len(rows)
    rows = rows if seen else rows[: depth - 1]  # the last place goes to the missed match
    scores = [None] * len(rows) if found.scores is None else found.scores[query].tolist()
    from_image, image = found.ranked.direction == "i2t", int(found.ranked.images[query])
    item = shown_caption if from_image else shown_image
    wanted = image if from_image else query
    items = tuple(
        item(exhibits, row, wanted, place, score)
        for place, (row, score) in enumerate(zip(rows, scores))
    )
    missed = None
    if not seen and from_image:  # the first of several captions, which need not be the best
        first = int((exhibits.text_to_image == image).nonzero()[0])
        missed = PageItem(exhibits.captions[first], true=True)
    elif not seen:
        missed = shown_image(exhibits, image, query, rank)
    kind = "First true caption" if from_image else "True image"
    others = "".join(f"; {name}: {int(o.ranks[query]) + 1:,}" for name, o in found.others)
    return ExampleCard(
        shown_image(exhibits, query) if from_image else PageItem(exhibits.captions[query]),
        f"{kind} at place {rank + 1:,}{others}",
        (CardColumn("", "", items, missed),),
    )


# Queries on which two models differ most.


def differ(first: RankedQueries, second: RankedQueries, count: int) -> tuple[list[int], list[int]]:
    """Queries that the second model answers better than the first, and those it answers worse.

    They are in order of how many times better the rank is, so that from 100 to 10 is as much as
    from 10 to 1; at most one per image, and of equal ones the lower row first.

    Args:
        first: ranks under one model.
        second: ranks of the same queries under the other.
        count: how many of each, at most.

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
    return _most(gain, first.images, count), _most(-gain, first.images, count)


def _most(gain: Tensor, images: Tensor, count: int) -> list[int]:
    chosen: dict[int, int] = {}
    for query in gain.argsort(descending=True, stable=True).tolist():
        if gain[query] <= 0 or len(chosen) == count:
            break
        chosen.setdefault(int(images[query]), query)
    return list(chosen.values())
