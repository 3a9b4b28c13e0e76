"""A query, its true counterparts and its nearest wrong ones as points of the plane.

NDGL (Zhou et al., AAAI 2025), Fig. 1b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.engine.sweep import sweep
from counterfoil.engine.tiles import Member
from counterfoil.engine.topk import TopK
from counterfoil.evaluate.embeddings import unit_vectors
from counterfoil.evaluate.projection import Projection, principal, tsne
from counterfoil.evaluate.recall import Direction, check_owner


@final
@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """A query and what lies around it.

    Attributes:
        direction: "i2t", an image among texts, or "t2i".
        row: of the query.
        true: (P,) rows of its true counterparts.
        wrong: (N,) rows of its nearest wrong ones, nearest first.
        points: (1 + P + N, 2) the query, true, wrong.
        cosines: (1 + P + N, 1 + P + N) between their vectors.
    """

    direction: Direction
    row: int
    true: Tensor
    wrong: Tensor
    points: Tensor
    cosines: Tensor

    @property
    def to_true(self) -> float | None:
        """Mean cosine of the query with its true counterparts."""
        return _mean(self.cosines[0, 1 : 1 + len(self.true)])

    @property
    def to_wrong(self) -> float | None:
        """Mean cosine of the query with its nearest wrong ones."""
        return _mean(self.cosines[0, 1 + len(self.true) :])

    @property
    def among_wrong(self) -> float | None:
        """Mean cosine of two of the nearest wrong ones."""
        inner = self.cosines[1 + len(self.true) :, 1 + len(self.true) :]
        return _mean(inner[~torch.eye(len(inner), dtype=torch.bool)])


def neighbourhood(
    members: Sequence[Member],
    owner: Tensor,
    direction: Direction,
    row: int,
    *,
    negatives: int = 100,
    method: Projection = "tsne",
) -> Neighbourhood:
    """What lies around a query.

    Args:
        members: models with what they encoded; of an ensemble, vectors are set side by side.
        owner: (T,) image of each text, -1 for none.
        direction: "i2t", the query is an image, or "t2i".
        row: of the query.
        negatives: wrong counterparts; all, where there are fewer.
        method: t-SNE or principal components.

    Raises:
        ValueError: `owner` does not fit the encodings, nothing is wrong for the query, images and
            texts are vectors of different widths, or scikit-learn is needed and not installed.
    """
    check_owner(owner, len(members[0].images), len(members[0].texts))
    if direction == "i2t":
        true = (owner == row).nonzero().flatten()
        query, others = [m.images for m in members], [m.texts for m in members]
    else:
        true = owner[row : row + 1]
        true = true[true >= 0]
        query, others = [m.texts for m in members], [m.images for m in members]
    wrong = _nearest(members, owner, direction, row, negatives)
    asked = unit_vectors([side.rows(torch.tensor([row])) for side in query])
    around = unit_vectors([side.rows(torch.cat([true, wrong])) for side in others])
    if asked.shape[1] != around.shape[1]:
        raise ValueError(
            f"images and texts of this model are vectors of {asked.shape[1]} and "
            f"{around.shape[1]} numbers, which share no map; name a model that has one width"
        )
    vectors = torch.cat([asked, around])
    points = tsne(vectors) if method == "tsne" else principal(vectors)
    return Neighbourhood(direction, row, true, wrong, points, vectors @ vectors.T)


def _nearest(
    members: Sequence[Member], owner: Tensor, direction: Direction, row: int, negatives: int
) -> Tensor:
    """Rows of the wrong counterparts that score highest."""
    one = torch.tensor([row])
    if direction == "i2t":
        alone = [Member(m.matcher, m.images.rows(one), m.texts) for m in members]
        best = TopK("image", 1, negatives, torch.where(owner == row, 0, -1))
    else:
        alone = [Member(m.matcher, m.images, m.texts.rows(one)) for m in members]
        best = TopK("text", 1, negatives, owner[one])
    sweep(alone, [best])
    found = best.rows[0].long().cpu()
    found = found[found >= 0]
    if not len(found):
        raise ValueError(
            f"nothing is wrong for {'image' if direction == 'i2t' else 'text'} row {row}; more "
            "than one image is needed"
        )
    return found


def _mean(values: Tensor) -> float | None:
    return values.mean().item() if len(values) else None
