"""Where the hardest negative of a random batch ranks in the whole training set.

AOQ (https://arxiv.org/abs/2003.03669), section 1: with 500K pairs and batches of 128 the expected
rank is about 4000, and the chance of one of the 100 hardest about 2.2 %.

Both follow from counting, whatever the model. A batch holds an anchor caption and B - 1 of the
T - 1 others, any of them as likely. Its hardest negative text ranks behind the k hardest when none
of those k is drawn: P(R > k) = C(T-1-k, B-1) / C(T-1, B-1), and the sum over k is E[R] = T / B,
exactly, as long as B exceeds the captions of one image. Images come with their captions, c each, so
k hard images are missed when k c captions are.

The paper's two numbers take two sizes of MS-COCO: 500K / 128 = 3906, while 2.2 % is the chance in
the 566,435 captions of its training split; in 500K it would be 2.5 %.

>>> f"{expected_rank(500_000, 128):.0f} {100 * chance_of_top(100, 500_000, 128):.2f}"
'3906 2.51'
>>> f"{expected_rank(566_435, 128):.0f} {100 * chance_of_top(100, 566_435, 128):.2f}"
'4425 2.22'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.core.console import progress
from counterfoil.corpus.relation import Relation
from counterfoil.engine.dense import Dense
from counterfoil.engine.sweep import sweep
from counterfoil.engine.tiles import Member

Direction = Literal["i2t", "t2i"]
_NUMBERS = 2**25  # scores held at once


def missed(count: Tensor, texts: int, batch: int) -> Tensor:
    """Chance that none of so many captions is in the batch of another one.

    Args:
        count: (n,) how many captions.
        texts: captions that batches are drawn from, T.
        batch: captions in a batch, B.
    """
    left, drawn = texts - 1, batch - 1
    rest = (left - count.double()).clamp(min=0)
    chance = (
        torch.lgamma(rest + 1)
        - torch.lgamma((rest - drawn).clamp(min=0) + 1)
        - torch.lgamma(torch.tensor(left + 1.0, dtype=torch.double))
        + torch.lgamma(torch.tensor(left - drawn + 1.0, dtype=torch.double))
    ).exp()
    return chance.where(rest >= drawn, 0.0)


def chance_of_top(k: int, texts: int, batch: int, *, captions: float = 1) -> float:
    """Chance that the hardest negative of a batch is one of the k hardest of all.

    Args:
        k: how many count as hardest.
        texts: captions that batches are drawn from.
        batch: captions in a batch, the anchor among them.
        captions: per negative; 1 for texts, captions per image for images.
    """
    return 1 - float(missed(torch.tensor([k * captions]), texts, batch))


def expected_rank(texts: int, batch: int, *, captions: float = 1) -> float:
    """Expected rank, from 1, of the hardest negative of a batch; T / B for texts.

    Args:
        texts: captions that batches are drawn from.
        batch: captions in a batch, the anchor among them, more than one image has.
        captions: per negative, see `chance_of_top`.
    """
    if captions == 1:
        return texts / batch
    ranks = torch.arange(int((texts - 1) / captions), dtype=torch.double)
    return float(missed(ranks * captions, texts, batch).sum())


@final
@dataclass(frozen=True, slots=True, eq=False)
class OnlineRanks:
    """Online hard negatives of S anchors in each of D batches, at each of N batch sizes.

    Attributes:
        direction: "i2t", images ask for texts, or "t2i".
        batches: the sizes.
        ranks: (N, S, D) long, rank among all wrong counterparts from 1; 0 where a batch has none.
        gaps: (N, S, D) score of the negative minus score of the anchor pair; NaN where none.
    """

    direction: Direction
    batches: tuple[int, ...]
    ranks: Tensor
    gaps: Tensor

    def mean(self, place: int) -> tuple[float, float]:
        """Mean rank at one batch size, and half of its 95 % interval over anchors."""
        ranks = self.ranks[place].double()
        ranks = ranks.masked_fill(ranks == 0, torch.nan).nanmean(1)
        ranks = ranks[ranks.isfinite()]
        spread = ranks.std().item() if len(ranks) > 1 else float("nan")
        return ranks.mean().item(), 1.96 * spread / len(ranks) ** 0.5

    def top(self, place: int, k: int) -> float:
        """Percent of batches whose negative is one of the k hardest of all."""
        ranks = self.ranks[place]
        return 100 * ((ranks > 0) & (ranks <= k)).double().mean().item()

    def gap(self, place: int) -> float:
        """Median score of the negative minus the positive's."""
        return self.gaps[place].nanmedian().item()


