"""Captions and pictures of a corpus that say or show nearly the same.

A caption that nearly equals one of an image's own is likely to be true of that image too, and so
are the captions of a picture that shows nearly the same. Both are found exactly, in bounded memory,
and the same on any number of processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil import world
from counterfoil.core.console import progress
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.pixels import packed
from counterfoil.engine.tiles import cut

MOST = 50_000_000  # pairs that are held
THUMBNAIL = 16  # pixels a side
_BLOCK = 2048  # rows compared with as many at once
_READ = 512  # pictures read at once
_SLACK = 1e-6  # float32 cosines of equal vectors are this close to 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """Pairs of rows of one side, each pair once, in order of `left` and then of `right`.

    Attributes:
        left: (n,) long.
        right: (n,) long, higher than `left`.
        score: (n,) float32 cosine.
    """

    left: Tensor
    right: Tensor
    score: Tensor

    def __len__(self) -> int:
        return len(self.left)

    @staticmethod
    def of(left: Tensor, right: Tensor, score: Tensor) -> Near:
        """These pairs, in order."""
        order = np.lexsort((right.numpy(), left.numpy()))
        return Near(left[order], right[order], score[order].float())


def near_pictures(
    corpus: Corpus, *, least: float, device: torch.device | str | None = None
) -> Near:
    """Images whose pictures look alike: cosine of `looks` of at least `least`.

    All processes share the work, so all have to ask.

    Args:
        corpus: with features or pictures.
        least: cosine that counts as near, above 0 and at most 1.
        device: where to compute.

    Raises:
        ValueError: `least` out of range, neither features nor pictures, or more than 50 million
            pairs.
    """
    check_least("pictures", least)
    return near_vectors("pictures", looks(corpus).to(device or "cpu"), least=least)


def near_vectors(name: str, vectors: Tensor, *, least: float) -> Near:
    """Rows whose cosine is at least `least`.

    Blocks of the upper half of the matrix are dealt out to all processes, so all have to ask.

    Args:
        name: what they are of, in the plural.
        vectors: (N, D) unit or zero vectors, where to compute.
        least: cosine that counts as near, above 0 and at most 1.

    Raises:
        ValueError: `least` out of range, or more than 50 million pairs.
    """
    check_least(name, least)
    blocks = cut(torch.arange(len(vectors)), _BLOCK)
    pairs = [(a, b) for a in range(len(blocks)) for b in range(a, len(blocks))]
    found: list[tuple[Tensor, Tensor, Tensor]] = [(torch.zeros(0).long(),) * 2 + (torch.zeros(0),)]
    total = 0
    with progress(f"blocks of {name} compared", len(pairs)) as advance:
        for a, b in pairs[world.rank() :: world.size()]:
            scores = vectors[blocks[a]] @ vectors[blocks[b]].T
            row, column = (scores >= least - _SLACK).nonzero(as_tuple=True)
            keep = blocks[a][0] + row < blocks[b][0] + column
            row, column = row[keep], column[keep]
            score = scores[row, column].cpu()
            found.append((blocks[a][row.cpu()], blocks[b][column.cpu()], score))
            total += len(score)
            check_most(name, least, total)
            advance(world.size())
    return everybody(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def groups(near: Near, images: int) -> list[list[int]]:
    """Groups of rows that near pairs connect, each in order; in order of their first row.

    Args:
        near: pairs of images.
        images: how many there are.

    >>> pairs = Near.of(torch.tensor([4, 0, 2]), torch.tensor([5, 2, 3]), torch.ones(3))
    >>> groups(pairs, 6)
    [[0, 2, 3], [4, 5]]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = (near.left.numpy(), near.right.numpy())
    graph = coo_array((np.ones(len(near), np.int8), pairs), shape=(images, images))
    component = connected_components(graph, directed=False)[1]
    members: dict[int, list[int]] = {}
    for row in np.unique(np.concatenate(pairs)).tolist():
        members.setdefault(component[row], []).append(row)
    return list(members.values())


def looks(corpus: Corpus) -> Tensor:
    """(I, D) unit vectors of what the images look like.

    Features are averaged over the real regions of an image and the mean over the corpus is taken
    off; where there are pictures only, these are grey thumbnails of 16 x 16 pixels less their own
    mean, which know exact copies and repeated shots, but not what is shown. An image at the mean
    is the zero vector and like no other.

    Raises:
        ValueError: the corpus has neither.
    """
    if corpus.features is not None:
        parts = []
        for rows in cut(torch.arange(len(corpus)), _READ):
            items = corpus.features.take(rows)
            parts.append(items.values.sum(1) / items.mask.sum(1, keepdim=True).clamp(min=1))
        pooled = torch.cat(parts) if parts else torch.zeros(0, 1)
        return normalize(pooled - pooled.mean(0, dtype=torch.float64).float(), dim=1)
    if corpus.pictures is None:
        raise ValueError(
            f"{corpus.name} has neither features nor pictures, so nothing tells which of its "
            "images look alike; leave the pictures filter off"
        )
    grey = torch.from_numpy(np.array(packed(corpus.pictures, THUMBNAIL))).float().mean(1).flatten(1)
    return normalize(grey - grey.mean(1, keepdim=True), dim=1)


def everybody(left: Tensor, right: Tensor, score: Tensor) -> Near:
    """The pairs that any process has found."""
    mine = tuple(part.numpy() for part in (left, right, score))
    parts: list[tuple[Tensor, ...]] = []
    for theirs in world.gather_objects(mine):
        assert isinstance(theirs, tuple)
        parts.append(tuple(torch.from_numpy(part) for part in theirs))
    return Near.of(*(torch.cat(column) for column in zip(*parts, strict=True)))


def check_least(name: str, least: float) -> None:
    """Whether a cosine can be asked for.

    Raises:
        ValueError: it is not above 0 and at most 1.
    """
    if not 0 < least <= 1:
        raise ValueError(f"{name}={least}: a cosine above 0 and up to 1 is needed, as in 0.8")


def check_most(name: str, least: float, count: int) -> None:
    """Whether so many pairs can be held.

    Raises:
        ValueError: they cannot.
    """
    if count > MOST:
        raise ValueError(
            f"{name}={least} finds more than {MOST:,} pairs alike, so it tells little; raise it"
        )
