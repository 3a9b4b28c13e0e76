"""BLIP for retrieval: a text encoder that looks at the image (Li et al., ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from counterfoil.core.config import config as make_config
from counterfoil.core.types import Embeddings, ModalityBatch, Pairs
from counterfoil.models.base import RetrievalModel
from counterfoil.models.checkpoints import ConvertedModel, read_checkpoint
from counterfoil.models.layers.joint_encoder import LOGIT_SCALE, TOKENS_AT_ONCE, Score
from counterfoil.models.layers.pooling import (
    check_choice,
    check_heads,
    check_positive,
    full_mask,
    full_precision,
    valid_ids,
    zero_padded,
)
from counterfoil.models.layers.pretrained import config_of, hf_library, weights_file

# The modules of Hugging Face transformers: vision transformer, text encoder.


SPREAD = 0.02  # of fresh weights


@final
@dataclass(frozen=True, slots=True)
class BlipLayerSizes:
    """The sizes of a transformer.

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
        check_positive(layers=self.layers, inner=self.inner)
        check_heads(self.heads, self.width)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BlipSizes:
    """The sizes of a BLIP.

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

    text: BlipLayerSizes
    image: BlipLayerSizes
    vocabulary: int
    positions: int
    size: int
    patch: int
    dropout: float

    def __post_init__(self) -> None:
        check_positive(vocabulary=self.vocabulary, positions=self.positions)
        check_positive(size=self.size, patch=self.patch)
        if self.size % self.patch:
            raise ValueError(
                f"patches of {self.patch} pixels do not divide pictures of {self.size}; choose a "
                f"multiple of {self.patch}"
            )


def vision_body(sizes: BlipSizes) -> nn.Module:
    """Build a `transformers.BlipVisionModel` with fresh weights.

    Raises:
        ValueError: transformers is not installed.
    """
    transformers = hf_library()
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
    """Build a `transformers.BlipTextModel` with cross-attention to images and fresh weights.

    Raises:
        ValueError: transformers is not installed.
    """
    transformers = hf_library()
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


def encode_pixels(body: Any, items: ModalityBatch) -> Embeddings:
    """Encode pixels (N, 3, size, size) as a class token and one token per patch.

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
    return Embeddings(states, full_mask(states))


def embed_words(body: Any, items: ModalityBatch) -> Embeddings:
    """Embed token ids (N, L) with their positions.

    Raises:
        ValueError: an id or a length that the model does not know.
    """
    embeddings, known = body.embeddings, body.config
    ids = valid_ids(items, longest=known.max_position_embeddings, vocabulary=known.vocab_size)
    places = embeddings.position_embeddings.weight[: ids.shape[1]]
    found = embeddings.LayerNorm(embeddings.word_embeddings(ids) + places)
    return Embeddings(embeddings.dropout(found), items.mask)


def run_blip_text_encoder(body: Any, images: Embeddings, texts: Tensor, mask: Tensor) -> Tensor:
    """Return the states (U, G, D) of the first token of each text after reading its image.

    Keys and values of an image are computed once for all of its texts; the last layer computes the
    first token alone.

    Args:
        body: a BlipTextModel.
        images: U of them.
        texts: (U, G, L, D) embedded texts of each.
        mask: (U, G, L) bool, True where a token is real.
    """
    each, count, long, _ = texts.shape
    seen, room = zero_padded(images.tokens, images.mask), zero_padded(texts, mask).flatten(0, 1)
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
    """Attend from (N, A, D) to (N, R, E); returns (N, A, D), with residual and norm."""
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
    """Return the attention mask (N, 1, 1, L), True at real tokens; None without padding."""
    return None if bool(mask.all()) else mask[:, None, None]


