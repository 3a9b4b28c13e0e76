"""Towers for precomputed features, word ids and small pictures, with augmentation in training.

The augmentation drops regions and words (Chen et al., CVPR 2021, supp. 1). Like dropout, it happens
inside the model in training mode, from PyTorch's global generator. The remaining tokens are moved
together, so a mask is True from an item's first token to its last, and no item loses all tokens.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import (
    ImageTower,
    PatchGrid,
    TextTower,
    WordTower,
    batch_norm_tokens,
    check_choice,
    check_features,
    check_positive,
    full_mask,
    masked_ids,
    projection,
    unit_vectors,
    zero_padded,
)

MASKED, REPLACED = 0.5, 0.6  # 50 % of the dropped words are masked, 10 % replaced, 40 % deleted


# Modules, because they are part of the identity of a model, which indices record.


@final
class RegionDrop(nn.Module):
    """`drop_regions` in training; the identity in evaluation."""

    def __init__(self, *, share: float) -> None:
        super().__init__()
        self.share = check_share(share, "region_drop")

    def forward(self, items: ModalityBatch) -> ModalityBatch:
        """Drop some of the regions in training."""
        return drop_regions(items, self.share) if self.training else items


@final
class WordDrop(nn.Module):
    """`drop_words` in training; the identity in evaluation."""

    def __init__(self, *, share: float, mask: int, vocabulary: int, ends: bool = True) -> None:
        super().__init__()
        self.share = check_share(share, "word_drop")
        self.mask, self.vocabulary, self.ends = mask, vocabulary, ends

    def forward(self, items: ModalityBatch) -> ModalityBatch:
        """Change some of the words in training."""
        if not self.training:
            return items
        return drop_words(
            items, self.share, mask=self.mask, vocabulary=self.vocabulary, ends=self.ends
        )


def drop_regions(items: ModalityBatch, share: float) -> ModalityBatch:
    """Leave out each region with probability `share`, from 0 to below 1."""
    if not share:
        return items
    return _packed(items, torch.rand(items.mask.shape, device=items.mask.device) >= share)


def drop_words(
    items: ModalityBatch, share: float, *, mask: int, vocabulary: int, ends: bool = True
) -> ModalityBatch:
    """Change each word with probability `share`: half are masked, 10 % replaced, 40 % deleted.

    Every piece of a masked word becomes the mask, every piece of a replaced one a random token.
    Special tokens (-1 in `ModalityBatch.words`) stay as they are.

    Departs from the authors' code in: a text that would lose all its tokens keeps them.

    Args:
        items: N texts of L token ids.
        share: from 0 up to, not including, 1.
        mask: id of the token that masks a word.
        vocabulary: random tokens have ids below this.
        ends: where `ModalityBatch.words` says nothing, treat the first and the last token as words
            too, as GPO, CHAN and ESA do with ``<start>`` and ``<end>``; DivE does not.
    """
    if not share:
        return items
    words = _words(items, ends=ends)
    fate = torch.rand(words.shape, device=words.device).gather(1, _places(words)) / share
    fate = fate.masked_fill((words < 0) | ~items.mask, 1)
    other = torch.randint(vocabulary, words.shape, device=words.device)
    values = torch.where(fate < REPLACED, other, items.values).masked_fill(fate < MASKED, mask)
    return _packed(replace(items, values=values), (fate < REPLACED) | (fate >= 1))


def drop_cells(bag: Embeddings, share: float) -> Embeddings:
    """Leave out cells of a grid, with another probability for each image.

    Each image draws r from 0 to 1. If r <= `share` it keeps every cell; else each cell is left out
    with probability share * r.
    """
    if not share:
        return bag
    r = torch.rand(len(bag), 1, device=bag.mask.device)
    out = torch.rand(bag.mask.shape, device=bag.mask.device) < share * r
    order, mask = _order(bag.mask, ~out | (r <= share))
    return Embeddings(_reordered(bag.tokens, order), mask)


def check_share(share: float, name: str) -> float:
    """Return a share that is at least 0 and below 1; others are refused."""
    if not 0 <= share < 1:
        raise ValueError(f"{name}={share} is not possible; give a share from 0 to below 1")
    return share


def _words(items: ModalityBatch, *, ends: bool) -> Tensor:
    """Return (N, L) the index of the word that each token belongs to; -1 for special tokens."""
    if items.words is not None:
        return items.words
    place = torch.arange(items.mask.shape[1], device=items.mask.device).expand(items.mask.shape)
    if ends:
        return place
    last = items.mask.sum(1, keepdim=True) - 1
    return place.masked_fill((place == 0) | (place >= last), -1)


def _places(words: Tensor) -> Tensor:
    """Return (N, L) one number below L for all pieces of a word."""
    begins = torch.ones_like(words)
    begins[:, 1:] = (words[:, 1:] != words[:, :-1]).long()
    return begins.cumsum(1) - 1


def _packed(items: ModalityBatch, keep: Tensor) -> ModalityBatch:
    order, mask = _order(items.mask, keep)
    boxes = None if items.boxes is None else _reordered(items.boxes, order)
    words = None if items.words is None else _reordered(items.words, order).masked_fill(~mask, -1)
    return replace(
        items, values=_reordered(items.values, order), mask=mask, boxes=boxes, words=words
    )


def _order(mask: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Return (N, L) an order with the remaining tokens first, and the mask in that order."""
    remaining = keep & mask
    remaining = torch.where(remaining.any(1, keepdim=True), remaining, mask)
    order = (~remaining).long().argsort(dim=1, stable=True)
    return order, remaining.gather(1, order)


