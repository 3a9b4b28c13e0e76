"""Orders in which what must not meet is drawn in different batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.types import Batch, ModalityBatch, Pairs, Role
from counterfoil.data.dataset import Relation
from counterfoil.data.processor import ProcessedDataset


def separate_positives(rows: Tensor, clashes: Pairs, batch: int) -> Tensor:
    """The same rows in nearly the same order, no two that clash in a batch.

    Who clashes changes places with the next that may stand there. Where nobody may, as in data of
    a batch or two, they meet.

    Args:
        rows: (N,) in the order in which they are drawn, each once.
        clashes: rows that must not meet.
        batch: how many are drawn together.

    >>> separate_positives(torch.tensor([3, 1, 0, 2]), Pairs(torch.tensor([3]), torch.tensor([1])), 2)
    tensor([3, 0, 1, 2])
    """
    order = _Order(rows, clashes, batch)
    for row in sorted(order.against):
        order.move(row)
    return torch.tensor(order.rows, dtype=torch.long)


def separate_texts(relation: Relation) -> Pairs | None:
    """Captions that must not meet: those judged true of an image, and its own ones."""
    besides = relation.besides
    if besides is None:
        return None
    own, counts = relation.captions(besides.image)
    return Pairs(besides.text.repeat_interleave(counts), own)


def separate_images(relation: Relation) -> Pairs | None:
    """Images that must not meet, for a caption of the one was judged true of the other."""
    besides = relation.besides
    if besides is None:
        return None
    own = relation.text_to_image[besides.text]
    return Pairs(own[own >= 0], besides.image[own >= 0])


def conflicts_of(clashes: Pairs | None) -> dict[int, set[int]]:
    """Of every row that clashes with any, with whom.

    >>> conflicts_of(Pairs(torch.tensor([3, 2]), torch.tensor([1, 2])))
    {3: {1}, 1: {3}}
    """
    found: dict[int, set[int]] = {}
    if clashes is None:
        return found
    for one, other in zip(clashes.image.tolist(), clashes.text.tolist(), strict=True):
        if one != other:
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
    return found


@final
class _Order:
    """Rows on their places, and who must not stand in a batch with whom."""

    def __init__(self, rows: Tensor, clashes: Pairs, batch: int) -> None:
        self.rows, self.batch = rows.tolist(), batch
        self.place = {row: place for place, row in enumerate(self.rows)}
        self.against = {
            row: here
            for row, foes in conflicts_of(clashes).items()
            if row in self.place and (here := foes & self.place.keys())
        }

    def move(self, row: int) -> None:
        """Exchange a row with another one, if somebody is in its batch who must not be."""
        here, many = self.place[row], len(self.rows)
        if not self._clashes(row, here):
            return
        for step in range(1, many):
            there = (here + step) % many
            other = self.rows[there]
            if there // self.batch == here // self.batch:
                continue
            if not self._clashes(row, there, other) and not self._clashes(other, here, row):
                self.rows[here], self.rows[there] = other, row
                self.place[row], self.place[other] = there, here
                return

    def _clashes(self, row: int, place: int, but: int = -1) -> bool:
        """Whether somebody who must not be stands in the batch of a place, one of them apart."""
        batch = place // self.batch
        foes = self.against.get(row, set())
        return any(foe != but and self.place[foe] // self.batch == batch for foe in foes)


# Which captions meet in a batch; resumable at any batch.


@final
class BatchSampler:
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
        self._texts = (relation.text_to_image >= 0).nonzero().squeeze(1)
        self._images = (relation.counts > 0).nonzero().squeeze(1)
        self._apart = separate_images(relation) if all_captions else separate_texts(relation)
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
        return rows if self._apart is None else separate_positives(rows, self._apart, self.batch)


# Turns drawn data set rows into a batch.


Positives = Literal["id", "diagonal"]


@final
class _Pool:
    """Corpus rows in order of first use, so that nothing is encoded twice."""

    def __init__(self, anchors: Tensor) -> None:
        self._rows = anchors.tolist()
        self._place = {row: place for place, row in reversed(list(enumerate(self._rows)))}

    def places(self, rows: Tensor) -> Tensor:
        flat = []
        for row in rows.flatten().tolist():
            if row not in self._place:
                self._place[row] = len(self._rows)
                self._rows.append(row)
            flat.append(self._place[row])
        return torch.tensor(flat, dtype=torch.long).view(rows.shape)

    def rows(self) -> Tensor:
        return torch.tensor(self._rows, dtype=torch.long)


def _placed(roles: Mapping[Role, Pairs], image_pool: _Pool, text_pool: _Pool) -> dict[Role, Pairs]:
    return {
        role: Pairs(image_pool.places(pair.image), text_pool.places(pair.text))
        for role, pair in roles.items()
    }


def shard_rows(rows: Tensor) -> Tensor:
    """This process's share of a pool; the last row stands in where the rows do not divide."""
    mine = distributed.shard(len(rows))
    return rows[torch.arange(mine.start, mine.stop).clamp(max=len(rows) - 1)]


