"""Losses of a whole training set at once: tiles of scores, each computed, used and dropped.

Functions of vectors with the values and gradients of `InfoNCELoss` and `HardestTripletLoss`, for
single-vector models, whose score is the cosine or inner product. Memory is O((I + T)·d) and one
tile: the (I, T) score matrix does not exist. The backward pass of InfoNCE computes each tile once
more, as Gao et al., 2021 (https://arxiv.org/abs/2101.06983) do for encoders; that of the hardest
triplet does so only where negatives are equally hard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from counterfoil import gpu
from counterfoil.core.types import EqualTexts, Pairs
from counterfoil.losses.base import Reduction, hinge

__all__ = ["tiled_hardest_triplet", "tiled_info_nce"]


def tiled_info_nce(
    images: Tensor,
    texts: Tensor,
    text_to_image: Tensor,
    temperature: float | Tensor = 0.07,
    *,
    margin: float = 0.0,
    hardness: float = 0.0,
    exempt: Pairs | None = None,
    weight: Tensor | None = None,
    equal: EqualTexts | None = None,
    tile: int = 1024,
    reduction: Reduction = "sum",
) -> Tensor:
    """Cross-entropy of each true pair among all wrong texts and among all wrong images.

    CLIP (https://arxiv.org/abs/2103.00020), figure 3, with the departures of `InfoNCELoss`.

    Args:
        images: (I, d) vectors; half precision is converted to float32. On a GPU, and without
            `exempt` and `equal`, a Triton kernel multiplies it as it is and sums in float32.
        texts: (T, d) likewise.
        text_to_image: (T,) image row of each text. Texts of one image are no negatives of it.
        temperature: scores are divided by it; gradients reach a tensor.
        margin: every wrong score counts as that much higher.
        hardness: see `InfoNCELoss`.
        exempt: (E,) pairs that are no negatives either.
        weight: (E,) weight of each of them as a true pair; 0, or None, for none.
        equal: texts that say what a caption of an image says, which are no negatives of it either.
        tile: images and texts scored at a time, by the torch form.
        reduction: see `Loss`; "mean" divides by T.

    Raises:
        ValueError: shapes that do not fit, a text without an image row, a temperature or a tile
            that is not positive, a hardness that is negative or not finite.

    >>> images, texts = torch.eye(2), torch.tensor([[0.8, 0.6], [0.6, 0.8]])
    >>> loss = tiled_info_nce(images, texts, torch.arange(2), 0.1, reduction="mean")
    >>> round(loss.item(), 4)
    0.1269
    """
    if not temperature > 0:
        raise ValueError(f"a temperature of {temperature} was given; it must be positive")
    check_hardness(hardness)
    given = images, texts
    images, texts, own = _checked(images, texts, text_to_image, tile)
    scaled = images / temperature
    harder = 1 / temperature + hardness  # the factor of wrong scores
    share = 1.0  # of that factor, which has a gradient by the vectors
    if hardness:
        fixed = temperature.item() if isinstance(temperature, Tensor) else temperature
        share = 1 / (1 + hardness * fixed)
    if exempt is None and equal is None and gpu.usable(*given):
        left, right = (_slowed(side, share) for side in given)
        wrong_texts, wrong_images = _wrong_pairs_on_gpu(left, right, own, harder)
    else:
        left = _slowed(images, share) * harder if hardness else scaled
        spared = _Spared(own, exempt, equal)
        right = _slowed(texts, share)
        wrong_texts, wrong_images = _wrong_pairs(left, right, spared, tile, hardest=False)

    def costs(image: Tensor, text: Tensor) -> Tensor:
        true = (scaled[image] * texts[text]).sum(1) - margin / temperature
        return (softplus(wrong_texts[image] - true) + softplus(wrong_images[text] - true)) / 2

    cost = costs(own, torch.arange(len(own), device=own.device)).sum()
    if exempt is not None and weight is not None:
        true = weight > 0
        cost = cost + (costs(exempt.image[true], exempt.text[true]) * weight[true]).sum()
    return cost / len(own) if reduction == "mean" else cost


def check_hardness(hardness: float) -> None:
    """Raise a ValueError for a hardness weight that is negative or not finite."""
    if not 0 <= hardness < math.inf:
        raise ValueError(
            f"a hardness of {hardness} was given; give 0 for none, or a factor of the score above "
            "it, as 9 for cosines"
        )


def _slowed(vectors: Tensor, share: float) -> Tensor:
    """The vectors, to the bit, with this share of their gradient."""
    if share == 1 or not vectors.requires_grad:
        return vectors
    fixed = vectors.detach()
    return fixed + (vectors - fixed) * share


def tiled_hardest_triplet(
    images: Tensor,
    texts: Tensor,
    text_to_image: Tensor,
    margin: float = 0.2,
    *,
    exempt: Pairs | None = None,
    equal: EqualTexts | None = None,
    tile: int = 1024,
    reduction: Reduction = "sum",
) -> Tensor:
    """Hinge of each true pair against the hardest wrong text and the hardest wrong image of all.

    VSE++ (https://arxiv.org/abs/1707.05612), Eq. 6, with the departures of `HardestTripletLoss`.
    Arguments and errors are those of `tiled_info_nce`; the margin is in units of a score.

    >>> images, texts = torch.eye(2), torch.tensor([[0.8, 0.6], [0.6, 0.8]])
    >>> round(tiled_hardest_triplet(images, texts, torch.arange(2), 0.3).item(), 3)
    0.4
    """
    images, texts, own = _checked(images, texts, text_to_image, tile)
    true = (images[own] * texts).sum(1)
    spared = _Spared(own, exempt, equal)
    wrong_texts, wrong_images = _wrong_pairs(images, texts, spared, tile, hardest=True)
    costs = hinge(wrong_texts[own], true, margin) + hinge(wrong_images, true, margin)
    cost = costs.sum()
    return cost / len(own) if reduction == "mean" else cost


@final
class _Spared(NamedTuple):
    """Which pairs of I images and T texts are no negatives; for the fields see `VectorScores`."""

    own: Tensor
    exempt: Pairs | None
    equal: EqualTexts | None

    def hide(self, scores: Tensor, top: int, left: int) -> None:
        """Set those of a tile of scores to -inf, in place, whose first pair is (top, left)."""
        row = torch.arange(top, top + len(scores), device=scores.device)
        own = self.own[left : left + scores.shape[1]]
        scores.masked_fill_(row.unsqueeze(1) == own, -torch.inf)
        if self.exempt is not None:
            down, right = self.exempt.image - top, self.exempt.text - left
            here = (down >= 0) & (down < len(scores)) & (right >= 0) & (right < len(scores.T))
            scores[down[here], right[here]] = -torch.inf
        if self.equal is not None:
            text = torch.arange(left, left + len(own), device=scores.device)
            scores[self.equal.places(row, text)] = -torch.inf


@final
class _WrongPairs(torch.autograd.Function):
    """(I,) and (T,) logsumexp, or maximum, of the wrong scores of each image and each text."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        texts: Tensor,
        spared: _Spared,
        tile: int,
        hardest: bool,
    ) -> tuple[Tensor, Tensor]:
        sides = [images.new_full((len(side),), -torch.inf) for side in (images, texts)]
        # equally hard negatives share the gradient, as in the backward pass of `amax`
        ties = [torch.zeros_like(side, dtype=torch.long) for side in sides]
        places = [torch.zeros_like(side) for side in ties]
        for rows, columns, scores in _tiles(images, texts, spared, tile):
            for axis, part, start in ((0, rows, columns.start), (1, columns, rows.start)):
                if hardest:
                    hardest_so_far = sides[axis][part], ties[axis][part], places[axis][part]
                    _update_hardest(scores if axis == 0 else scores.T, start, *hardest_so_far)
                else:
                    partial = scores.logsumexp(1 - axis)
                    sides[axis][part] = torch.logaddexp(sides[axis][part], partial)
        ctx.save_for_backward(images, texts, *sides, *ties, *places)
        ctx.spared, ctx.tile, ctx.hardest = spared, tile, hardest
        return sides[0], sides[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        images, texts, by_image, by_text, *rest = ctx.saved_tensors
        of_images, of_texts = torch.zeros_like(images), torch.zeros_like(texts)
        if ctx.hardest:
            image_ties, text_ties, text_of, image_of = rest
            grads = grads[0] / image_ties.clamp(min=1), grads[1] / text_ties.clamp(min=1)
            if not (image_ties > 1).any() and not (text_ties > 1).any():
                by_image, by_text = (grad.unsqueeze(1) for grad in grads)
                of_images = by_image * texts[text_of]
                of_images.index_add_(0, image_of, by_text * texts)
                of_texts = by_text * images[image_of]
                of_texts.index_add_(0, text_of, by_image * images)
                return of_images, of_texts, None, None, None
        for rows, columns, scores in _tiles(images, texts, ctx.spared, ctx.tile):
            per_image, per_text = by_image[rows].unsqueeze(1), by_text[columns]
            if ctx.hardest:
                # equal inputs in tiles of equal shape: the maximum is met to the last bit; where it
                # is -inf, there is no wrong pair and the gradient of the hinge is 0
                shares = [(scores == best).to(scores.dtype) for best in (per_image, per_text)]
            else:
                # without any wrong pair the sum is -inf, and -inf - -inf is NaN
                shares = [
                    (scores - total.clamp(min=torch.finfo(scores.dtype).min)).exp()
                    for total in (per_image, per_text)
                ]
            weight = shares[0] * grads[0][rows].unsqueeze(1) + shares[1] * grads[1][columns]
            of_images[rows] += weight @ texts[columns]
            of_texts[columns] += weight.T @ images[rows]
        return of_images, of_texts, None, None, None


def _wrong_pairs(
    images: Tensor, texts: Tensor, spared: _Spared, tile: int, *, hardest: bool
) -> tuple[Tensor, Tensor]:
    """`_WrongPairs`, with types."""
    apply: Callable[..., tuple[Tensor, Tensor]] = _WrongPairs.apply
    own, exempt, equal, device = *spared, images.device
    on_device = _Spared(own, exempt and exempt.to(device), equal and equal.to(device))
    return apply(images, texts, on_device, tile, hardest)


def _wrong_pairs_on_gpu(
    images: Tensor, texts: Tensor, own: Tensor, scale: float | Tensor
) -> tuple[Tensor, Tensor]:
    """The log-sum-exps of `_WrongPairs` by a kernel, of vectors in the precision they have."""
    from counterfoil.gpu.contrastive import wrong_pairs

    dtype = torch.promote_types(images.dtype, texts.dtype)
    scale = torch.as_tensor(scale, dtype=torch.float32, device=images.device).reshape(())
    return wrong_pairs(images.to(dtype), texts.to(dtype), own, scale)


def _update_hardest(scores: Tensor, start: int, best: Tensor, ties: Tensor, place: Tensor) -> None:
    """Update, in place, the maximum of each row, how often it was met, and where, by one tile."""
    hardest = scores.amax(1)
    # few rows, after the first tiles
    hit = ((hardest >= best) & (hardest > -torch.inf)).nonzero().squeeze(1)
    new, old = hardest[hit], best[hit]
    met = scores[hit] == new.unsqueeze(1)
    count, better = met.sum(1), new > old
    ties[hit] = torch.where(better, count, ties[hit] + count)
    place[hit] = torch.where(better, start + met.to(torch.uint8).argmax(1), place[hit])
    best[hit] = new


def _tiles(
    images: Tensor, texts: Tensor, spared: _Spared, tile: int
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows, columns and scores of each tile, -inf where the pair is true."""
    for top in range(0, len(images), tile):
        rows = slice(top, min(top + tile, len(images)))
        for left in range(0, len(texts), tile):
            columns = slice(left, min(left + tile, len(texts)))
            # autocast is on in a forward pass alone: scores of both passes must be the same
            with torch.autocast(images.device.type, enabled=False):
                scores = images[rows] @ texts[columns].T
            spared.hide(scores, top, left)
            yield rows, columns, scores


def _checked(
    images: Tensor, texts: Tensor, text_to_image: Tensor, tile: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings in float32 at least, and the image row of each text."""
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1]:
        raise ValueError(
            f"embeddings of shapes {tuple(images.shape)} and {tuple(texts.shape)} were given; "
            "a tiled loss takes one vector per item, (I, d) and (T, d)"
        )
    if text_to_image.shape != (len(texts),):
        raise ValueError(
            f"text_to_image must hold one image row for each of the {len(texts)} texts, but its "
            f"shape is {tuple(text_to_image.shape)}"
        )
    if len(texts) == 0 or not 0 <= text_to_image.min() <= text_to_image.max() < len(images):
        raise ValueError(
            f"each text needs the row of its image, from 0 to {len(images) - 1}, and there must be "
            "a text; leave texts without an image out"
        )
    if tile < 1:
        raise ValueError(f"a tile of {tile} was given; it must be positive")
    dtype = torch.promote_types(torch.promote_types(images.dtype, texts.dtype), torch.float32)
    return images.to(dtype), texts.to(dtype), text_to_image.to(images.device)
