"""Small corpora, their exact lists by brute force, and a matcher that is a plain product."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.relation import Relation
from counterfoil.engine.tiles import Member
from counterfoil.matcher import Matcher, one_view
from counterfoil.negatives.lists import Lists
from counterfoil.records import Batch, Encoded, Items, Views


@final
class Product(Matcher):
    """Score of two vectors: their inner product."""

    def encode_images(self, images: Items) -> Encoded:
        return Encoded(images.values, images.mask)

    def encode_texts(self, texts: Items) -> Encoded:
        return Encoded(texts.values, texts.mask)

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        return (images.tokens[:, 0] * texts.tokens[:, 0]).sum(1)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.tokens[:, 0] @ texts.tokens[:, 0].T

    def forward(self, batch: Batch) -> Views:
        return one_view(self, batch)


def member(images: Tensor, texts: Tensor) -> Member:
    def encoded(vectors: Tensor) -> Encoded:
        return Encoded(vectors.unsqueeze(1), torch.ones(len(vectors), 1, dtype=torch.bool))

    return Member(Product(), encoded(images), encoded(texts))


def ragged(images: int = 12, seed: int = 0, orphans: int = 0) -> Relation:
    """One to four captions an image in shuffled order, and some that describe none."""
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 5, (images,), generator=rng)
    owner = torch.arange(images).repeat_interleave(counts)
    owner = torch.cat([owner, torch.full((orphans,), -1)])
    return Relation(owner[torch.randperm(len(owner), generator=rng)], images=images)


def ranked(scores: Tensor, relation: Relation, h: int, k: int) -> Lists:
    """Lists by sorting every row of (I, T) scores."""
    rows: list[list[int]] = []
    owner = relation.owner.tolist()
    for i, row in enumerate(scores.tolist()):
        order = sorted(range(len(row)), key=lambda t: (-row[t], t))
        rows.append(([t for t in order if owner[t] != i] + [-1] * h)[:h])
    columns: list[list[int]] = []
    for t, column in enumerate(scores.T.tolist()):
        order = sorted(range(len(column)), key=lambda i: (-column[i], i))
        columns.append(([i for i in order if owner[t] != i] + [-1] * k)[:k])
    return Lists(torch.tensor(rows).int(), torch.tensor(columns).int())


def random_lists(relation: Relation, h: int, k: int, seed: int = 0) -> Lists:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(relation.images, len(relation.owner), generator=rng)
    return ranked(scores, relation, h, k)
