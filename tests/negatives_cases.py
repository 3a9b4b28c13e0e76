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
from matcher_cases import CASES

HOSTS = ("scan-t2i", "bfan", "vse", "vsrn-f30k")


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


@torch.no_grad()
def host(name: str, images: int, texts: int) -> Member:
    """A small untrained host with what it has encoded."""
    (case,) = (case for case in CASES if case.name == name)
    matcher, rng = case.build(), torch.Generator().manual_seed(1)
    left, right = case.images(images, rng), case.texts(texts, rng)
    return Member(matcher, matcher.encode_images(left), matcher.encode_texts(right))


@torch.no_grad()
def alike(found: Lists, exact: Lists, members: list[Member], owner: Tensor) -> bool:
    """Whether lists hold no true pair, nothing twice, and differ where scores do by < 1e-6."""
    grids = [m.matcher.grid(m.images, m.texts) for m in members]
    scores = torch.stack(grids).mean(0)
    true = owner == torch.arange(len(scores)).unsqueeze(1)
    scores = scores.masked_fill(true, -9.0)
    for ours, theirs, table in (
        (found.texts.long(), exact.texts.long(), scores),
        (found.images.long(), exact.images.long(), scores.T),
    ):
        off = (table.gather(1, ours) - table.gather(1, theirs)).abs()
        twice = ours.sort(1).values.diff(dim=1) == 0
        if bool((ours < 0).any() | twice.any() | (off >= 1e-6).any()):
            return False
    return True