def _offered(
    processor: ProcessedDataset, candidates: Mapping[Role, Pairs], texts: Tensor
) -> tuple[ModalityBatch, ModalityBatch] | None:
    """What the candidates of this process's share of the anchors are made of, each once."""
    if not candidates:
        return None
    mine = shard_rows(torch.arange(len(texts)))
    images = [processor.dataset.relation.text_to_image[texts[mine]]]
    images += [pair.image[mine].flatten() for pair in candidates.values()]
    captions = [texts[mine], *(pair.text[mine].flatten() for pair in candidates.values())]
    seen, read = (torch.unique(rows) for rows in (torch.cat(images), torch.cat(captions)))
    return processor.images(seen[seen >= 0]), processor.texts(read[read >= 0])


def _told(processor: ProcessedDataset, texts: Tensor, row: Tensor, pool: int) -> Tensor | None:
    """(N, C, L) token ids of the anchor captions of each image in this process's share.

    Args:
        processor: where texts come from.
        texts: (B,) anchor text rows.
        row: (B,) places of their images in the pool.
        pool: how many images it has.
    """
    mine = distributed.shard(pool)
    count = mine.stop - mine.start
    here = (row >= mine.start) & (row < mine.stop)
    if not bool(here.any()):
        return torch.full((count, 1, 1), -1)
    items, place = processor.texts(texts[here]), row[here] - mine.start
    if items.values.is_floating_point():
        return None
    earlier = (place.unsqueeze(1) == place).tril(-1).sum(1)
    told = torch.full((count, int(earlier.max()) + 1, items.values.shape[1]), -1)
    told[place, earlier] = items.values.masked_fill(~items.mask, -1)
    return told


def collate(
    processor: ProcessedDataset,
    texts: Tensor,
    *,
    drawn: Mapping[Role, Pairs] | None = None,
    candidates: Mapping[Role, Pairs] | None = None,
    positives: Positives = "id",
    step: int = 0,
) -> Batch:
    """A batch of B anchor texts, their images (each once), and drawn candidates behind them.

    Two captions of one image share its row, and each is a positive of it. Every process calls
    this with the same rows; each reads only its share of the pools.

    Args:
        processor: where items come from.
        texts: (B,) anchor text rows.
        drawn: pairs of data set rows by role, each (B, N).
        candidates: pairs of data set rows for a proposer to screen, each (B, N); -1 for none. Each
            process reads those of its share of the anchors.
        positives: by image id, or "diagonal": the authors' form, where image b stands once for
            every anchor and the other captions of the same image count as negatives.
        step: how many batches came before.
    """
    relation = processor.dataset.relation
    owners = relation.text_to_image[texts]
    assert (owners >= 0).all(), "an anchor text describes an image"
    if positives == "id":
        images, row = torch.unique(owners, return_inverse=True)
        positive = relation.positive(images, texts)
    else:
        images, row = owners, torch.arange(len(texts))
        positive = torch.eye(len(texts), dtype=torch.bool)
    image_pool, text_pool = _Pool(images), _Pool(texts)
    pairs = _placed(drawn or {}, image_pool, text_pool)
    seen = processor.images(shard_rows(image_pool.rows()))
    return Batch(
        step=step,
        image_rows=image_pool.rows(),
        text_rows=text_pool.rows(),
        images=replace(seen, targets=_told(processor, texts, row, len(image_pool.rows()))),
        texts=processor.texts(shard_rows(text_pool.rows())),
        block=(len(images), len(texts)),
        positive=positive,
        anchors=Pairs(row, torch.arange(len(texts))),
        pairs=pairs,
        candidates=candidates or {},
        offered=_offered(processor, candidates or {}, texts),
    )
