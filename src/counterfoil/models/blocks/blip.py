"""BLIP's own parts, made by Hugging Face transformers: vision transformer, text encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from counterfoil.models.blocks.pretrained import library
from counterfoil.models.blocks.tower import every, hidden, known_ids, positive, split_among
from counterfoil.records import Encoded, Items

SPREAD = 0.02  # of fresh weights


@final
@dataclass(frozen=True, slots=True)
class LayerSizes:
    """How large the layers of a transformer are.

    Attributes:
        layers: how many.
        width: of its tokens.
        heads: of its attention.
        inner: width of its perceptrons.
        epsilon: of its norms.

    Raises:
        ValueError: sizes that are not possible.
    """

    layers: int
    width: int
    heads: int
    inner: int
    epsilon: float

    def __post_init__(self) -> None:
        positive(layers=self.layers, inner=self.inner)
        split_among(self.heads, self.width)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BlipSizes:
    """How large a BLIP is.

    Attributes:
        text: layers of the text encoder.
        image: layers of the vision transformer.
        vocabulary: how many token ids there are.
        positions: longest text.
        size: side of pictures in pixels.
        patch: side of a patch in pixels.
        dropout: share dropped by the text encoder in training.

    Raises:
        ValueError: sizes that are not possible.
    """

    text: LayerSizes
    image: LayerSizes
    vocabulary: int
    positions: int
    size: int
    patch: int
    dropout: float

    def __post_init__(self) -> None:
        positive(vocabulary=self.vocabulary, positions=self.positions)
        positive(size=self.size, patch=self.patch)
        if self.size % self.patch:
            raise ValueError(
                f"patches of {self.patch} pixels do not divide pictures of {self.size}; choose a "
                f"multiple of {self.patch}"
            )


def vision_body(sizes: BlipSizes) -> nn.Module:
    """A `transformers.BlipVisionModel` with fresh weights.

    Raises:
        ValueError: transformers is not installed.
    """
    transformers = library()
    config = transformers.BlipVisionConfig(
        hidden_size=sizes.image.width,
        intermediate_size=sizes.image.inner,
        num_hidden_layers=sizes.image.layers,
        num_attention_heads=sizes.image.heads,
        image_size=sizes.size,
        patch_size=sizes.patch,
        layer_norm_eps=sizes.image.epsilon,
        initializer_range=SPREAD,
    )
    model: nn.Module = transformers.BlipVisionModel(config)
    return model


def text_body(sizes: BlipSizes) -> nn.Module:
    """A `transformers.BlipTextModel` that looks at images, with fresh weights.

    Raises:
        ValueError: transformers is not installed.
    """
    transformers = library()
    config = transformers.BlipTextConfig(
        vocab_size=sizes.vocabulary,
        max_position_embeddings=sizes.positions,
        hidden_size=sizes.text.width,
        encoder_hidden_size=sizes.image.width,
        intermediate_size=sizes.text.inner,
        num_hidden_layers=sizes.text.layers,
        num_attention_heads=sizes.text.heads,
        layer_norm_eps=sizes.text.epsilon,
        hidden_dropout_prob=sizes.dropout,
        attention_probs_dropout_prob=sizes.dropout,
        initializer_range=SPREAD,
        is_decoder=True,  # what transformers calls one that has cross-attention
        bos_token_id=None,  # it writes nothing
        eos_token_id=None,
        sep_token_id=None,
    )
    model: nn.Module = transformers.BlipTextModel(config, add_pooling_layer=False)
    return model


def see(body: Any, items: Items) -> Encoded:
    """Pixels (N, 3, size, size) as the states of the whole and of each patch.

    Raises:
        ValueError: no pixels, or pictures of another size.
    """
    shape, size = tuple(items.values.shape), int(body.config.image_size)
    if shape[1:] != (3, size, size):
        raise ValueError(
            f"images of shape {shape} do not fit a model that reads (images, 3, {size}, {size}); "
            f"give it pictures of {size} pixels"
        )
    pixels = items.values.to(next(body.parameters()).dtype)
    states: Tensor = body(pixel_values=pixels).last_hidden_state
    return Encoded(states, every(states))


def embed_words(body: Any, items: Items) -> Encoded:
    """Token ids (N, L) as vectors that know their places.

    Raises:
        ValueError: an id or a length that the model does not know.
    """
    embeddings, known = body.embeddings, body.config
    ids = known_ids(items, longest=known.max_position_embeddings, vocabulary=known.vocab_size)
    places = embeddings.position_embeddings.weight[: ids.shape[1]]
    found = embeddings.LayerNorm(embeddings.word_embeddings(ids) + places)
    return Encoded(embeddings.dropout(found), items.mask)


def told(body: Any, images: Encoded, texts: Tensor, mask: Tensor) -> Tensor:
    """(U, G, D) what the first token of each text says once it has read its image.

    Keys and values of an image are made once for all of its texts.

    Args:
        body: a BlipTextModel.
        images: U of them.
        texts: (U, G, L, D) embedded texts of each.
        mask: (U, G, L) bool, True where a token is real.
    """
    each, count, long, _ = texts.shape
    seen, room = hidden(images.tokens, images.mask), hidden(texts, mask).flatten(0, 1)
    shown, real = _keys(images.mask), _keys(mask.reshape(each * count, long))
    layers = list(body.encoder.layer)
    for layer in layers:
        asking = room[:, :1] if layer is layers[-1] else room
        shape = asking.shape
        read = _attended(layer.attention, asking, room, real)
        read = read.reshape(each, count * shape[1], shape[2])
        read = _attended(layer.crossattention, read, seen, shown)
        room = layer.feed_forward_chunk(read).reshape(shape)
    return room.view(each, count, texts.shape[3])


def _attended(part: Any, asking: Tensor, known: Tensor, keys: Tensor | None) -> Tensor:
    """(N, A, D) of (N, A, D) by attention to (N, R, E), added and normalised."""
    own = part.self
    query, key, value = (
        made.unflatten(2, (own.num_attention_heads, -1)).transpose(1, 2)
        for made in (own.query(asking), own.key(known), own.value(known))
    )
    share = own.dropout.p if own.training else 0.0
    found = scaled_dot_product_attention(query, key, value, attn_mask=keys, dropout_p=share)
    out: Tensor = part.output(found.transpose(1, 2).flatten(2), asking)
    return out


def _keys(mask: Tensor) -> Tensor | None:
    """(N, 1, 1, L) True at real tokens; None where there is no padding."""
    return None if bool(mask.all()) else mask[:, None, None]
