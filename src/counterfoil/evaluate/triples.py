"""Triples of an image, its caption and a negative: how hard each source of negatives is.

TAGS (https://arxiv.org/abs/2111.03349), section 1 and Fig. 1a: of the hardest negatives in a whole
data set about 40 % score above the positive, and 18 % stay 0.05 or more below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.relation import Relation
from counterfoil.engine.dense import Dense
from counterfoil.engine.sweep import sweep
from counterfoil.engine.tiles import Member
from counterfoil.evaluation.bootstrap import Counted, Share, shares

LEVEL = 0.05


@final
@dataclass(frozen=True, slots=True, eq=False)
class Triples:
    """N triples of one source, as one model scores them.

    Attributes:
        source: of the negatives, in words.
        images: (N,) long.
        positive: (N,) scores of the captions, in units of a score.
        negative: (N,) of the negatives.
        left_out: anchors for which there is no negative.
    """

    source: str
    images: Tensor
    positive: Tensor
    negative: Tensor
    left_out: int = 0

    @property
    def gaps(self) -> Tensor:
        """(N,) by how much the negative scores above the positive."""
        return self.negative.double() - self.positive.double()


@final
@dataclass(frozen=True, slots=True)
class Difficulty:
    """How hard triples are.

    Attributes:
        above: percent whose negative scores above the positive.
        below: percent whose negative scores the level below the positive, or more.
        gap: mean of negative minus positive.
    """

    above: Share
    below: Share
    gap: Share


def difficulty(triples: Triples, *, level: float = LEVEL, seed: int = 0) -> Difficulty:
    """Shares and mean gap of triples; of equal scores the negative is not above.

    Args:
        triples: of one source.
        level: how far below counts as easy.
        seed: of the draws of images for the intervals.
    """
    gaps = triples.gaps
    counted = [Counted.where(gaps > 0), Counted.where(gaps <= -level)]
    above, below = shares(counted, triples.images, scale=100, seed=seed)
    return Difficulty(above, below, shares([Counted.mean(gaps)], triples.images, seed=seed)[0])


def all_scores(members: Sequence[Member], images: Tensor) -> Tensor:
    """(S, T) scores of some images with all texts.

    Args:
        members: models with what they encoded; several are an ensemble.
        images: (S,) rows.
    """
    some = [Member(m.matcher, m.images.rows(images), m.texts) for m in members]
    found = Dense(len(images), len(some[0].texts))
    sweep(some, [found])
    return found.scores.cpu()


def in_batches(
    scores: Tensor, anchors: Tensor, relation: Relation, *, batch: int, rng: torch.Generator
) -> Tensor:
    """(S,) hardest wrong caption of a random batch that each anchor caption is in; -1 for none.

    Args:
        scores: (S, T) of the anchors' images with all texts.
        anchors: (S,) text rows.
        relation: who describes whom.
        batch: captions in a batch, the anchor among them.
        rng: of the batches.
    """
    owned = (relation.owner >= 0).nonzero().squeeze(1)
    out = torch.full_like(anchors, -1)
    for place, row in enumerate(anchors.tolist()):
        others = owned[owned != row]
        drawn = others[torch.randperm(len(others), generator=rng)[: batch - 1]]
        wrong = drawn[relation.owner[drawn] != relation.owner[row]].sort().values
        if len(wrong):
            out[place] = wrong[scores[place, wrong].argmax()]
    return out


def in_all(scores: Tensor, anchors: Tensor, relation: Relation) -> Tensor:
    """(S,) hardest wrong caption of all; -1 where every caption is the image's own."""
    wrong = (relation.owner >= 0) & (relation.owner != relation.owner[anchors].unsqueeze(1))
    best = scores.masked_fill(~wrong, -torch.inf).argmax(1)
    return best.masked_fill(~wrong.any(1), -1)


def hardest_of(scores: Tensor, group: Tensor, groups: int) -> Tensor:
    """(G,) place of the highest score of each group; of equal ones the first, -1 for none.

    Args:
        scores: (N,).
        group: (N,) long.
        groups: G.
    """
    order = scores.argsort(descending=True, stable=True)
    out = torch.full((groups,), len(scores), dtype=torch.long)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    out.scatter_reduce_(0, group, rank, "amin")
    none = out == len(scores)
    places = torch.cat([order, order.new_full((1,), -1)])
    return places[out].masked_fill(none, -1)