def online_ranks(
    members: Sequence[Member],
    relation: Relation,
    *,
    batches: Sequence[int],
    anchors: int,
    draws: int,
    rng: torch.Generator,
) -> tuple[OnlineRanks, OnlineRanks]:
    """Measure both directions: images ask for texts, texts for images.

    Anchor captions and the rest of their batches are drawn from the captions that describe an
    image, as in training; smaller batches are the heads of larger ones. Each anchor is compared
    with everything, and of equal scores the lower row ranks first.

    Args:
        members: models with what they encoded; several are an ensemble.
        relation: who describes whom.
        batches: sizes, in captions.
        anchors: how many anchor captions.
        draws: batches of each size for each anchor.
        rng: of anchors and batches.

    Raises:
        ValueError: a batch of fewer than 2 captions, or of more than there are.
    """
    owned = (relation.owner >= 0).nonzero().squeeze(1)
    sizes = tuple(sorted(set(batches)))
    if not sizes or sizes[0] < 2 or sizes[-1] > len(owned):
        raise ValueError(
            f"batches of {', '.join(map(str, sizes)) or 'nothing'} cannot be drawn from "
            f"{len(owned):,} captions; each needs 2 to {len(owned):,}"
        )
    chosen = owned[torch.randperm(len(owned), generator=rng)[:anchors]]
    found: list[list[tuple[Tensor, Tensor]]] = []
    most = max(1, _NUMBERS // max(len(relation.owner), relation.images))
    with progress("anchors ranked", len(chosen)) as advance:
        for part in torch.split(chosen, most):
            for anchor in zip(part, *anchor_scores(members, relation, part)):
                found.append(_measure(anchor, relation, owned, sizes, draws, rng))
                advance(1)
    return _stacked("i2t", sizes, found, 0), _stacked("t2i", sizes, found, 1)


def anchor_scores(
    members: Sequence[Member], relation: Relation, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """(S, T) scores of the anchor captions' images with all texts, and (S, I) of the captions.

    Args:
        members: models with what they encoded.
        relation: who describes whom.
        anchors: (S,) text rows, each of an image.
    """
    images = relation.owner[anchors]
    asked = [Member(m.matcher, m.images.rows(images), m.texts) for m in members]
    asking = [Member(m.matcher, m.images, m.texts.rows(anchors)) for m in members]
    texts = Dense(len(anchors), len(relation.owner))
    pictures = Dense(relation.images, len(anchors))
    sweep(asked, [texts])
    sweep(asking, [pictures])
    return texts.scores.cpu(), pictures.scores.T.contiguous().cpu()


def places(scores: Tensor, wrong: Tensor) -> Tensor:
    """(n,) rank of each wrong item among the wrong ones, from 1; n + 1 for all that are not."""
    order = scores.masked_fill(~wrong, -torch.inf).argsort(descending=True, stable=True)
    order = order[wrong[order]]
    found = torch.full((len(scores),), len(scores) + 1)
    found[order] = torch.arange(1, len(order) + 1)
    return found


def _measure(
    anchor: tuple[Tensor, ...],
    relation: Relation,
    owned: Tensor,
    sizes: tuple[int, ...],
    draws: int,
    rng: torch.Generator,
) -> list[tuple[Tensor, Tensor]]:
    """For one anchor, (N, D) ranks and gaps: its image's, then its own."""
    row, texts, images = int(anchor[0]), anchor[1], anchor[2]
    own = int(relation.owner[row])
    text_place = places(texts, (relation.owner >= 0) & (relation.owner != own))
    image_place = places(images, (relation.counts > 0) & (relation.rows() != own))
    others = owned[owned != row]
    drawn = torch.stack(
        [others[torch.randperm(len(others), generator=rng)[: sizes[-1] - 1]] for _ in range(draws)]
    )
    return [
        _hardest(text_place[drawn], texts[drawn] - texts[row], sizes, len(texts)),
        _hardest(
            image_place[relation.owner[drawn]],
            images[relation.owner[drawn]] - images[own],
            sizes,
            len(images),
        ),
    ]


def _hardest(
    place: Tensor, gaps: Tensor, sizes: tuple[int, ...], count: int
) -> tuple[Tensor, Tensor]:
    """(N, D) best place in the head of each size, and the gap there."""
    best, at = place.cummin(1)
    heads = torch.tensor(sizes) - 2  # of a batch, the anchor is not drawn
    best, gap = best[:, heads].T, gaps.gather(1, at)[:, heads].T
    none = best > count
    return best.masked_fill(none, 0), gap.masked_fill(none, torch.nan)


def _stacked(
    direction: Direction,
    sizes: tuple[int, ...],
    found: list[list[tuple[Tensor, Tensor]]],
    side: int,
) -> OnlineRanks:
    ranks, gaps = (torch.stack([one[side][part] for one in found], 1) for part in (0, 1))
    return OnlineRanks(direction, sizes, ranks, gaps)
