"""Batches of mutual hard negatives, composed from mined lists.

B3 (https://arxiv.org/abs/2505.11293): images are the nodes of a graph, which links two images
where one is among the mined neighbours of the other, but not among the very nearest, which may
show the same. The graph is cut into communities of equal size, and random communities form a batch,
so that every loss sees hard negatives in a batch of any size.

Departs from the paper in: the communities grow one after another from random images instead of
METIS, anew in every epoch; the nearest neighbours are not only unlinked but kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.types import Pairs
from counterfoil.data.batching import separate_images
from counterfoil.data.dataset import Relation
from counterfoil.negatives.store import HardNegativeLists

_IMAGES_AT_ONCE = 4096  # images whose lists are merged together, which bounds memory


@final
@dataclass(frozen=True, kw_only=True)
class BatchMiningConfig:
    """Which mined neighbours share a batch.

    Neighbours of an image are ranked over all lists that connect the two, see `rank_neighbours`.

    Attributes:
        size: images of a community; one that is larger than the batch is cut to it.
        skip: nearest neighbours of each image that are kept out of its communities, as suspected
            positives; p in B3.
        neighbours: neighbours behind these that an image is linked with; m in B3.

    Raises:
        ValueError: a number out of range.
    """

    size: int = 32
    skip: int = 5
    neighbours: int = 100

    def __post_init__(self) -> None:
        if self.size < 2 or self.neighbours < 1 or self.skip < 0:
            raise ValueError(
                f"size={self.size}, skip={self.skip}, neighbours={self.neighbours}: a community "
                "needs 2 images or more, each with at least 1 neighbour, and skip is not below 0"
            )


@final
class NeighbourBatches:
    """Partitions images into communities of mutual mined negatives, for `BatchSampler`.

    Args:
        lists: mined from this data set.
        relation: image of each text; images with an extra positive in common are kept apart.
        config: which neighbours are linked.

    Raises:
        ValueError: lists of another data set, or too short to have a neighbour behind `skip`.

    >>> relation = Relation(torch.arange(4), images=4)
    >>> rows = torch.tensor([[1], [0], [3], [2]], dtype=torch.int32)
    >>> lists = HardNegativeLists(rows, rows)
    >>> mined = NeighbourBatches(lists, relation, BatchMiningConfig(size=2, skip=0))
    >>> communities, rest = mined.partition(torch.arange(4), 2, torch.Generator().manual_seed(0))
    >>> sorted(sorted(row) for row in communities.tolist()), rest.tolist()
    ([[0, 1], [2, 3]], [])
    """

    def __init__(
        self,
        lists: HardNegativeLists,
        relation: Relation,
        config: BatchMiningConfig | None = None,
    ) -> None:
        self.config = config = config or BatchMiningConfig()
        ranked = rank_neighbours(lists, relation, config.skip + config.neighbours)
        linked = ranked[:, config.skip :]
        if not bool((linked >= 0).any()):
            raise ValueError(
                f"no image has a mined neighbour behind the first {config.skip}, so no batch can "
                "be composed; lower skip, or mine longer lists"
            )
        clashes = _entries(ranked[:, : config.skip])
        if related := separate_images(relation):
            clashes = Pairs(
                torch.cat([clashes.image, related.image]), torch.cat([clashes.text, related.text])
            )
        self._links = _symmetric(_entries(linked), relation.images)
        self._clashes = _symmetric(clashes, relation.images)

    def partition(self, images: Tensor, batch: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Partition different images into communities of equal size.

        A community begins with a random image and takes, one by one, the free image with the most
        links to its members, a random one among equals or where no link is left. An image that
        clashes with a member is taken only if every free one does. Time grows as links x size.

        Args:
            images: (N,) image rows.
            batch: images of a batch, the largest size of a community.
            rng: source of randomness.

        Returns:
            (C, size) communities in random order, and the (N - C size,) images that remain, a
            random choice.
        """
        size = min(self.config.size, batch)
        order = images[torch.randperm(len(images), generator=rng)]
        count = len(order) // size
        rest = order[count * size :]
        order = order[: count * size]
        grown = _CommunityBuilder(self._links, self._clashes, order.numpy())
        communities = [grown.community(size) for _ in range(count)]
        shuffled = torch.randperm(count, generator=rng)
        return torch.tensor(communities, dtype=torch.long).view(-1, size)[shuffled], rest


