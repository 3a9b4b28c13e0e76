"""BLIP for retrieval: a text encoder with cross-attention to the image (Li et al., ICML 2022)."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from counterfoil.core.config import config as make_config
from counterfoil.core.types import Embeddings, ModalityBatch, Pairs
from counterfoil.models.checkpoints import ConvertedModel, read_checkpoint
from counterfoil.models.layers.joint_encoder import PairModel, Score, tokens_at_once
from counterfoil.models.layers.pooling import (
    check_heads,
    check_patch,
    check_positive,
    full_mask,
    full_precision,
    valid_ids,
    zero_padded,
)
from counterfoil.models.layers.pretrained import config_of, import_transformers, weights_file

# The encoders of Hugging Face transformers: vision transformer, text encoder.


SPREAD = 0.02  # of fresh weights


def _vision_model(**sizes: Any) -> nn.Module:
    """Build a vision transformer with fresh weights."""
    transformers = import_transformers()
    config = transformers.BlipVisionConfig(**sizes, initializer_range=SPREAD)
    model: nn.Module = transformers.BlipVisionModel(config)
    return model


def _text_encoder(**sizes: Any) -> nn.Module:
    """Build a text encoder with cross-attention and fresh weights."""
    transformers = import_transformers()
    config = transformers.BlipTextConfig(
        **sizes,
        initializer_range=SPREAD,
        is_decoder=True,  # which gives it cross-attention
        bos_token_id=None,  # it generates no text
        eos_token_id=None,
        sep_token_id=None,
    )
    model: nn.Module = transformers.BlipTextModel(config, add_pooling_layer=False)
    return model


def encode_pixels(body: Any, items: ModalityBatch) -> Embeddings:
    """Encode pixels (N, 3, size, size) as a class token and one token per patch."""
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
    """Embed token ids (N, L) with their positions."""
    embeddings, config = body.embeddings, body.config
    ids = valid_ids(items, longest=config.max_position_embeddings, vocabulary=config.vocab_size)
    positions = embeddings.position_embeddings.weight[: ids.shape[1]]
    words = embeddings.LayerNorm(embeddings.word_embeddings(ids) + positions)
    return Embeddings(embeddings.dropout(words), items.mask)


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
    n_images, n_texts, length, _ = texts.shape
    image_states = zero_padded(images.tokens, images.mask)
    states = zero_padded(texts, mask).flatten(0, 1)
    image_keys, text_keys = _keys(images.mask), _keys(mask.reshape(n_images * n_texts, length))
    layers = list(body.encoder.layer)
    for layer in layers:
        queries = states[:, :1] if layer is layers[-1] else states
        shape = queries.shape
        attended = _attend(layer.attention, queries, states, text_keys)
        attended = attended.reshape(n_images, n_texts * shape[1], shape[2])
        attended = _attend(layer.crossattention, attended, image_states, image_keys)
        states = layer.feed_forward_chunk(attended).reshape(shape)
    return states.view(n_images, n_texts, texts.shape[3])


def _attend(block: Any, queries: Tensor, context: Tensor, keys: Tensor | None) -> Tensor:
    """Attend from (N, A, D) to (N, R, E); returns (N, A, D), with residual and norm."""
    attention = block.self
    query, key, value = (
        projected.unflatten(2, (attention.num_attention_heads, -1)).transpose(1, 2)
        for projected in (
            attention.query(queries),
            attention.key(context),
            attention.value(context),
        )
    )
    rate = attention.dropout.p if attention.training else 0.0
    attended = scaled_dot_product_attention(query, key, value, attn_mask=keys, dropout_p=rate)
    out: Tensor = block.output(attended.transpose(1, 2).flatten(2), queries)
    return out


def _keys(mask: Tensor) -> Tensor | None:
    """Return the attention mask (N, 1, 1, L), True at real tokens; None without padding."""
    return None if bool(mask.all()) else mask[:, None, None]


@final
class BLIP(PairModel):
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
        """Initialise the model; the default sizes are those of the public base model.

        Args:
            layers: of the text encoder.
            width: of its tokens.
            heads: of its attentions.
            inner: width of its perceptrons.
            vocabulary: number of token ids.
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
            score: what losses read: "logit", yes minus no; "probability", its sigmoid. Pairs are
                ranked by the logit either way.

        Raises:
            ValueError: sizes that are not possible, or transformers is not installed.
        """
        super().__init__(score)
        check_positive(layers=layers, inner=inner, vocabulary=vocabulary, positions=positions)
        check_positive(image_layers=image_layers, image_inner=image_inner, size=size, patch=patch)
        check_heads(heads, width)
        check_heads(image_heads, image_width)
        check_patch(size, patch)
        self.vision_model = _vision_model(
            hidden_size=image_width,
            intermediate_size=image_inner,
            num_hidden_layers=image_layers,
            num_attention_heads=image_heads,
            image_size=size,
            patch_size=patch,
            layer_norm_eps=image_epsilon,
        )
        self.text_encoder = _text_encoder(
            vocab_size=vocabulary,
            max_position_embeddings=positions,
            hidden_size=width,
            encoder_hidden_size=image_width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            layer_norm_eps=epsilon,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        self.itm_head = nn.Linear(width, 2)
        self._mask = mask

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images (N, 3, size, size) as a class token and one token per patch."""
        return encode_pixels(self.vision_model, images)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Embed the tokens of N texts."""
        return embed_words(self.text_encoder, texts)

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """Return the (P,) scores of listed pairs, a bounded number at a time."""
        size = _sequences_at_once(images, images.mask.shape[1] + texts.mask.shape[1])
        scores = [images.tokens.new_zeros(0)]
        for image, text in zip(
            torch.split(pairs.image, size), torch.split(pairs.text, size), strict=True
        ):
            words = texts.rows(text)
            part = self._score(images.rows(image), words.tokens[:, None], words.mask[:, None])
            scores.append(part[:, 0])
        return torch.cat(scores)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores of all pairs; an image is prepared once for many texts."""
        length = texts.mask.shape[1]
        text_step = _sequences_at_once(images, length)
        image_step = _sequences_at_once(images, images.mask.shape[1] + len(texts) * length)
        rows = [images.tokens.new_zeros(0, len(texts))]
        for start in range(0, len(images), image_step):
            part = images.rows(slice(start, start + image_step))
            columns = [part.tokens.new_zeros(len(part), 0)]
            for first in range(0, len(texts), text_step):
                words = texts.rows(slice(first, first + text_step))
                columns.append(self._score(part, words.tokens[None], words.mask[None]))
            rows.append(torch.cat(columns, 1))
        return torch.cat(rows)

    def word_table(self) -> nn.Module:
        """Return the embedding table of token ids."""
        table: nn.Module = self.text_encoder.get_input_embeddings()  # type: ignore[operator]
        return table

    @property
    def mask_word(self) -> int | None:
        """Id of the mask token; None if there is none."""
        return self._mask

    def _score(self, images: Embeddings, texts: Tensor, mask: Tensor) -> Tensor:
        """Return (U, G) scores of U images with texts (U, G, L, D), or (1, G, L, D) for all."""
        texts, mask = (x.expand(len(images), *x.shape[1:]) for x in (texts, mask))
        first = run_blip_text_encoder(self.text_encoder, images, texts, mask)
        with torch.autocast(first.device.type, enabled=False):
            no, yes = self.itm_head(full_precision(first)).unbind(2)
        logit: Tensor = yes - no
        return logit


