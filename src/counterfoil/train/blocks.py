"""Scores of the anchors of a batch: of all images with all texts, or of the anchor pairs alone."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.matcher import Matcher
from counterfoil.records import Batch, Pairs, View
from counterfoil.train.shares import shared


def whole_block(matcher: Matcher, batch: Batch, view: View) -> Tensor:
    """(I, T) scores of every anchor image with every anchor text, and of their copies."""
    images = view.images.rows(slice(batch.block[0] * view.copies))
    texts = view.texts.rows(slice(batch.block[1] * view.copies))
    return shared(
        len(images),
        lambda rows: matcher.grid(images.rows(rows), texts),
        batch.positive.device,
    )


def anchors_alone(matcher: Matcher, batch: Batch, view: View) -> Tensor:
    """(I, T) with the scores of the anchor pairs, and NaN where nobody is going to look."""
    assert view.copies == 1
    image, text = batch.anchors.image, batch.anchors.text
    scores = shared(
        len(image),
        lambda rows: matcher.listed(view.images, view.texts, Pairs(image[rows], text[rows])),
        batch.positive.device,
    )
    empty = torch.full(batch.block, torch.nan, dtype=scores.dtype, device=scores.device)
    return empty.index_put((image, text), scores)