@final
class _CommunityBuilder:
    """Communities that grow from free images in a given random order."""

    def __init__(self, links: Any, clashes: Any, order: Any) -> None:
        self.links, self.clashes, self.order = links, clashes, order
        images = links.shape[0]
        self.free = np.zeros(images, dtype=bool)
        self.free[order] = True
        self.place = np.zeros(images)  # in the random order, below 1: decides among equals
        self.place[order] = np.arange(len(order)) / max(len(order), 1)
        self.weight = np.zeros(images, dtype=np.int64)  # links with the present community
        self.clashed = np.full(images, -1)  # the last community that an image clashes with
        self.number = self.begin = 0

    def community(self, size: int) -> list[int]:
        """Take the images of the next community out of the free ones."""
        members: list[int] = []
        touched = []
        near = np.empty(0, dtype=np.int64)  # free images that are linked with a member, each once
        while len(members) < size:
            near = near[self.free[near] & (self.clashed[near] != self.number)]
            best = (self.weight[near] - self.place[near]).argmax() if len(near) else -1
            member = int(near[best]) if len(near) else self._next_free()
            members.append(member)
            self.free[member] = False
            self.clashed[self.clashes.indices[_row(self.clashes, member)]] = self.number
            row = _row(self.links, member)
            linked = self.links.indices[row]
            near = np.concatenate([near, linked[self.weight[linked] == 0]])
            self.weight[linked] += self.links.data[row]
            touched.append(linked)
        self.weight[np.concatenate(touched)] = 0
        self.number += 1
        return members

    def _next_free(self) -> int:
        """The first free image in order that clashes with no member; else the first free one."""
        while not self.free[self.order[self.begin]]:
            self.begin += 1
        for start in range(self.begin, len(self.order), 256):
            part = self.order[start : start + 256]
            fits = part[self.free[part] & (self.clashed[part] != self.number)]
            if len(fits):
                return int(fits[0])
        return int(self.order[self.begin])


def rank_neighbours(lists: HardNegativeLists, relation: Relation, depth: int) -> Tensor:
    """Rank the mined neighbours of each image, over the lists of its captions and its own.

    An image j at rank r (from 0) of the list of a caption of image i adds 1 / (1 + r) to their
    closeness, a caption of j at rank r of the list of i adds 1 / (1 + r / c) with c captions per
    described image; the closest comes first, of equal ones the first row.

    Returns (I, depth) int64 rows, -1 where there are fewer.

    Raises:
        ValueError: lists of another data set.
    """
    lists = lists.checked(relation)
    described = max(int((relation.counts > 0).sum()), 1)
    scale = max(int(relation.counts.sum()) / described, 1.0)
    text_to_image = torch.cat([relation.text_to_image, torch.tensor([-1])])  # -1 stays -1
    ranked = torch.full((relation.images, depth), -1)
    for start in range(0, relation.images, _IMAGES_AT_ONCE):
        images = torch.arange(start, min(start + _IMAGES_AT_ONCE, relation.images))
        texts, counts = relation.captions(images)
        owners = text_to_image[lists.texts[images].long()]
        near = torch.cat(
            [
                _list_entries(images.repeat_interleave(counts), lists.images[texts].long(), 1.0),
                _list_entries(images, owners, scale),
            ],
            dim=1,
        )
        ranked[images] = _closest(near, start, len(images), depth)
    return ranked


def _list_entries(images: Tensor, others: Tensor, scale: float) -> Tensor:
    """(3, n) image, other image and closeness of each entry of (Q, k) lists."""
    rank = torch.arange(others.shape[1], dtype=torch.float64)
    closeness = (1 / (1 + rank / scale)).expand(others.shape)
    entries = torch.stack([images.unsqueeze(1).expand_as(others).double(), others, closeness])
    return entries[:, others >= 0]


def _closest(near: Tensor, start: int, count: int, depth: int) -> Tensor:
    """(count, depth) closest others of images from `start` on."""
    from scipy.sparse import coo_array

    image, other, closeness = near.numpy()
    width = int(other.max()) + 1 if len(other) else 1
    places = ((image - start).astype(np.int64), other.astype(np.int64))
    total = coo_array((closeness, places), shape=(count, width)).tocsr().tocoo()
    # sums differ in their last bits by the order of the entries: equal ones are made equal
    order = np.lexsort((total.col, -total.data.round(9), total.row))
    row, col = total.row[order].astype(np.int64), total.col[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    ranked = torch.full((count, depth), -1)
    within = rank < depth
    ranked[row[within], rank[within]] = torch.from_numpy(col[within].astype(np.int64))
    return ranked


def _entries(ranked: Tensor) -> Pairs:
    """Each image with each of its neighbours, from (I, k) rows."""
    image, place = (ranked >= 0).nonzero(as_tuple=True)
    return Pairs(image, ranked[image, place])


def _symmetric(pairs: Pairs, images: int) -> Any:
    """A sparse matrix of how often two different images are a pair, in either order."""
    from scipy.sparse import coo_array

    one, other = pairs.image[pairs.image != pairs.text], pairs.text[pairs.image != pairs.text]
    places = (torch.cat([one, other]).numpy(), torch.cat([other, one]).numpy())
    matrix = coo_array((np.ones(len(places[0]), dtype=np.int64), places), shape=(images, images))
    return matrix.tocsr()  # sums up pairs that occur twice


def _row(matrix: Any, row: int) -> slice:
    return slice(matrix.indptr[row], matrix.indptr[row + 1])
