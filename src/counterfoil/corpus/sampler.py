"""Which captions meet in a batch; resumable at any batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.apart import apart, images_apart, texts_apart
from counterfoil.corpus.relation import Relation


@final
class Sampler:
    """Shuffles captions into batches, a fresh order each epoch, the same from the same seed.

    A caption that was judged true of another image is never in a batch with it, where it would be
    taken for a negative.

    Args:
        relation: who describes whom; texts of no image are never drawn.
        batch: anchors in a batch.
        seed: of all epochs' orders.
        one_caption: draw each image once an epoch with one of its captions, instead of every
            caption once.
        drop_last: leave out a short last batch.
        all_captions: draw each image once an epoch with all of its captions; `batch` counts images.

    Raises:
        ValueError: there is not even one batch.
    """

    def __init__(
        self,
        relation: Relation,
        *,
        batch: int,
        seed: int,
        one_caption: bool = False,
        drop_last: bool = False,
        all_captions: bool = False,
    ) -> None:
        if batch < 1:
            raise ValueError(f"a batch of {batch} cannot be drawn; it needs at least one anchor")
        self.relation, self.batch, self.seed = relation, batch, seed
        if one_caption and all_captions:
            raise ValueError("an image is drawn with one caption or with all; name one of the two")
        self.one_caption, self.drop_last, self.all_captions = one_caption, drop_last, all_captions
        self._texts = (relation.owner >= 0).nonzero().squeeze(1)
        self._images = (relation.counts > 0).nonzero().squeeze(1)
        self._apart = images_apart(relation) if all_captions else texts_apart(relation)
        if len(self) < 1:
            raise ValueError(
                f"{self._count} anchors do not fill one batch of {batch}; use a smaller batch"
                if self._count
                else "no image has a caption, so there is nothing to train on"
            )

    @property
    def _count(self) -> int:
        return len(self._images if self.one_caption or self.all_captions else self._texts)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._count // self.batch if self.drop_last else -(-self._count // self.batch)

    def epoch(self, number: int, *, start: int = 0) -> Iterator[Tensor]:
        """(B,) text rows of each batch of an epoch, from batch `start` on."""
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        if self.all_captions:
            yield from self._whole(rng, start)
            return
        if self.one_caption:
            images = self._images[torch.randperm(self._count, generator=rng)]
            rows = self.relation.random_caption(images, rng)
        else:
            rows = self._texts[torch.randperm(self._count, generator=rng)]
        rows = self._parted(rows)
        for place in range(start, len(self)):
            yield rows[place * self.batch : (place + 1) * self.batch]

    def _whole(self, rng: torch.Generator, start: int) -> Iterator[Tensor]:
        """Batches of images with all of their captions."""
        images = self._parted(self._images[torch.randperm(self._count, generator=rng)])
        for place in range(start, len(self)):
            yield self.relation.captions(images[place * self.batch : (place + 1) * self.batch])[0]

    def _parted(self, rows: Tensor) -> Tensor:
        return rows if self._apart is None else apart(rows, self._apart, self.batch)
