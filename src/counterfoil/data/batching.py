"""Training batches: their order, and their assembly from data set rows.

Captions that were judged true of another image are separated from it, or put into a batch with it
for a loss that learns from extra positives. Where a batch holds such a pair, or two captions of one
wording, they are no negatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.types import Batch, ExemptPairs, ModalityBatch, Pairs, Role
from counterfoil.data.dataset import Relation
from counterfoil.data.processor import ProcessedDataset


def separate_positives(rows: Tensor, clashes: Pairs, batch: int) -> Tensor:
    """Reorder rows as little as possible, so that no batch holds two that conflict.

    A row in conflict is exchanged with the next one that fits. If none does, as in data of a batch
    or two, the conflict stays.

    >>> clashes = Pairs(torch.tensor([3]), torch.tensor([1]))
    >>> separate_positives(torch.tensor([3, 1, 0, 2]), clashes, 2)
    tensor([3, 0, 1, 2])
    """
    order = rows.tolist()
    place = {row: at for at, row in enumerate(order)}
    conflicts = {
        row: present
        for row, others in conflicts_of(clashes).items()
        if row in place and (present := others & place.keys())
    }

    def in_conflict(row: int, at: int, leaving: int = -1) -> bool:
        """Return True if a row conflicts with the batch at a place, the row `leaving` aside."""
        batch_rows = (other for other in conflicts.get(row, ()) if other != leaving)
        return any(place[other] // batch == at // batch for other in batch_rows)

    for row in sorted(conflicts):
        here = place[row]
        if not in_conflict(row, here):
            continue
        for there in ((here + step) % len(order) for step in range(1, len(order))):
            other = order[there]
            if there // batch == here // batch:
                continue
            if not in_conflict(row, there, other) and not in_conflict(other, here, row):
                order[here], order[there] = other, row
                place[row], place[other] = there, here
                break
    return torch.tensor(order, dtype=torch.long)


def separate_texts(relation: Relation) -> Pairs | None:
    """Captions that must not share a batch: no negatives of an image, and its own captions."""
    exempt = relation.exempt
    if exempt is None:
        return None
    captions, counts = relation.captions(exempt.image)
    return Pairs(exempt.text.repeat_interleave(counts), captions)


def separate_images(relation: Relation) -> Pairs | None:
    """Images that must not share a batch: a caption of one is no negative of the other."""
    exempt = relation.exempt
    if exempt is None:
        return None
    images = relation.text_to_image[exempt.text]
    return Pairs(images[images >= 0], exempt.image[images >= 0])


def conflicts_of(clashes: Pairs | None) -> dict[int, set[int]]:
    """The rows that each row conflicts with; rows without a conflict are left out.

    >>> conflicts_of(Pairs(torch.tensor([3, 2]), torch.tensor([1, 2])))
    {3: {1}, 1: {3}}
    """
    conflicts: dict[int, set[int]] = {}
    if clashes is None:
        return conflicts
    for row, other in zip(clashes.image.tolist(), clashes.text.tolist(), strict=True):
        if row != other:
            conflicts.setdefault(row, set()).add(other)
            conflicts.setdefault(other, set()).add(row)
    return conflicts


@final
class ExtraPositivePartition:
    """Puts the image of an extra positive's caption and the extra positive's image together.

    A batch of random captions rarely holds an extra positive. Images are matched in pairs, along
    the extra positives in random order as far as both images are free; the others are matched at
    random.

    >>> besides = Pairs(torch.tensor([2]), torch.tensor([0]))
    >>> relation = Relation(torch.arange(3), images=3, besides=besides)
    >>> rng = torch.Generator().manual_seed(0)
    >>> ExtraPositivePartition(relation).partition(torch.arange(3), 2, rng)
    (tensor([[0, 2]]), tensor([1]))
    """

    def __init__(self, relation: Relation) -> None:
        assert relation.besides is not None
        images = relation.text_to_image[relation.besides.text]
        described = (images >= 0) & (images != relation.besides.image)
        self._pairs = torch.stack([images, relation.besides.image], 1)[described]

    def partition(self, images: Tensor, batch: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return (C, 2) pairs of the (N,) different images, and the one that may remain."""
        free = dict.fromkeys(images[torch.randperm(len(images), generator=rng)].tolist())
        order = torch.randperm(len(self._pairs), generator=rng)
        rows = []
        for one, other in self._pairs[order].tolist():
            if one in free and other in free:
                del free[one], free[other]
                rows.append((one, other))
        others = torch.tensor(list(free), dtype=torch.long)
        even = len(others) // 2 * 2
        pairs = torch.cat(
            [torch.tensor(rows, dtype=torch.long).view(-1, 2), others[:even].view(-1, 2)]
        )
        return pairs[torch.randperm(len(pairs), generator=rng)], others[even:]


