"""Hinges of in-batch and of mined negatives, the parts of AOQ's losses."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.objectives.block import Hardest, hardest, hinge, positives
from counterfoil.records import Grid, Role, Scores

OFFLINE = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE})
DERIVED = frozenset({Role.CROSS, Role.COMPANION})


def online_negatives(grid: Grid) -> Hardest:
    """(B,) scores of the anchor pairs' hardest negatives in the block."""
    true = positives(grid)
    assert len(true.text) == len(grid.anchor), "every text of the block is one anchor's"
    return hardest(grid, true)


def in_batch(
    grid: Grid,
    hard: Hardest,
    margin: float | None,
    *,
    text: Tensor | None = None,
    image: Tensor | None = None,
    squared: bool = False,
) -> Tensor:
    """Hinges of the hardest negatives of the block, summed.

    Args:
        grid: the block.
        hard: its online negatives.
        margin: of the hinges; None for no hinges at all.
        text: (B, N) weights of the hinges against texts; their mean over N counts.
        image: (B, N) weights of the hinges against images.
        squared: whether to square the hinges.
    """
    if margin is None:
        return grid.scores.new_zeros(())
    texts = _hinge(hard.text, grid.anchor, margin, squared=squared)
    images = _hinge(hard.image, grid.anchor, margin, squared=squared)
    texts = texts if text is None else texts * text.mean(1)
    images = images if image is None else images * image.mean(1)
    return (texts + images).sum()


def mined(
    scores: Scores, grid: Grid, roles: frozenset[Role], margin: float, *, squared: bool = False
) -> Tensor:
    """Hinges of mined pairs against their anchors: mean over each anchor's, sum over anchors."""
    anchor = grid.anchor.unsqueeze(1)
    wanted = [role for role in Role if role in roles]  # members of an enum keep the order fixed
    parts = [_hinge(scores.pairs[role], anchor, margin, squared=squared) for role in wanted]
    return torch.stack([part.mean(1) for part in parts]).sum()


def _hinge(negative: Tensor, positive: Tensor, margin: float, *, squared: bool) -> Tensor:
    found = hinge(negative, positive, margin)
    return found.square() if squared else found
