"""UNITER's hard captions of an image as its released code reads them (bug U1)."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.engine.shares import gathered, mine, shared
from counterfoil.matcher import Matcher
from counterfoil.models.blocks.misaligned import misaligned
from counterfoil.records import Batch, Encoded, Items, Pairs, Views


def misread(
    matcher: Matcher, batch: Batch, views: Views, grid: Tensor, new: Items | None, text: Tensor
) -> Tensor:
    """(B, k) scores of hard captions that share a misaligned batch with their anchor's own caption.

    They are moved by as much as that caption's score is off, so that a hinge against its right
    score is the authors' hinge.

    Args:
        matcher: the model in training.
        batch: the batch.
        views: its whole pools, encoded.
        grid: (I, T) scores of the anchor block.
        new: captions whose places follow those of the text pool.
        text: (B, k) places of the hard captions, -1 for none.
    """
    pool = views.inference.texts
    if new is not None:
        added = matcher.encode_texts(new.rows(mine(len(new), text.device)))
        pool = Encoded.cat([pool, gathered(added, len(new))])
    anchors = batch.anchors
    at = torch.cat([anchors.text.unsqueeze(1), text], 1)
    images = views.inference.images
    scores = shared(
        len(at),
        lambda rows: batches(matcher, images.rows(anchors.image[rows]), pool, at[rows]),
        text.device,
    )
    true = grid[anchors.image, anchors.text]
    return scores[:, 1:] + (true - scores[:, 0]).unsqueeze(1)


def batches(matcher: Matcher, images: Encoded, texts: Encoded, at: Tensor) -> Tensor:
    """(B, N) scores of each image with its own batch of texts, read misaligned.

    Args:
        matcher: the model.
        images: B of them.
        texts: the pool of texts.
        at: (B, N) places in the pool; -1 for none, which scores -inf.
    """
    found = torch.full(at.shape, -torch.inf, device=at.device)
    for row in range(len(at)):
        there = (at[row] >= 0).nonzero().squeeze(1)
        some = texts.rows(at[row, there])
        image = images.rows(torch.full_like(there, row))
        score = matcher.pairs(misaligned(image, some), some)
        found = found.to(score.dtype).index_put((torch.full_like(there, row), there), score)
    return found


def misread_pairs(matcher: Matcher, images: Encoded, texts: Encoded, pairs: Pairs) -> Tensor:
    """(B, N) scores of listed pairs whose rows share an image each; -inf where there is none."""
    return batches(matcher, images.rows(pairs.image.amax(1).clamp(min=0)), texts, pairs.text)
