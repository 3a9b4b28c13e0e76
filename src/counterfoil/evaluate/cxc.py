"""Crisscrossed Captions: recall between and within images and texts, with rated pairs as truth.

Parekh et al., "Crisscrossed Captions: Extended Intramodal and Intermodal Semantic Similarity
Judgments for MS-COCO", EACL 2021. A pair is true from a mean rating of 3.0 between texts and of
2.5 between images; lists between images and texts are used as they are published. The annotations
are not part of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from counterfoil.evaluate.eccv import any_hit
from counterfoil.evaluate.recall import CUTOFFS
from counterfoil.evaluate.truth import Truth, truth

IMAGE_RATING = 2.5
TEXT_RATING = 3.0
DEPTH = max(CUTOFFS)

Kind = Literal["i2t", "t2i", "i2i", "t2t"]
Self = Literal["excluded", "zero"]
Rated = Mapping[int, Sequence[tuple[int, float]]]


@final
@dataclass(frozen=True, slots=True)
class Crissed:
    """Recalls of one kind of query, in percent: any true item in the first k.

    Attributes:
        kind: who asks whom.
        r1: at 1.
        r5: at 5.
        r10: at 10.
        queries: how many were counted.
        left_out: how many were not, having no true item.
    """

    kind: Kind
    r1: float
    r5: float
    r10: float
    queries: int
    left_out: int = 0

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def between(kind: Kind, asked: Tensor, ids: Tensor, rows: Tensor, rated: Rated) -> Crissed:
    """Recalls between images and texts.

    Args:
        kind: "i2t" or "t2i".
        asked: (Q,) ids of the items that asked.
        ids: (M,) ids of the items that were ranked.
        rows: (Q, K) ranked rows of the latter, best first, at least `DEPTH` where there are.
        rated: true items by query id, with ratings; a query with an empty list counts as missed,
            one without a list is left out.
    """
    known = set(ids.tolist())
    true = {
        query: [item for item, _ in rated[query] if item in known]
        for query in asked.tolist()
        if query in rated
    }
    return _recall(kind, asked, ids, rows, true)


def images(embedded: Tensor, ids: Tensor, rated: Rated, own: Self = "excluded") -> Crissed:
    """Recalls from images to other images; those without a true one are left out.

    Args:
        embedded: (I, D) one vector per image.
        ids: (I,) image ids.
        rated: rated images by image id.
        own: how an image is kept from finding itself, see `nearest`.
    """
    true = _related(ids, rated, IMAGE_RATING, {})
    return _recall("i2i", ids, ids, nearest(embedded, own=own), true)


def texts(
    embedded: Tensor, ids: Tensor, owner: Tensor, rated: Rated, own: Self = "excluded"
) -> Crissed:
    """Recalls from texts to other texts: those of the same image, and those rated alike.

    Args:
        embedded: (T, D) one vector per text.
        ids: (T,) text ids.
        owner: (T,) image of each text; -1 for none.
        rated: rated texts by text id.
        own: how a text is kept from finding itself, see `nearest`.
    """
    together: dict[int, list[int]] = {}
    for text, image in zip(ids.tolist(), owner.tolist()):
        together.setdefault(image, []).append(text)
    siblings = {t: group for i, group in together.items() if i >= 0 for t in group}
    true = _related(ids, rated, TEXT_RATING, siblings)
    return _recall("t2t", ids, ids, nearest(embedded, own=own), true)


def nearest(
    embedded: Tensor, depth: int = DEPTH, own: Self = "excluded", at_once: int = 512
) -> Tensor:
    """(N, K) rows of the nearest other items by inner product; the lower row wins ties.

    Args:
        embedded: (N, D).
        depth: how many.
        own: "excluded" takes an item out of its own ranking; "zero" sets its own similarity to 0
            as the authors of VSE-infinity do, so that it can come before items of negative
            similarity, and is kept for comparison with their numbers only.
        at_once: rows of similarities to hold.
    """
    lists = []
    for start in range(0, len(embedded), at_once):
        similar = embedded[start : start + at_once] @ embedded.T
        rows = torch.arange(len(similar), device=embedded.device)
        similar[rows, rows + start] = 0.0 if own == "zero" else -torch.inf
        lists.append(_first(similar, min(depth, len(embedded))))
    return torch.cat(lists)


def _first(similar: Tensor, depth: int) -> Tensor:
    places = similar.topk(depth, 1).indices.sort(1).values
    best, order = similar.gather(1, places).sort(stable=True, dim=1, descending=True)
    places = places.gather(1, order)
    shared = (similar >= best[:, -1:]).sum(1) > depth  # topk may keep any of equal scores
    if shared.any():
        places[shared] = (
            similar[shared].sort(stable=True, dim=1, descending=True).indices[:, :depth]
        )
    return places.masked_fill(best == -torch.inf, -1)


def _related(
    ids: Tensor, rated: Rated, threshold: float, siblings: Mapping[int, list[int]]
) -> dict[int, list[int]]:
    known = set(ids.tolist())
    true: dict[int, list[int]] = {}
    for item in ids.tolist():
        near = {other for other, rating in rated.get(item, ()) if rating >= threshold}
        near = (near | set(siblings.get(item, ()))) & known - {item}
        if near:
            true[item] = sorted(near)
    return true


def _recall(
    kind: Kind, asked: Tensor, ids: Tensor, rows: Tensor, true: Mapping[int, list[int]]
) -> Crissed:
    if not true:
        raise ValueError(f"none of the {len(asked)} {kind} queries has a rated item; check the ids")
    counted = torch.tensor([query in true for query in asked.tolist()])
    known: Truth = truth({query: true[query] for query in asked[counted].tolist()})
    picked = rows[counted].long().cpu()
    rankings = ids[picked.clamp(min=0)].masked_fill(picked < 0, -1)
    r1, r5, r10 = any_hit(rankings, known)
    return Crissed(kind, r1, r5, r10, len(known), len(asked) - len(known))
