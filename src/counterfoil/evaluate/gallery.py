"""Retrievals with pictures: which queries to show, and how small a picture can be."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from PIL import Image
from torch import Tensor

from counterfoil.evaluate.recall import Ranked
from counterfoil.records import Pairs

SIDE = 224  # pixels; shown at half that, for sharp screens
DEPTH = 7


@final
@dataclass(frozen=True, slots=True)
class Shown:
    """One item of a retrieval.

    Attributes:
        text: the caption, or what stands for the picture where it is not seen.
        picture: a `data:` address, or None for a caption.
        place: rank in the list, from 1; 0 for a query, or where it is not known.
        true: whether it is a true counterpart of the query.
        score: of the pair; None where it was not kept.
    """

    text: str
    picture: str | None = None
    place: int = 0
    true: bool = False
    score: float | None = None


@final
@dataclass(frozen=True, slots=True)
class Retrieval:
    """A query and the first items of its list.

    Attributes:
        query: a caption or a picture.
        rank: place of the best true counterpart, from 1; 0 where none is known.
        found: the first items, best first.
        missed: a true counterpart where the best one is not among them; of several captions the
            first, which need not be the best.
        others: place of the best true counterpart under other runs, as (run, place).
    """

    query: Shown
    rank: int
    found: tuple[Shown, ...]
    missed: Shown | None = None
    others: tuple[tuple[str, int], ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Gallery:
    """Some retrievals under one title.

    Attributes:
        title: as in "Captions that found their image".
        note: how they were chosen.
        retrievals: in the order to show.
    """

    title: str
    note: str
    retrievals: tuple[Retrieval, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One direction of an evaluation, with its lists.

    Attributes:
        ranked: where each query found its best true counterpart.
        rows: (Q, K) rows of the first items, best first; -1 for none.
        scores: (Q, K) their scores, or None.
        others: ranks of the same queries under other runs, by name.
    """

    ranked: Ranked
    rows: Tensor
    scores: Tensor | None = None
    others: tuple[tuple[str, Ranked], ...] = ()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Exhibits:
    """Where captions and pictures come from.

    Attributes:
        captions: (T,) raw captions.
        owner: (T,) image of each, -1 for none.
        picture: opens the picture of an image row; None where only features exist.
        besides: rows of pairs that are true besides.
    """

    captions: Sequence[str]
    owner: Tensor
    picture: Callable[[int], Image.Image] | None
    besides: Pairs | None = None

    def true(self, image: int, text: int) -> bool:
        """Whether a caption, by its row, describes an image; neither is true of -1."""
        if min(image, text) < 0:
            return False
        more = self.besides
        met = more is not None and bool(((more.image == image) & (more.text == text)).any())
        return met or int(self.owner[text]) == image


def thumbnail(picture: Image.Image, side: int = SIDE) -> str:
    """A picture as a small `data:` address, as PNG or JPEG, whichever is smaller."""
    small = picture.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    coded = []
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 80})):
        data = io.BytesIO()
        small.save(data, kind, **options)
        coded.append((len(data.getvalue()), kind, data.getvalue()))
    _, kind, content = min(coded)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def pick(found: Found, count: int) -> tuple[list[int], list[int]]:
    """Queries that went best and worst, one per image, in a fixed order.

    Best are those at rank 0 with the widest gap between the first two scores (the first rows,
    where scores were not kept); worst are those of the greatest rank.
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
) -> tuple[Gallery, ...]:
    """The best and the worst retrievals in both directions; none of an evaluation in folds.

    Lists go over the whole split, so ranks within folds would not fit them.

    Args:
        exhibits: captions and pictures.
        i2t: lists of captions, by image.
        t2i: lists of images, by caption.
        count: retrievals of each kind.
        depth: items of each list, the missed counterpart among them.
    """
    shown: list[Gallery] = []
    if int(i2t.ranked.folds.max()) > 0:
        return ()
    for found, title, asked in (
        (t2i, "Text to image", "captions"),
        (i2t, "Image to text", "images"),
    ):
        best, worst = pick(found, count)
        for queries, kind, note in (
            (best, "best", f"The surest of the {asked} that were answered right at once."),
            (worst, "worst", f"The {asked} whose true counterpart came last."),
        ):
            rows = tuple(_retrieval(exhibits, found, query, depth) for query in queries)
            if rows:
                shown.append(Gallery(f"{title}: {kind}", note, rows))
    return tuple(shown)


def _one_per_image(queries: Sequence[int], found: Found, count: int) -> list[int]:
    chosen: dict[int, int] = {}
    for query in queries:
        chosen.setdefault(int(found.ranked.images[query]), query)
        if len(chosen) == count:
            break
    return list(chosen.values())


def _retrieval(exhibits: Exhibits, found: Found, query: int, depth: int) -> Retrieval:
    rank = int(found.ranked.ranks[query])
    rows = [row for row in found.rows[query, :depth].tolist() if row >= 0]
    seen = rank < len(rows)
    rows = rows if seen else rows[: depth - 1]  # the last place goes to the one that was missed
    scores = [None] * len(rows) if found.scores is None else found.scores[query].tolist()
    asks_image = found.ranked.direction == "i2t"
    image = int(found.ranked.images[query])
    if asks_image:
        asked = shown_image(exhibits, query)
        items = [
            shown_caption(exhibits, row, image, n, s)
            for n, (row, s) in enumerate(zip(rows, scores))
        ]
    else:
        asked = Shown(exhibits.captions[query])
        items = [
            shown_image(exhibits, row, query, n, s) for n, (row, s) in enumerate(zip(rows, scores))
        ]
    others = tuple((name, int(other.ranks[query]) + 1) for name, other in found.others)
    missed = None if seen else _missed(exhibits, image, rank, -1 if asks_image else query)
    return Retrieval(asked, rank + 1, tuple(items), missed, others)


def _missed(exhibits: Exhibits, image: int, rank: int, text: int) -> Shown:
    if text < 0:
        first = int((exhibits.owner == image).nonzero()[0])
        return Shown(exhibits.captions[first], true=True)
    return shown_image(exhibits, image, text, rank)


def shown_caption(
    exhibits: Exhibits, row: int, wanted: int = -1, place: int = -1, score: float | None = None
) -> Shown:
    """A caption of a list.

    Args:
        exhibits: where it comes from.
        row: its row.
        wanted: the image whose captions are true.
        place: from 0; -1 where it has none.
        score: of the pair, where it is known.
    """
    true = exhibits.true(wanted, row)
    return Shown(exhibits.captions[row], place=place + 1, true=true, score=score)


def shown_image(
    exhibits: Exhibits, row: int, asked: int = -1, place: int = -1, score: float | None = None
) -> Shown:
    """An image of a list: its picture, or its first caption where there are no pictures.

    Args:
        exhibits: where it comes from.
        row: its row.
        asked: the caption that is true of some images.
        place: from 0; -1 where it has none.
        score: of the pair, where it is known.
    """
    mine = (exhibits.owner == row).nonzero().flatten()
    words = exhibits.captions[int(mine[0])] if len(mine) else f"image {row}"
    picture = thumbnail(exhibits.picture(row)) if exhibits.picture else None
    return Shown(words, picture, place + 1, exhibits.true(row, asked), score)
