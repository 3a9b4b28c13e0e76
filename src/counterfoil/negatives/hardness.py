"""How hard negatives are: those of a random batch beside those mined from the whole set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.engine.tiles import Member


@final
@dataclass(frozen=True, slots=True, eq=False)
class Hardness:
    """Scores of S anchor images with three kinds of text.

    Attributes:
        positive: (S,) a true caption.
        online: (S,) the hardest wrong caption of a random batch.
        offline: (S,) a mined caption, drawn uniformly from the list.
        batch: size of the random batches.
    """

    positive: Tensor
    online: Tensor
    offline: Tensor
    batch: int


@torch.inference_mode()
def hardness(
    members: Sequence[Member],
    owner: Tensor,
    mined: Tensor,
    *,
    batch: int,
    samples: int,
    rng: torch.Generator,
) -> Hardness:
    """Measure it on random batches of training captions.

    Args:
        members: models with what they encoded; several are an ensemble.
        owner: (T,) image of each text, -1 for none.
        mined: (I, h) mined texts of each image, -1 where there are fewer.
        batch: captions in a batch.
        samples: about how many anchors.
        rng: of batches and draws.
    """
    owned = (owner >= 0).nonzero().squeeze(1)
    batch = min(batch, len(owned))
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(max(1, samples // batch)):
        rows = owned[torch.randperm(len(owned), generator=rng)[:batch]]
        anchors = owner[rows]
        block = _block(members, anchors, rows)
        wrong = block.masked_fill(anchors.unsqueeze(1) == anchors, -torch.inf).amax(1)
        lists = mined[anchors].long()
        place = (torch.rand(len(rows), generator=rng) * (lists >= 0).sum(1)).long()
        drawn = lists.gather(1, place.unsqueeze(1)).squeeze(1)
        kept = (drawn >= 0) & wrong.isfinite()
        offline = _pairs(members, anchors[kept], drawn[kept])
        found.append((block.diagonal()[kept], wrong[kept], offline))
    positive, online, offline = (torch.cat(parts) for parts in zip(*found))
    return Hardness(positive, online, offline, batch)


def _block(members: Sequence[Member], images: Tensor, texts: Tensor) -> Tensor:
    blocks = [m.matcher.grid(m.images.rows(images), m.texts.rows(texts)) for m in members]
    return torch.stack(blocks).float().mean(0)


def _pairs(members: Sequence[Member], images: Tensor, texts: Tensor) -> Tensor:
    scores = [m.matcher.pairs(m.images.rows(images), m.texts.rows(texts)) for m in members]
    return torch.stack(scores).float().mean(0)