def _sequences_at_once(bag: Embeddings, tokens: int) -> int:
    """Return how many sequences of `tokens` tokens fit in one pass."""
    return max(1, tokens_at_once(bag.tokens.device) // max(1, tokens))


# A public BLIP for retrieval by folder or name.


PARTS = ("vision_model.", "text_encoder.embeddings.", "text_encoder.encoder.", "itm_head.")
UNUSED = "position_ids"  # constants, not weights
HEAD = "itm_head.weight"


def blip_from_pretrained(name: str, *, mask: int | None) -> ConvertedModel:
    """Convert the BLIP of a folder or name, such as "Salesforce/blip-itm-base-coco".

    Args:
        name: folder or name of a Hugging Face model.
        mask: id of the tokenizer's mask token; None if there is none.
    """
    config = config_of(name)
    vision, text = config.vision_config, config.text_config
    if not vision.hidden_act == text.hidden_act == "gelu":
        raise ValueError(
            f"{name} is a BLIP of another kind than the public ones: its hidden_act are "
            f"{vision.hidden_act} and {text.hidden_act}, not gelu"
        )
    source = read_checkpoint(weights_file(name)).state
    state = {
        key: value.float()
        for key, value in source.items()
        if key.startswith(PARTS) and not key.endswith(UNUSED)
    }
    if HEAD not in state:
        raise ValueError(
            f"{name} holds no BLIP that matches images and texts; give one for retrieval, as "
            "Salesforce/blip-itm-base-coco"
        )
    spec = make_config(
        BLIP,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        heads=text.num_attention_heads,
        inner=text.intermediate_size,
        vocabulary=text.vocab_size,
        positions=text.max_position_embeddings,
        epsilon=float(text.layer_norm_eps),
        image_layers=vision.num_hidden_layers,
        image_width=vision.hidden_size,
        image_heads=vision.num_attention_heads,
        image_inner=vision.intermediate_size,
        image_epsilon=float(vision.layer_norm_eps),
        size=vision.image_size,
        patch=vision.patch_size,
        dropout=float(text.hidden_dropout_prob),
        mask=mask,
    )
    return ConvertedModel(spec, state)
