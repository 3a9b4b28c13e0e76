"""How alike two sets of unit vectors are (Kim et al., CVPR 2023, section 3.3).

Axes: K elements to an image, M to a text. A block holds a number for every element of an image and
every element of a text, the image's element ahead and the text's next to last: (K, I, M, T) for all
pairs of two pools, (K, M, P) for aligned ones, so that every reduction runs along rows of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.models.blocks.inner import full
from counterfoil.models.blocks.tower import hidden
from counterfoil.records import Encoded

SetSimilarity = Literal[
    "smooth_chamfer", "smooth_chamfer_euclidean", "chamfer", "max", "mean_sigmoid"
]
CELLS_AT_ONCE = 1 << 24


@final
@dataclass(frozen=True, slots=True)
class _Block:
    """Elements of images and texts, compared.

    Attributes:
        near: (K, ..., M, ...) inner products, or distances negated.
        images: (K, ..., 1, ...) bool, True where an element of an image is real; None: all are.
        texts: (1, ..., M, ...) bool, True where an element of a text is real; None: all are.
    """

    near: Tensor
    images: Tensor | None
    texts: Tensor | None


def set_grid(kind: SetSimilarity, images: Encoded, texts: Encoded, alpha: float) -> Tensor:
    """(I, T) similarities of all images with all texts, from one product of all their elements.

    Args:
        kind: "smooth_chamfer" is the mean of how well each element of either set is met by the
            other, where logsumexp(alpha s) / alpha stands for the best s: Eq. 7;
            "smooth_chamfer_euclidean" the same with s a distance, negated; "chamfer" with the
            best s itself; "max" is the best s of all; "mean_sigmoid" the mean of 1 / (1 + e^-s).
        images: sets of the images.
        texts: sets of the texts.
        alpha: how sharply the smooth kinds tell the best.
    """
    cells = images.tokens.shape[1] * texts.tokens.shape[1] * len(texts)
    step = max(1, CELLS_AT_ONCE // max(1, cells))
    rows = [
        _similar(kind, _crossed(kind, images.rows(slice(first, first + step)), texts), alpha)
        for first in range(0, len(images), step)
    ]
    return torch.cat(rows)


def set_pairs(kind: SetSimilarity, images: Encoded, texts: Encoded, alpha: float) -> Tensor:
    """(P,) similarities of P images with P texts, see `set_grid`."""
    near = _near(kind, _elements(images), _elements(texts)).permute(1, 2, 0)
    image, text = images.mask.T.unsqueeze(1), texts.mask.T.unsqueeze(0)
    return _similar(kind, _Block(near, _where(image), _where(text)), alpha)


def _crossed(kind: SetSimilarity, images: Encoded, texts: Encoded) -> _Block:
    """The block of all pairs."""
    left, right = _elements(images).transpose(0, 1), _elements(texts).transpose(0, 1)
    near = _near(kind, left.flatten(0, 1), right.flatten(0, 1))
    near = near.view(*left.shape[:2], *right.shape[:2])
    image, text = images.mask.T[:, :, None, None], texts.mask.T[None, None]
    return _Block(near, _where(image), _where(text))


def _near(kind: SetSimilarity, left: Tensor, right: Tensor) -> Tensor:
    with torch.autocast(left.device.type, enabled=False):
        if kind == "smooth_chamfer_euclidean":
            return -torch.cdist(left, right)
        return left @ right.mT


def _similar(kind: SetSimilarity, block: _Block, alpha: float) -> Tensor:
    if kind in ("smooth_chamfer", "smooth_chamfer_euclidean"):
        near = block.near * alpha
        met = _real(near, block.texts).logsumexp(-2), _real(near, block.images).logsumexp(0)
        return _means(block, *met) / (2 * alpha)
    if kind == "chamfer":
        met = _real(block.near, block.texts).amax(-2), _real(block.near, block.images).amax(0)
        return _means(block, *met) / 2
    images, _ = _own(block)
    if kind == "max":
        return _real(_real(block.near, block.texts).amax(-2), images).amax(0)
    return _mean(_mean(block.near.sigmoid(), block.texts, -2), images, 0)


def _means(block: _Block, by_image: Tensor, by_text: Tensor) -> Tensor:
    """Means over the images' elements and over the texts', added."""
    images, texts = _own(block)
    return _mean(by_image, images, 0) + _mean(by_text, texts, -2)


def _own(block: _Block) -> tuple[Tensor | None, Tensor | None]:
    """Which elements are real, without the other modality's axis."""
    images = None if block.images is None else block.images.squeeze(-2)
    return images, None if block.texts is None else block.texts[0]


def _mean(values: Tensor, real: Tensor | None, axis: int) -> Tensor:
    if real is None:
        return values.mean(axis)
    return values.masked_fill(~real, 0).sum(axis) / real.sum(axis)


def _real(values: Tensor, real: Tensor | None) -> Tensor:
    return values if real is None else values.masked_fill(~real, -torch.inf)


def _elements(bag: Encoded) -> Tensor:
    return full(hidden(bag.tokens, bag.mask))


def _where(mask: Tensor) -> Tensor | None:
    return None if bool(mask.all()) else mask
