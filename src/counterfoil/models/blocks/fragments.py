"""How well the words of every text find the regions of every image, and the regions the words.

HREM (Fu et al., CVPR 2023) has a graph over a batch that takes it as a hint, so nothing here has a
gradient. One matrix product of regions and real words serves both directions,
and captions of one length are read at a time. Images stand last, so that whatever is taken over
words or regions runs along memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, normalize, pad

from counterfoil.models.blocks.inner import full
from counterfoil.models.blocks.packing import CELLS_AT_ONCE, Packed, Run, pack
from counterfoil.models.blocks.tower import inhabited
from counterfoil.records import Encoded

SLOPE = 0.1
CELLS_IN_CACHE = 1 << 20  # affinities of one block
TINY = 1e-12


@final
@dataclass(frozen=True, slots=True)
class Found:
    """What the fragments of A items find in B others.

    Attributes:
        best: (A, B, K) the highest of their scores, best first, and 0 where there are fewer.
        mean: (A, B) mean of all of them.
    """

    best: Tensor
    mean: Tensor


@torch.no_grad()
def found(
    images: Encoded, texts: Encoded, best: int, *, borrowed: bool = False
) -> tuple[Found, Found]:
    """What I images find in T texts, (I, T), and what the texts find in the images, (T, I).

    The cosine of a word with a region passes a leaky ReLU and is divided by the length of the
    vector of all words' (or regions') cosines with the same counterpart; the score of a fragment is
    its highest over the other side. An item without fragments scores 0.

    Args:
        images: regions.
        texts: words.
        best: K.
        borrowed: padded regions are regions, and texts of fewer than K words borrow padding, as in
            the authors' code; what is found then depends on how far a batch is padded.

    Raises:
        ValueError: there is not enough padding to borrow.
    """
    if borrowed:
        _check(images, texts, best)
    else:
        images, texts = inhabited(images), inhabited(texts)
    place = torch.arange(texts.mask.shape[1], device=texts.mask.device)
    seen = texts.mask | (place < best) if borrowed else texts.mask
    packed, order = pack(Encoded(normalize(full(texts.tokens), dim=-1), seen))
    own, sheet = texts.mask[order], _sheet(images, best, borrowed=borrowed)
    read = [
        sheet.read(block, own[run.captions, : run.length] if borrowed else None)
        for run, block in sheet.blocks(packed)
    ]
    by_texts, by_images = (_stacked([pair[side] for pair in read], order) for side in (0, 1))
    return Found(by_images.best.transpose(0, 1), by_images.mean.T), by_texts


@final
@dataclass(frozen=True, slots=True)
class _Sheet:
    """The images as columns.

    Attributes:
        columns: (R * I, D) unit vectors, region after region.
        shape: (R, I).
        mask: (R, I) bool, True where a region counts; None when all do.
        best: K.
    """

    columns: Tensor
    shape: tuple[int, int]
    mask: Tensor | None
    best: int

    def blocks(self, texts: Packed) -> Iterator[tuple[Run, Tensor]]:
        """(n, L, R, I) affinities of captions of one length."""
        cells, first = max(1, len(self.columns)), 0
        for part in texts.parts(max(1, CELLS_AT_ONCE // cells)):
            affinity = part.words @ self.columns.T
            for cut in (cut for run in part.runs() for cut in run.cut(CELLS_IN_CACHE // cells)):
                block = affinity[cut.words].view(cut.n, cut.length, *self.shape)
                yield Run(cut.word, first + cut.caption, cut.n, cut.length), block
            first += len(part.lengths)

    def read(self, block: Tensor, own: Tensor | None) -> tuple[Found, Found]:
        """What n texts find, (n, I), and what is found by the images in them, (n, I) too.

        Args:
            block: affinities, which are overwritten.
            own: (n, L) which words are not borrowed; None when all are the texts' own.
        """
        block = leaky_relu(block, SLOPE, inplace=True)
        if self.mask is not None:
            block.masked_fill_(~self.mask, 0)
        words = block / _lengths(block, 1)
        if self.mask is not None:
            words.masked_fill_(~self.mask, -torch.inf)
        regions = block.div_(_lengths(block, 2))
        if own is not None:
            regions.masked_fill_(~own[:, :, None, None], -torch.inf)
        kept = None if own is None else own.unsqueeze(-1)
        return (
            _summed_up(words.amax(2), kept, self.best, borrowed=True),
            _summed_up(regions.amax(1), self.mask, self.best, borrowed=False),
        )


def _sheet(images: Encoded, best: int, *, borrowed: bool) -> _Sheet:
    regions = normalize(full(images.tokens), dim=-1).transpose(0, 1)
    mask = None if borrowed or bool(images.mask.all()) else images.mask.T
    return _Sheet(regions.flatten(0, 1), (regions.shape[0], regions.shape[1]), mask, best)


def _lengths(block: Tensor, dim: int) -> Tensor:
    return (block * block).sum(dim, keepdim=True).sqrt_().clamp_(min=TINY)


def _summed_up(scores: Tensor, mask: Tensor | None, best: int, *, borrowed: bool) -> Found:
    """Of (n, F, I) fragments' scores; what the mask hides is in no mean.

    Args:
        scores: one for each fragment.
        mask: bool, broadcastable.
        best: K.
        borrowed: what the mask hides may be among the best all the same.
    """
    kept = scores if mask is None else scores.masked_fill(~mask, 0)
    count = scores.shape[1] if mask is None else mask.expand_as(scores).sum(1)
    shown = scores if mask is None or borrowed else scores.masked_fill(~mask, -torch.inf)
    top = shown.transpose(1, 2).topk(min(best, scores.shape[1])).values
    top = top.masked_fill(top == -torch.inf, 0)
    return Found(pad(top, (0, best - top.shape[-1])), kept.sum(1) / count)


def _stacked(parts: list[Found], order: Tensor) -> Found:
    """Texts in the order they had."""
    back = order.argsort()
    return Found(
        torch.cat([part.best for part in parts])[back],
        torch.cat([part.mean for part in parts])[back],
    )


def _check(images: Encoded, texts: Encoded, best: int) -> None:
    shortest = min(images.tokens.shape[1], texts.tokens.shape[1])
    if shortest < best:
        raise ValueError(
            f"{best} scores cannot be borrowed from items padded to {shortest} regions or words; "
            'choose fewer, or hide the padding with padding="hidden"'
        )