def _reordered(values: Tensor, order: Tensor) -> Tensor:
    rows = torch.arange(len(order), device=order.device).unsqueeze(1)
    return values[rows, order]


# Ready-made features: detected regions, grid cells, or one vector per image.


@final
class Regions(ImageTower):
    """One linear layer per region (VSE++, SCAN); a global feature is a single region."""

    def __init__(self, *, features: int, width: int = 1024, region_drop: float = 0.0) -> None:
        """Initialise the module.

        Args:
            features: width of the input features.
            width: width of the joint space.
            region_drop: share of regions that are left out in training.
        """
        super().__init__()
        check_positive(features=features, width=width)
        self.width = width
        self.augment = RegionDrop(share=region_drop)
        self.fc = projection(features, width)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Project every region's features to the width of the model."""
        check_features(items, self.fc.in_features)
        items = self.augment(items)
        values = items.values.to(self.fc.weight.dtype)
        return Embeddings(self.fc(zero_padded(values, items.mask)), items.mask)


# A linear layer and a small network over every region, side by side or stacked.


Init = Literal["default", "xavier"]


@final
class MLPRegions(ImageTower):
    """Linear(x) + Linear(ReLU(BatchNorm(Linear(x)))) of every region (Chen et al., CVPR 2021).

    In GPO, ESA and HREM both read the features; in DivE the network reads the output of the linear
    layer. Each of several processes normalises by its own images.

    Departs from the authors' code in: padding takes no part in the batch statistics (but see
    `released_padding`), and a batch of a single region is normalised by the running statistics.
    """

    def __init__(
        self,
        *,
        features: int,
        width: int = 1024,
        inner: int | None = None,
        init: Init = "default",
        region_drop: float = 0.0,
        stacked: bool = False,
        dropout: float = 0.0,
        released_padding: bool = False,
    ) -> None:
        """Initialise the module.

        Args:
            features: width of the input features.
            width: of the joint space.
            inner: width inside the network; half the width where None.
            init: how its two layers start: "default" as PyTorch's do (GPO, ESA), or "xavier" as
                the linear layer beside it does (HREM).
            region_drop: share of regions that are left out in training.
            stacked: the network reads the output of the linear layer.
            dropout: dropout rate of the sum.
            released_padding: the authors' code: what pads images with fewer regions, as
                `region_drop` leaves them, counts in the batch statistics as regions of zeros.

        Raises:
            ValueError: a size below 1, or an unknown `init`.
        """
        super().__init__()
        inner = max(1, width // 2) if inner is None else inner
        check_positive(features=features, width=width, inner=inner)
        check_choice("init", init, get_args(Init))
        layer = projection if init == "xavier" else nn.Linear
        self.width = width
        self.augment = RegionDrop(share=region_drop)
        self.fc = projection(features, width)
        self.stacked, self.dropout = stacked, nn.Dropout(dropout)
        self.released_padding = released_padding
        self.enter = layer(width if stacked else features, inner)
        self.leave = layer(inner, width)
        self.norm = nn.BatchNorm1d(inner)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Return the sum of both projections of every region."""
        check_features(items, self.fc.in_features)
        items = self.augment(items)
        values = zero_padded(items.values.to(self.fc.weight.dtype), items.mask)
        linear = self.fc(values)
        entered = self.enter(linear if self.stacked else values)
        everything = not self.norm.training or self.released_padding or bool(items.mask.all())
        normal = batch_norm_tokens(self.norm, entered, None if everything else items.mask)
        return Embeddings(self.dropout(linear + self.leave(normal.relu())), items.mask)


# Word ids through a recurrent network.


@final
class GRU(WordTower):
    """Word embeddings and a GRU: both directions averaged (SCAN), or one (VSE++).

    A word's vector does not depend on the padding behind it.
    """

    def __init__(
        self,
        *,
        words: int,
        word_width: int = 300,
        width: int = 1024,
        layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
        word_drop: float = 0.0,
        drop_ends: bool = True,
    ) -> None:
        """Initialise the module.

        Args:
            words: size of the vocabulary.
            word_width: width of a word embedding.
            width: width of the joint space and of each direction.
            layers: number of recurrent layers.
            bidirectional: read in both directions and average them.
            dropout: dropout rate of the word embeddings.
            word_drop: share of words that are masked, replaced or deleted in training, see
                `drop_words`; above 0 there is one more embedding, the last, of a masked word.
            drop_ends: drop ``<start>`` and ``<end>`` too.
        """
        super().__init__()
        check_positive(words=words, word_width=word_width, width=width, layers=layers)
        self.width = width
        self.words = words
        self.augment = WordDrop(share=word_drop, mask=words, vocabulary=words, ends=drop_ends)
        self.embed = nn.Embedding(words + (word_drop > 0), word_width)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.GRU(word_width, width, layers, batch_first=True, bidirectional=bidirectional)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Encode texts; the mask must be True from the first word to the last."""
        words = self.embedded(items)
        return self.read(words.tokens, words.mask)

    def embedded(self, items: ModalityBatch) -> Embeddings:
        """Return word embeddings (N, L, word_width), after `drop_words` in training."""
        self._check(items)
        items = self.augment(items)
        return Embeddings(self.dropout(self.embed(masked_ids(items))), items.mask)

    def read(self, vectors: Tensor, mask: Tensor) -> Embeddings:
        """Encode texts from their word embeddings (N, L, word_width)."""
        states = run_recurrent(self.rnn, vectors, mask)
        if self.rnn.bidirectional:
            states = states.view(*mask.shape, 2, self.width).mean(-2)
        return Embeddings(states, mask)

    def word_table(self) -> nn.Module:
        """Return the embedding table of word ids."""
        return self.embed

    @property
    def mask_word(self) -> int | None:
        """Id of the embedding of a masked word."""
        return self.words if self.embed.num_embeddings > self.words else None

    def _check(self, items: ModalityBatch) -> None:
        ids, vocabulary = masked_ids(items), self.embed.num_embeddings
        if ids.numel() and int(ids.max()) >= vocabulary:
            raise ValueError(
                f"word id {int(ids.max())} is not in this model's vocabulary of {vocabulary} "
                "words; read the texts with the vocabulary that it was trained with"
            )


def run_recurrent(rnn: nn.GRU, vectors: Tensor, mask: Tensor) -> Tensor:
    """Return (N, L, H) outputs for vectors (N, L, F), up to each item's last real vector."""
    lengths = mask.sum(1).clamp(min=1).cpu()
    packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
    states: Tensor
    states, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True, total_length=mask.shape[1])
    return states


