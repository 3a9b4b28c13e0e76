"""Ranked hard negatives of every image and every text, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.relation import Relation

_AT_ONCE = 16384


@final
@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """The hardest wrong counterparts, hardest first; -1 fills lists that are short.

    Attributes:
        texts: (I, h) int32, text rows.
        images: (T, h') int32, image rows.
        text_scores: (I, h) float16, where they are known; -inf beside -1.
        image_scores: (T, h') float16, where they are known.
    """

    texts: Tensor
    images: Tensor
    text_scores: Tensor | None = None
    image_scores: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.texts.dtype == self.images.dtype == torch.int32
        assert (self.text_scores is None) == (self.image_scores is None)

    def in_words(self) -> str:
        """How many there are, and how long they are."""
        (images, texts_each), (texts, images_each) = self.texts.shape, self.images.shape
        return (
            f"{texts_each:,} texts of each of {images:,} images and {images_each:,} images of each "
            f"of {texts:,} texts"
        )

    def check(self, relation: Relation) -> None:
        """Whether they can be the lists of this corpus.

        Raises:
            ValueError: another number of images or texts, or a true pair among the negatives.
        """
        have, want = (len(self.texts), len(self.images)), (relation.images, len(relation.owner))
        if have != want:
            raise ValueError(
                f"the lists are of {have[0]} images and {have[1]} texts, but the corpus has "
                f"{want[0]} and {want[1]}; mine them again from this corpus"
            )
        owner, rows = relation.owner.int(), torch.arange(relation.images, dtype=torch.int32)
        own = sum(
            int(((owner[self.texts[p].long()] == rows[p, None]) & (self.texts[p] >= 0)).sum())
            for p in _parts(len(self.texts))
        )
        own += int(((self.images == owner.unsqueeze(1)) & (self.images >= 0)).sum())
        if own:
            raise ValueError(
                f"the lists hold {own} pairs that are true in this corpus; they were made from "
                "captions in another order or of other images, so mine them again"
            )


def usable(lists: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Lists without the rows that are not wanted, and how long each has become.

    Args:
        lists: (Q, k) int32, -1 where short.
        wanted: (R,) bool, by row.

    Returns:
        (Q, k) the kept rows first, in order, and (Q,) long, how many those are.
    """
    keep = torch.cat([(wanted[lists[p].long()] & (lists[p] >= 0)) for p in _parts(len(lists))])
    if bool((~keep[:, :-1] & keep[:, 1:]).any()):
        order = (~keep).byte().argsort(dim=1, stable=True)
        lists = lists.gather(1, order)
    return lists, keep.sum(1)


def never(
    texts: Tensor, images: Tensor, relation: Relation, counts: tuple[Tensor, Tensor]
) -> Tensor:
    """Anchor captions all of whose mined texts describe their one mined image.

    Args:
        texts: (I, h) usable mined texts.
        images: (T, h') usable mined images.
        relation: who describes whom.
        counts: (I,) and (T,) how many of each are usable.

    Returns:
        (n,) text rows of anchors for which no wrong derived pair exists.
    """
    text_counts, image_counts = counts
    place = torch.arange(images.shape[1])
    single = torch.cat(
        [
            ((images[p] == images[p, :1]) | (place >= image_counts[p, None])).all(1)
            for p in _parts(len(images))
        ]
    )
    rows = (single & (relation.owner >= 0)).nonzero().squeeze(1)
    own = relation.owner[rows]
    listed = relation.owner.int()[texts[own].long()] == images[rows, :1]
    beyond = torch.arange(texts.shape[1]) >= text_counts[own].unsqueeze(1)
    return rows[(listed | beyond).all(1)]


def _parts(count: int) -> Iterator[slice]:
    """Rows a few at a time, so that nothing as large as the lists is held beside them."""
    for start in range(0, max(count, 1), _AT_ONCE):
        yield slice(start, start + _AT_ONCE)