@final
class BLIP(RetrievalModel):
    """Image-text matching by a text encoder with cross-attention to the image.

    Images are encoded by the vision transformer and texts by the embedding layer alone; the text
    encoder reads pairs of them. The parts are those of `transformers.BlipForImageTextRetrieval`,
    and so are their names in a saved model; its projections for cosines are not there.

    BLIP: Bootstrapping Language-Image Pre-training (arXiv:2201.12086), image-text matching.

    Departs from the authors' code in: a score is yes minus no, where their evaluation adds yes to
    a cosine; a text begins with [CLS], as in transformers and in their demonstration, where their
    training put [ENC] in its place.
    """

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        inner: int = 3072,
        vocabulary: int = 30524,
        positions: int = 512,
        epsilon: float = 1e-12,
        image_layers: int = 12,
        image_width: int = 768,
        image_heads: int = 12,
        image_inner: int = 3072,
        image_epsilon: float = 1e-5,
        size: int = 384,
        patch: int = 16,
        dropout: float = 0.0,
        mask: int | None = None,
        score: Score = "logit",
    ) -> None:
        """Keyword arguments; the sizes are those of the public base model.

        Args:
            layers: of the text encoder.
            width: of its tokens.
            heads: of its attentions.
            inner: width of its perceptrons.
            vocabulary: how many token ids there are.
            positions: longest text.
            epsilon: of its norms.
            image_layers: of the vision transformer.
            image_width: of its tokens.
            image_heads: of its attention.
            image_inner: width of its perceptrons.
            image_epsilon: of its norms.
            size: side of pictures in pixels.
            patch: side of a patch in pixels.
            dropout: share dropped by the text encoder in training.
            mask: id of the token that hides a word, 103 in bert-base-uncased; None where there is
                none.
            score: "logit", yes minus no; "probability", its sigmoid.

        Raises:
            ValueError: sizes that are not possible, or transformers is not installed.
        """
        super().__init__()
        check_choice("score", score, get_args(Score))
        self.score = score
        self.score_scale = 1.0 if score == "probability" else LOGIT_SCALE
        sizes = BlipSizes(
            text=BlipLayerSizes(layers, width, heads, inner, epsilon),
            image=BlipLayerSizes(
                image_layers, image_width, image_heads, image_inner, image_epsilon
            ),
            vocabulary=vocabulary,
            positions=positions,
            size=size,
            patch=patch,
            dropout=dropout,
        )
        self.vision_model, self.text_encoder = vision_body(sizes), text_body(sizes)
        self.itm_head = nn.Linear(width, 2)
        self._mask = mask

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images (N, 3, size, size) as a class token and one token per patch."""
        return encode_pixels(self.vision_model, images)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Embed the tokens of N texts."""
        return embed_words(self.text_encoder, texts)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P,) scores of image p with text p."""
        rows = torch.arange(len(images))
        return self.score_indices(images, texts, Pairs(rows, rows))

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """(P,) scores, a bounded number of them at a time."""
        size = _sequences_at_once(images, images.mask.shape[1] + texts.mask.shape[1])
        scores = [images.tokens.new_zeros(0)]
        for image, text in zip(
            torch.split(pairs.image, size), torch.split(pairs.text, size), strict=True
        ):
            said = texts.rows(text)
            found = self._scored(images.rows(image), said.tokens[:, None], said.mask[:, None])
            scores.append(found[:, 0])
        return torch.cat(scores)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(I, T) scores of all pairs; an image is prepared once for many texts."""
        long = texts.mask.shape[1]
        most = _sequences_at_once(images, long)
        several = _sequences_at_once(images, images.mask.shape[1] + len(texts) * long)
        rows = [images.tokens.new_zeros(0, len(texts))]
        for start in range(0, len(images), several):
            some = images.rows(slice(start, start + several))
            found = [some.tokens.new_zeros(len(some), 0)]
            for first in range(0, len(texts), most):
                said = texts.rows(slice(first, first + most))
                found.append(self._scored(some, said.tokens[None], said.mask[None]))
            rows.append(torch.cat(found, 1))
        return torch.cat(rows)

    def word_table(self) -> nn.Module:
        """Return the embedding table of token ids."""
        table: nn.Module = self.text_encoder.get_input_embeddings()  # type: ignore[operator]
        return table

    @property
    def mask_word(self) -> int | None:
        """Id of the mask token; None if there is none."""
        return self._mask

    def _scored(self, images: Embeddings, texts: Tensor, mask: Tensor) -> Tensor:
        """(U, G) scores of U images with texts (U, G, L, D) of each, or (1, G, L, D) of all."""
        many = len(images)
        said, real = texts.expand(many, -1, -1, -1), mask.expand(many, -1, -1)
        first = run_blip_text_encoder(self.text_encoder, images, said, real)
        with torch.autocast(first.device.type, enabled=False):
            no, yes = self.itm_head(full_precision(first)).unbind(2)
            logit: Tensor = yes - no
        return logit.sigmoid() if self.score == "probability" else logit


def _sequences_at_once(bag: Embeddings, tokens: int) -> int:
    """Return how many sequences of `tokens` tokens fit in one pass."""
    most = TOKENS_AT_ONCE.get(bag.tokens.device.type, TOKENS_AT_ONCE["cuda"])
    return max(1, most // max(1, tokens))


# A public BLIP for retrieval by folder or name.


PARTS = ("vision_model.", "text_encoder.embeddings.", "text_encoder.encoder.", "itm_head.")
UNREAD = "position_ids"  # numbered, not learnt
HEAD = "itm_head.weight"


def public_blip(name: str, *, mask: int | None) -> ConvertedModel:
    """Convert the BLIP of a folder or name, such as "Salesforce/blip-itm-base-coco".

    Args:
        name: folder or name of a Hugging Face model.
        mask: id of the tokenizer's token that hides a word; None where there is none.

    Raises:
        ValueError: transformers is not installed, there is no such model, or it is none that
            judges whether texts and images belong together.
    """
    config = config_of(name)
    seen, said = config.vision_config, config.text_config
    if not seen.hidden_act == said.hidden_act == "gelu":
        raise ValueError(
            f"{name} is a BLIP of another kind than the public ones: its hidden_act are "
            f"{seen.hidden_act} and {said.hidden_act}, not gelu"
        )
    given = read_checkpoint(weights_file(name)).state
    state = {
        key: value.float()
        for key, value in given.items()
        if key.startswith(PARTS) and not key.endswith(UNREAD)
    }
    if HEAD not in state:
        raise ValueError(
            f"{name} holds no BLIP that matches images and texts; give one for retrieval, as "
            "Salesforce/blip-itm-base-coco"
        )
    spec = make_config(
        BLIP,
        layers=said.num_hidden_layers,
        width=said.hidden_size,
        heads=said.num_attention_heads,
        inner=said.intermediate_size,
        vocabulary=said.vocab_size,
        positions=said.max_position_embeddings,
        epsilon=float(said.layer_norm_eps),
        image_layers=seen.num_hidden_layers,
        image_width=seen.hidden_size,
        image_heads=seen.num_attention_heads,
        image_inner=seen.intermediate_size,
        image_epsilon=float(seen.layer_norm_eps),
        size=seen.image_size,
        patch=seen.patch_size,
        dropout=float(said.hidden_dropout_prob),
        mask=mask,
    )
    return ConvertedModel(spec, state)