# Pixels through a small convolutional patch embedding, trained from scratch.


@final
class ResidualBlock(nn.Module):
    """x + conv(gelu(norm(x)))."""

    def __init__(self, *, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.conv(nn.functional.gelu(self.norm(x)))
        return x + change


@final
class PatchTower(ImageTower):
    """A small convolutional network: square pictures as (size / patch)^2 region vectors.

    Each halving is a strided convolution, a group norm and a GELU; residual convolutions and a
    learned position embedding follow. No layer reads another picture of the batch.
    """

    def __init__(
        self,
        *,
        size: int = 64,
        patch: int = 16,
        width: int = 256,
        channels: int = 32,
        depth: int = 2,
    ) -> None:
        """Initialise the module.

        Args:
            size: side of a picture in pixels; a multiple of `patch`.
            patch: side of a patch; a power of two.
            width: of the joint space.
            channels: after the first halving; each halving doubles them, up to four times that.
            depth: residual convolutions on the grid of patches.

        Raises:
            ValueError: the sizes do not fit each other.
        """
        super().__init__()
        check_positive(size=size, width=width, channels=channels)
        if patch < 2 or patch & (patch - 1) or size % patch:
            raise ValueError(
                f"patch={patch} does not fit pictures of {size} pixels; use a power of two from 2 "
                "that divides the size"
            )
        self.width, self.size = width, size
        halvings = patch.bit_length() - 1
        sizes = [3, *(channels * min(4, 2**k) for k in range(halvings))]
        stages = [_halve(a, b) for a, b in pairwise(sizes)]
        blocks = (ResidualBlock(channels=sizes[-1]) for _ in range(depth))
        self.stem = nn.Sequential(*stages, *blocks)
        self.fc = nn.Linear(sizes[-1], width)
        self.place = nn.Parameter(torch.randn((size // patch) ** 2, width) * 0.02)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Embed every patch; rows of the picture follow each other."""
        wanted = (3, self.size, self.size)
        if tuple(items.values.shape[1:]) != wanted:
            raise ValueError(
                f"pictures of shape {tuple(items.values.shape[1:])} do not fit a model that reads "
                f"{wanted}; resize them"
            )
        pixels = items.values.to(self.fc.weight.dtype)
        grid = self.stem(pixels.contiguous(memory_format=torch.channels_last))
        tokens = self.fc(grid.flatten(2).transpose(1, 2)) + self.place
        return Embeddings(tokens, full_mask(tokens))

    def patch_grid(self, vectors: int, pixels: tuple[int, int]) -> PatchGrid | None:
        """Return the square of patches, each around the corner of its cell."""
        side = math.isqrt(len(self.place))
        # a halving reads around every second pixel, from the first on
        return PatchGrid.square(vectors, pixels, shift=(side / self.size - 1) / 2)


def _halve(channels: int, more: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, more, 3, stride=2, padding=1), nn.GroupNorm(1, more), nn.GELU()
    )


# Models of two towers.


class TwoTowerModel(RetrievalModel):
    """A model with an image tower and a text tower of the same width.

    `normalise` says whether vectors of images, and those of texts, are scaled to length 1.
    """

    def __init__(
        self, image: ImageTower, text: TextTower, *, normalise: tuple[bool, bool] = (True, True)
    ) -> None:
        super().__init__()
        if image.width != text.width:
            raise ValueError(
                f"the image tower gives {image.width} numbers per vector and the text tower "
                f"{text.width}; give both the same width"
            )
        self.image, self.text = image, text
        self.normalise = normalise

    def patch_grid(self, images: ModalityBatch, vectors: int) -> PatchGrid | None:
        if images.values.dim() != 4:
            return None
        height, width = images.values.shape[2:]
        return self.image.patch_grid(vectors, (height, width))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return self.scale_texts(self.text(texts))

    def scale_images(self, images: Embeddings) -> Embeddings:
        """Scale image vectors to length 1 if the model does so."""
        return unit_vectors(images) if self.normalise[0] else images

    def scale_texts(self, texts: Embeddings) -> Embeddings:
        """Scale text vectors to length 1 if the model does so."""
        return unit_vectors(texts) if self.normalise[1] else texts