class ImagePartition(Protocol):
    """Puts images together that are to share a batch."""

    def partition(self, images: Tensor, batch: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return (C, size) communities of the (N,) different images, and those that remain.

        Depends on the images, the size of a batch and the state of `rng` only.
        """
        ...


@final
class BatchSampler:
    """Shuffles captions into batches, in an order that depends on seed and epoch alone.

    A caption that was judged to be no negative of another image is kept out of a batch with it,
    unless the data are a batch or two; then `Batch.exempt` names the pair.

    Args:
        relation: which text describes which image; texts of no image are left out.
        batch: anchors of a batch.
        seed: of the orders of all epochs.
        one_caption: use each image once an epoch with a random caption, instead of every caption
            once.
        drop_last: leave out a short last batch.
        all_captions: use each image once an epoch with all of its captions; `batch` counts images.
        partition: puts images together; None shuffles. Where every caption is used, an epoch
            partitions the images anew for each caption of an image.
        together: put extra positives into a batch together, for a loss that learns from them,
            unless `partition` is given.
        parts: image rows of several data sets. An epoch begins each of them anew.
        weights: how often it draws each anchor of a part.
        homogeneous: fill each batch from one part, the parts in random order; otherwise each part
            is spread evenly over the epoch.
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
        partition: ImagePartition | None = None,
        together: bool = False,
        parts: Sequence[Tensor] = (),
        weights: Sequence[float] = (),
        homogeneous: bool = False,
    ) -> None:
        if batch < 1:
            raise ValueError(f"a batch of {batch} is too small; it needs at least one anchor")
        self.batch, self.seed = batch, seed
        if one_caption and all_captions:
            raise ValueError("one_caption and all_captions exclude each other; set one of the two")
        self.one_caption, self.drop_last, self.all_captions = one_caption, drop_last, all_captions
        self.homogeneous = homogeneous
        self._parts = [
            BatchSampler(
                relation.of_images(images),
                batch=batch,
                seed=seed,
                one_caption=one_caption,
                all_captions=all_captions,
                partition=partition,
                together=together,
            )
            for images in parts
        ]
        self._drawn = [
            max(1, round(weight * part._count))
            for weight, part in zip(weights, self._parts, strict=True)
        ]
        if together and relation.besides is not None:
            partition = partition or ExtraPositivePartition(relation)
            relation = Relation(
                relation.text_to_image, images=relation.images, ambiguous=relation.ambiguous
            )
        self.relation, self.partition = relation, partition
        self._texts = relation.owned
        self._images = relation.described
        self._clashes = separate_images(relation) if all_captions else separate_texts(relation)
        fewest = min(self._drawn) if homogeneous else self._count
        if len(self) < 1 or (homogeneous and drop_last and fewest < batch):
            raise ValueError(
                f"{fewest} anchors do not fill one batch of {batch}; use a smaller batch"
                if self._count
                else "no image has a caption, so there is nothing to train on"
            )

    @property
    def _count(self) -> int:
        return len(self._images if self.one_caption or self.all_captions else self._texts)

    def __len__(self) -> int:
        """Batches in an epoch."""
        counts = self._drawn if self.homogeneous else [sum(self._drawn) or self._count]
        return sum(n // self.batch if self.drop_last else -(-n // self.batch) for n in counts)

    def epoch(self, number: int, *, start: int = 0) -> Iterator[Tensor]:
        """(B,) text rows of each batch of an epoch, from batch `start` on."""
        for rows in self._batches(number)[start:]:
            yield self.relation.captions(rows)[0] if self.all_captions else rows

    def _batches(self, number: int) -> list[Tensor]:
        """(B,) rows of the anchors of each batch of an epoch."""
        if not self._parts:
            return self._cut(self._order(number))
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        drawn = []
        for part, count in zip(self._parts, self._drawn, strict=True):
            passes = -(-count // part._count)
            turns = range(number * passes, (number + 1) * passes)
            drawn.append(torch.cat([part._order(turn) for turn in turns])[:count])
        if self.homogeneous:
            batches = [batch for rows in drawn for batch in self._cut(rows)]
            return [batches[n] for n in torch.randperm(len(batches), generator=rng).tolist()]
        # of n anchors, one is in each n-th of the epoch
        places = [(torch.arange(n) + torch.rand(n, generator=rng)) / n for n in self._drawn]
        return self._cut(torch.cat(drawn)[torch.cat(places).argsort(stable=True)])

    def _cut(self, rows: Tensor) -> list[Tensor]:
        whole = len(rows) // self.batch * self.batch if self.drop_last else len(rows)
        return [*torch.split(rows[:whole], self.batch)] if whole else []

    def _order(self, number: int) -> Tensor:
        """Rows of the anchors of an epoch: texts, or with `all_captions` images."""
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        if self.all_captions:
            rows = self._shuffled_images(rng)
        elif self.one_caption:
            rows = self.relation.random_caption(self._shuffled_images(rng), rng)
        elif self.partition:
            rows = self._partitioned_texts(self.partition, rng)
        else:
            rows = self._texts[torch.randperm(self._count, generator=rng)]
        if self._clashes is not None and len(rows) > self.batch:  # one batch cannot be separated
            rows = separate_positives(rows, self._clashes, self.batch)
        return rows

    def _shuffled_images(self, rng: torch.Generator) -> Tensor:
        """Images in random order, those of a community together."""
        if self.partition is None:
            return self._images[torch.randperm(self._count, generator=rng)]
        communities, rest = self.partition.partition(self._images, self.batch, rng)
        return torch.cat([communities.flatten(), rest])

    def _partitioned_texts(self, partition: ImagePartition, rng: torch.Generator) -> Tensor:
        """Each caption once: images are partitioned with a first caption, then with a second.

        Images that remain from the partitions come last, so that batches hold whole communities.
        """
        texts = self._texts[torch.randperm(self._count, generator=rng)]
        images, order = self.relation.text_to_image[texts].sort(stable=True)
        texts = texts[order]
        turn = torch.arange(len(texts)) - torch.searchsorted(images, images)
        caption = torch.empty(self.relation.images, dtype=torch.long)
        rows, remaining = [], []
        for number in range(int(turn.max()) + 1):
            present = turn == number
            caption[images[present]] = texts[present]
            communities, rest = partition.partition(images[present], self.batch, rng)
            rows.append(caption[communities.flatten()])
            remaining.append(caption[rest])
        return torch.cat([*rows, *remaining])


def _row_pool(anchors: Tensor, candidates: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Data set rows in order of first use, so that nothing is encoded twice.

    Returns:
        The rows, those of the anchors first, and the places of the drawn ones among them.
    """
    rows = anchors.tolist()
    place = {row: at for at, row in reversed(list(enumerate(rows)))}  # the first of equal rows
    places = []
    for part in candidates:
        flat = part.flatten().tolist()
        for row in flat:
            if row not in place:
                place[row] = len(rows)
                rows.append(row)
        places.append(torch.tensor([place[row] for row in flat], dtype=torch.long).view(part.shape))
    return torch.tensor(rows, dtype=torch.long), places


def shard_rows(rows: Tensor) -> Tensor:
    """This process's share of a pool; the last row is repeated if the rows do not divide evenly."""
    share = distributed.shard(len(rows))
    return rows[torch.arange(share.start, share.stop).clamp(max=len(rows) - 1)]


def _offered(
    processor: ProcessedDataset, candidates: Mapping[Role, Pairs], texts: Tensor
) -> tuple[ModalityBatch, ModalityBatch] | None:
    """Images and texts of the candidates of this process's share of the anchors, each once."""
    if not candidates:
        return None
    share = shard_rows(torch.arange(len(texts)))
    images = [processor.dataset.relation.text_to_image[texts[share]]]
    images += [pair.image[share].flatten() for pair in candidates.values()]
    captions = [texts[share], *(pair.text[share].flatten() for pair in candidates.values())]
    image_rows, text_rows = torch.cat(images).unique(), torch.cat(captions).unique()  # type: ignore[no-untyped-call]
    return processor.images(image_rows[image_rows >= 0]), processor.texts(text_rows[text_rows >= 0])


def _targets(processor: ProcessedDataset, texts: Tensor, row: Tensor, pool: int) -> Tensor | None:
    """(N, C, L) token ids of the anchor captions of each image in this process's share."""
    share = distributed.shard(pool)
    count = share.stop - share.start
    here = (row >= share.start) & (row < share.stop)
    if not bool(here.any()):
        return torch.full((count, 1, 1), -1)
    items, place = processor.texts(texts[here]), row[here] - share.start
    if items.values.is_floating_point():
        return None
    # Number of earlier captions of the same image: the slot of each caption among its image's.
    in_order, order = place.sort(stable=True)
    earlier = torch.empty_like(place)
    earlier[order] = torch.arange(len(place)) - torch.searchsorted(in_order, in_order)
    targets = torch.full((count, int(earlier.max()) + 1, items.values.shape[1]), -1)
    targets[place, earlier] = items.values.masked_fill(~items.mask, -1)
    return targets


def collate(
    processor: ProcessedDataset,
    texts: Tensor,
    *,
    negatives: Mapping[Role, Pairs] | None = None,
    candidates: Mapping[Role, Pairs] | None = None,
    step: int = 0,
) -> Batch:
    """Build a batch of B anchor texts and their images, each once, followed by negatives.

    Two captions of one image share its row, and each is a positive of it; with "diagonal"
    positives of the data set an image is repeated for each of its anchors. Every process calls
    this with the same rows; each reads only its share of the pools.

    Args:
        processor: of images and texts.
        texts: (B,) anchor text rows.
        negatives: pairs of data set rows by role, each (B, N).
        candidates: pairs of data set rows that a `NegativeSource` chooses from, each (B, N); -1 for
            none. Each process reads those of its share of the anchors.
        step: number of earlier batches.
    """
    relation = processor.dataset.relation
    text_to_image = relation.text_to_image[texts]
    assert (text_to_image >= 0).all(), "an anchor text describes an image"
    if processor.dataset.positives == "diagonal":
        images, row = text_to_image, torch.arange(len(texts))
    else:
        images, row = torch.unique(text_to_image, return_inverse=True)
    candidates = {
        role: _without_exempt(role, p, relation) for role, p in (candidates or {}).items()
    }
    negatives = negatives or {}
    image_rows, image_places = _row_pool(images, [pair.image for pair in negatives.values()])
    text_rows, text_places = _row_pool(texts, [pair.text for pair in negatives.values()])
    image_items = processor.images(shard_rows(image_rows))
    targets = _targets(processor, texts, row, len(image_rows))
    return Batch(
        step=step,
        image_rows=image_rows,
        text_rows=text_rows,
        images=replace(image_items, targets=targets),
        texts=processor.texts(shard_rows(text_rows)),
        block=(len(images), len(texts)),
        anchors=Pairs(row, torch.arange(len(texts))),
        pairs=dict(zip(negatives, map(Pairs, image_places, text_places))),
        candidates=candidates,
        offered=_offered(processor, candidates, texts),
        exempt=_exempt(relation, images, texts, row, negatives),
        equal=relation.equal,
    )


def _exempt(
    relation: Relation,
    images: Tensor,
    texts: Tensor,
    anchor: Tensor,
    negatives: Mapping[Role, Pairs],
) -> ExemptPairs | None:
    """The pairs of a block and of drawn negatives that are no negatives.

    Those of the block by equal wording are left to `Batch.equal`: they may be all of its pairs.
    """
    if not relation.spares_pairs:
        return None
    none = torch.zeros(0, dtype=torch.long)
    exempt = relation.exempt or Pairs(none, none)
    present = torch.zeros_like(relation.text_to_image, dtype=torch.bool)
    present[texts] = True
    pair = present[exempt.text].nonzero().squeeze(1)
    # a text has several places where a weight draws it twice
    again, text = _all_places(texts, exempt.text[pair])
    pair = pair[again]
    # an image has several rows where each text has one of its own
    again, image = _all_places(images, exempt.image[pair])
    pair, text = pair[again], text[again]
    wrong = anchor[text] != image
    exempt_negatives = {
        r: relation.exempt_weight(p.image, p.text) >= 0 for r, p in negatives.items()
    }
    weight = relation.exempt_weights[pair]
    return ExemptPairs(Pairs(image[wrong], text[wrong]), weight[wrong], exempt_negatives)


def _all_places(values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Every place in `values` of each wanted one: numbers of the wanted, and the places.

    >>> _all_places(torch.tensor([7, 5, 7]), torch.tensor([5, 6, 7]))
    (tensor([0, 2, 2]), tensor([1, 0, 2]))
    """
    order = values.argsort(stable=True)
    first, end = (torch.searchsorted(values[order], wanted, right=right) for right in (False, True))
    counts = end - first
    turn = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    number = torch.arange(len(wanted)).repeat_interleave(counts)
    return number, order[first[number] + turn]


def _without_exempt(role: Role, pairs: Pairs, relation: Relation) -> Pairs:
    """Candidates with -1 in place of those that are no negatives."""
    if not relation.spares_pairs:
        return pairs
    out = relation.exempt_weight(pairs.image, pairs.text) >= 0
    if role is Role.HARD_TEXT:
        return Pairs(pairs.image, pairs.text.masked_fill(out, -1))
    return Pairs(pairs.image.masked_fill(out, -1), pairs.text)
