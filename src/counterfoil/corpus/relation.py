"""Which text describes which image.

Two images and four texts, the last of which describes neither:

    text   0  1  2  3
    owner  0  0  1 -1

>>> relation = Relation(torch.tensor([0, 0, 1, -1]), images=2)
>>> relation.captions(torch.tensor([1, 0]))
(tensor([2, 0, 1]), tensor([1, 2]))
>>> relation.positive(torch.tensor([0, 1]), torch.arange(4)).int()
tensor([[1, 1, 0, 0],
        [0, 0, 1, 0]], dtype=torch.int32)
"""

from __future__ import annotations

from functools import cached_property
from typing import final

import torch
from torch import Tensor

from counterfoil.records import Pairs


@final
class Relation:
    """Every text describes one image or none; an image has any number of texts.

    Args:
        owner: (T,) long, the image each text describes, -1 for none.
        images: how many images there are.
        besides: rows of pairs that somebody found true besides; they are nobody's captions.

    Raises:
        ValueError: an owner that is no image.
    """

    def __init__(self, owner: Tensor, *, images: int, besides: Pairs | None = None) -> None:
        if len(owner) and not -1 <= int(owner.min()) <= int(owner.max()) < images:
            raise ValueError(
                f"texts describe images {int(owner.min())} to {int(owner.max())}, but there are "
                f"images 0 to {images - 1}; use -1 for a text that describes none"
            )
        self.owner, self.images, self.besides = owner.long(), images, besides

    @cached_property
    def _order(self) -> Tensor:
        """Texts sorted by the image they describe, those of no image first."""
        return torch.sort(self.owner, stable=True).indices

    @cached_property
    def counts(self) -> Tensor:
        """(I,) texts of each image."""
        return torch.bincount(self.owner[self.owner >= 0], minlength=self.images)

    @cached_property
    def _starts(self) -> Tensor:
        orphans = (self.owner < 0).sum()
        return orphans + self.counts.cumsum(0) - self.counts

    def rows(self) -> Tensor:
        """(I,) every image."""
        return torch.arange(self.images)

    def captions(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """All texts of these images, image after image, and how many each has."""
        counts = self.counts[images]
        first = (counts.cumsum(0) - counts).repeat_interleave(counts)
        place = torch.arange(len(first)) - first
        return self._order[self._starts[images].repeat_interleave(counts) + place], counts

    def random_caption(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """One text of each of these images, uniformly; -1 where an image has none."""
        if not len(self._order):
            return torch.full_like(images, -1)
        counts = self.counts[images]
        place = (torch.rand(images.shape, generator=rng) * counts).long().clamp(max=counts - 1)
        at = (self._starts[images] + place.clamp(min=0)).clamp(max=len(self._order) - 1)
        return torch.where(counts > 0, self._order[at], -1)

    def positive(self, images: Tensor, texts: Tensor) -> Tensor:
        """(I, T) bool, True where the text describes the image."""
        return images.unsqueeze(1) == self.owner[texts].unsqueeze(0)
