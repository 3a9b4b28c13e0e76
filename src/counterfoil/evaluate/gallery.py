"""Retrievals with pictures: which queries to show, and how small a picture can be."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from counterfoil.engine.sweep import MEMORY, sweep
from counterfoil.engine.tiles import Member
from counterfoil.engine.topk import TopK
from counterfoil.evaluate.recall import Ranked
from counterfoil.evaluate.result import Report

SIDE = 224  # pixels; shown at half that, for sharp screens
DEPTH = 7


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


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A query and the first items of its list.

    Attributes:
        query: a caption or a picture.
        rank: place of the best true counterpart, from 1.
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


@dataclass(frozen=True, slots=True, eq=False)
class Exhibits:
    """Where captions and pictures come from.

    Attributes:
        captions: (T,) raw captions.
        owner: (T,) image of each, -1 for none.
        picture: opens the picture of an image row.
    """

    captions: Sequence[str]
    owner: Tensor
    picture: Callable[[int], Image.Image]


def found(
    members: Sequence[Member],
    report: Report,
    others: Sequence[tuple[str, Report]] = (),
    *,
    depth: int = DEPTH,
    memory: int = MEMORY,
) -> tuple[Found, Found]:
    """Lists of captions by image and of images by caption, to go with an evaluation.

    Args:
        members: what was evaluated.
        report: its evaluation, over the split as a whole.
        others: evaluations of other runs on the same queries, by name.
        depth: how much of each list to keep.
        memory: bytes for encodings on the device and tiles kept.

    Raises:
        ValueError: the evaluation was in folds, whose ranks do not fit lists over the whole split.
    """
    if any(len(each.folds) > 1 for each in (report, *(other for _, other in others))):
        raise ValueError(
            f"lists are shown over the whole split, but {report.setting.protocol.name!r} was "
            "evaluated in folds; evaluate with the protocol 'whole' for this"
        )
    sizes = report.setting.images, report.setting.texts
    lists = TopK("image", sizes[0], depth), TopK("text", sizes[1], depth)
    sweep(members, lists, memory=memory)
    i2t, t2i = (
        Found(
            report.ranked[side],
            one.rows.cpu(),
            one.scores.cpu(),
            tuple((name, other.ranked[side]) for name, other in others),
        )
        for side, one in enumerate(lists)
    )
    return i2t, t2i


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
    """The best and the worst retrievals in both directions.

    Args:
        exhibits: captions and pictures.
        i2t: lists of captions, by image.
        t2i: lists of images, by caption.
        count: retrievals of each kind.
        depth: items of each list, the missed counterpart among them.
    """
    shown = []
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
        asked = _image(exhibits, query)
        items = [
            _caption(exhibits, row, image, n, s) for n, (row, s) in enumerate(zip(rows, scores))
        ]
    else:
        asked = Shown(exhibits.captions[query])
        items = [_image(exhibits, row, image, n, s) for n, (row, s) in enumerate(zip(rows, scores))]
    others = tuple((name, int(other.ranks[query]) + 1) for name, other in found.others)
    missed = None if seen else _missed(exhibits, image, rank, asks_image)
    return Retrieval(asked, rank + 1, tuple(items), missed, others)


def _missed(exhibits: Exhibits, image: int, rank: int, asks_image: bool) -> Shown:
    if asks_image:
        first = int((exhibits.owner == image).nonzero()[0])
        return Shown(exhibits.captions[first], true=True)
    return _image(exhibits, image, image, rank)


def _caption(exhibits: Exhibits, row: int, image: int, place: int, score: float | None) -> Shown:
    true = int(exhibits.owner[row]) == image
    return Shown(exhibits.captions[row], place=place + 1, true=true, score=score)


def _image(
    exhibits: Exhibits, row: int, wanted: int = -1, place: int = -1, score: float | None = None
) -> Shown:
    mine = (exhibits.owner == row).nonzero().flatten()
    words = exhibits.captions[int(mine[0])] if len(mine) else f"image {row}"
    picture = thumbnail(exhibits.picture(row))
    return Shown(words, picture, place + 1, row == wanted, score)
