"""ViLT's own parts, made by Hugging Face transformers: embedding layers, transformer, pooler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from counterfoil.models.blocks.joint import Packing
from counterfoil.models.blocks.pretrained import library
from counterfoil.models.blocks.tower import known_ids, positive, split_among
from counterfoil.records import Encoded, Items

TEXT, IMAGE = 0, 1  # kinds of tokens


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ViltSizes:
    """How large a ViLT is.

    Attributes:
        layers: of the transformer.
        width: of its tokens.
        heads: of its attention.
        inner: width of its perceptrons.
        vocabulary: how many token ids there are.
        mask: id of the token that hides a word; None for one behind the vocabulary.
        positions: longest text.
        size: side in pixels of the square that the places of patches were learnt on.
        patch: side of a patch in pixels.
        dropout: share dropped in training.
        spread: of fresh weights.

    Raises:
        ValueError: sizes that are not possible.
    """

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    mask: int | None
    positions: int
    size: int
    patch: int
    dropout: float
    spread: float

    def __post_init__(self) -> None:
        positive(layers=self.layers, inner=self.inner, positions=self.positions)
        positive(vocabulary=self.vocabulary, size=self.size, patch=self.patch)
        split_among(self.heads, self.width)
        if self.size % self.patch:
            raise ValueError(
                f"patches of {self.patch} pixels do not divide pictures of {self.size}; choose a "
                f"multiple of {self.patch}"
            )
        if self.mask is not None and not 0 <= self.mask < self.vocabulary:
            raise ValueError(
                f"mask={self.mask} is not an id of a vocabulary of {self.vocabulary}; give the id "
                "of the tokenizer's mask token, or None"
            )

    @property
    def words(self) -> int:
        """How many embeddings of words there are."""
        return self.vocabulary + (self.mask is None)


def vilt_body(sizes: ViltSizes) -> nn.Module:
    """A `transformers.ViltModel` with fresh weights.

    Raises:
        ValueError: transformers is not installed.
    """
    transformers = library()
    config = transformers.ViltConfig(
        vocab_size=sizes.words,
        max_position_embeddings=sizes.positions,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
        hidden_dropout_prob=sizes.dropout,
        attention_probs_dropout_prob=sizes.dropout,
        image_size=sizes.size,
        patch_size=sizes.patch,
        initializer_range=sizes.spread,
    )
    model: nn.Module = transformers.ViltModel(config)
    return model


def embed_words(body: Any, items: Items) -> Encoded:
    """Token ids (N, L) as vectors, which know that they are words.

    What the mask hides is embedded as the word 0.

    Raises:
        ValueError: an id or a length that the model does not know.
    """
    known = body.config
    ids = known_ids(items, longest=known.max_position_embeddings, vocabulary=known.vocab_size)
    embeddings = body.embeddings
    found = embeddings.text_embeddings(input_ids=ids)
    return Encoded(found + embeddings.token_type_embeddings.weight[TEXT], items.mask)


def embed_patches(body: Any, items: Items) -> Encoded:
    """Pixels (N, 3, H, W) as a vector that stands for the image, and one for each of its patches.

    All patches are read, row after row; those of pictures that fill less than the batch's room
    come without gaps.

    Args:
        body: a ViltModel.
        items: mask (N, 1), or (N, patches), True where a patch is of the picture, which begins at
            the top left.

    Raises:
        ValueError: no pixels, or a mask of other patches.
    """
    embeddings, patch = body.embeddings, int(body.config.patch_size)
    mask = _patch_mask(items, patch)
    pixels = items.values.to(embeddings.cls_token.dtype)
    shown = mask.repeat_interleave(patch, 1).repeat_interleave(patch, 2).unsqueeze(1)
    pixels = pixels[:, :, : shown.shape[2], : shown.shape[3]].masked_fill(~shown, 0)
    seen = embeddings.patch_embeddings(pixels).permute(0, 2, 3, 1) + _places(embeddings, mask)
    whole = embeddings.cls_token[0] + embeddings.position_embeddings[0, :1]
    tokens = torch.cat([whole.expand(len(seen), 1, -1), seen.flatten(1, 2)], 1)
    real = torch.cat([mask.new_ones(len(mask), 1), mask.flatten(1)], 1)
    tokens = embeddings.dropout(tokens) + embeddings.token_type_embeddings.weight[IMAGE]
    return closed(Encoded(tokens, real))


def closed(bag: Encoded) -> Encoded:
    """The same items without gaps, as long as the longest; the order of real tokens stays."""
    if bool(bag.mask.all()):
        return bag
    longest = int(bag.mask.sum(1).max())
    order = (~bag.mask).long().argsort(dim=1, stable=True)[:, :longest]
    tokens = bag.tokens.gather(1, order.unsqueeze(2).expand(-1, -1, bag.tokens.shape[2]))
    return Encoded(tokens, bag.mask.gather(1, order))


def told(body: Any, tokens: Tensor, packing: Packing, kept: Tensor | None = None) -> Tensor:
    """(S, D) last hidden states of packed sequences, or (K, D) of the tokens that are kept."""
    room, hidden = packing.padded(tokens), None
    if packing.keys is not None:
        hidden = torch.zeros_like(packing.keys, dtype=room.dtype)
        hidden = hidden.masked_fill(~packing.keys, -torch.inf)
    for layer in body.encoder.layer:
        found = layer(room, hidden)
        room = found[0] if isinstance(found, tuple) else found
    states = packing.packed(room)
    last: Tensor = body.layernorm(states if kept is None else states[kept])
    return last


def pooled(body: Any, first: Tensor) -> Tensor:
    """(P, D) what the states (P, D) of first tokens say of the whole."""
    summed: Tensor = body.pooler(first.unsqueeze(1))
    return summed


def _patch_mask(items: Items, patch: int) -> Tensor:
    """(N, rows, columns) bool, True at patches of the picture."""
    shape = tuple(items.values.shape)
    if len(shape) != 4 or shape[1] != 3 or min(shape[2:]) < patch:
        raise ValueError(
            f"images of shape {shape} do not fit a model that reads (images, 3, height, width) in "
            f"patches of {patch} pixels; give it pictures"
        )
    rows, columns = shape[2] // patch, shape[3] // patch
    if items.mask.shape[1] == 1:
        return items.mask.view(-1, 1, 1).expand(-1, rows, columns)
    if items.mask.shape[1] != rows * columns:
        raise ValueError(
            f"pictures of {shape[2]} x {shape[3]} pixels whose mask tells of "
            f"{items.mask.shape[1]} patches do not fit a model with patches of {patch} pixels; "
            f"set divisor={patch}"
        )
    return items.mask.view(-1, rows, columns)


def _places(embeddings: Any, mask: Tensor) -> Tensor:
    """(N, rows, columns, D) where patches are, as the square that was learnt is stretched to fit.

    Zero outside of the pictures.
    """
    learnt: Tensor = embeddings.position_embeddings[:, 1:]
    side = round(learnt.shape[1] ** 0.5)
    square = learnt.transpose(1, 2).reshape(1, -1, side, side)
    heights, widths = mask[:, :, 0].sum(1), mask[:, 0].sum(1)
    found = square.new_zeros(*mask.shape, square.shape[1])
    sizes = torch.stack([heights, widths], 1)
    for height, width in torch.unique(sizes, dim=0).tolist():
        if not height * width:
            continue
        fitted = interpolate(square, size=(height, width), mode="bilinear", align_corners=True)
        alike = ((heights == height) & (widths == width)).nonzero().squeeze(1)
        found[alike, :height, :width] = fitted[0].permute(1, 2, 0)
    return found
