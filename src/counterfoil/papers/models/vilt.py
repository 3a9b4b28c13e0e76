"""ViLT: one transformer over words and patches of pixels (Kim et al., ICML 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from counterfoil.core.config import config as make_config
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.loading.converted import Converted, load_converted
from counterfoil.models.checkpoints import ConvertedModel, State, longest_prefix, read_checkpoint
from counterfoil.models.layers.joint_encoder import (
    SPREAD,
    JointModel,
    Score,
    TokenPacking,
    UniterHeads,
    build_seeded,
    head_names,
    initialize_weights,
    mask_token,
    with_derived_heads,
)
from counterfoil.models.layers.pooling import (
    check_choice,
    check_heads,
    check_patch,
    check_positive,
    valid_ids,
)
from counterfoil.models.layers.pretrained import config_of, import_transformers, weights_file

# The embedding layers and the transformer of a `transformers.ViltModel`.


TEXT, IMAGE = 0, 1  # kinds of tokens


def embed_words(body: Any, items: ModalityBatch) -> Embeddings:
    """Embed token ids (N, L), with positions and token type; padding is embedded as the word 0."""
    config = body.config
    ids = valid_ids(items, longest=config.max_position_embeddings, vocabulary=config.vocab_size)
    embeddings = body.embeddings
    words = embeddings.text_embeddings(input_ids=ids)
    return Embeddings(words + embeddings.token_type_embeddings.weight[TEXT], items.mask)


def embed_patches(body: Any, items: ModalityBatch) -> Embeddings:
    """Embed pixels (N, 3, H, W) as a class token followed by one token per patch.

    All patches are read, row after row; patches outside a picture are left out, without gaps.

    Args:
        body: a ViltModel.
        items: mask (N, 1), or (N, patches), True where a patch belongs to the picture, which
            starts at the top left.
    """
    embeddings, patch = body.embeddings, int(body.config.patch_size)
    mask = _patch_mask(items, patch)
    pixels = items.values.to(embeddings.cls_token.dtype)
    visible = mask.repeat_interleave(patch, 1).repeat_interleave(patch, 2).unsqueeze(1)
    pixels = pixels[:, :, : visible.shape[2], : visible.shape[3]].masked_fill(~visible, 0)
    patches = embeddings.patch_embeddings(pixels).permute(0, 2, 3, 1) + _positions(embeddings, mask)
    class_token = embeddings.cls_token[0] + embeddings.position_embeddings[0, :1]
    tokens = torch.cat([class_token.expand(len(patches), 1, -1), patches.flatten(1, 2)], 1)
    real = torch.cat([mask.new_ones(len(mask), 1), mask.flatten(1)], 1)
    tokens = embeddings.dropout(tokens) + embeddings.token_type_embeddings.weight[IMAGE]
    return close_gaps(Embeddings(tokens, real))


def close_gaps(bag: Embeddings) -> Embeddings:
    """Move real tokens to the left, in order, and cut the padding to the longest item."""
    if bool(bag.mask.all()):
        return bag
    longest = int(bag.mask.sum(1).max())
    order = (~bag.mask).long().argsort(dim=1, stable=True)[:, :longest]
    tokens = bag.tokens.gather(1, order.unsqueeze(2).expand(-1, -1, bag.tokens.shape[2]))
    return Embeddings(tokens, bag.mask.gather(1, order))


def run_vilt_encoder(
    body: Any, tokens: Tensor, packing: TokenPacking, token_mask: Tensor | None = None
) -> Tensor:
    """Return last hidden states (S, D) of packed sequences, or (K, D) of `token_mask`."""
    padded, bias = packing.padded(tokens), None
    if packing.keys is not None:
        bias = torch.zeros_like(packing.keys, dtype=padded.dtype)
        bias = bias.masked_fill(~packing.keys, -torch.inf)
    for layer in body.encoder.layer:
        output = layer(padded, bias)  # a tuple in transformers 4
        padded = output[0] if isinstance(output, tuple) else output
    states = packing.packed(padded)
    last: Tensor = body.layernorm(states if token_mask is None else states[token_mask])
    return last


def _patch_mask(items: ModalityBatch, patch: int) -> Tensor:
    """Return (N, rows, columns) bool, True at patches of the picture."""
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
            f"pictures of {shape[2]} x {shape[3]} pixels whose mask has "
            f"{items.mask.shape[1]} patches do not fit a model with patches of {patch} pixels; "
            f"set divisor={patch}"
        )
    return items.mask.view(-1, rows, columns)


def _positions(embeddings: Any, mask: Tensor) -> Tensor:
    """Return the position embeddings (N, rows, columns, D) of patches, zero outside pictures.

    The learned square of positions is interpolated to the shape of each picture.
    """
    learnt: Tensor = embeddings.position_embeddings[:, 1:]
    side = round(learnt.shape[1] ** 0.5)
    square = learnt.transpose(1, 2).reshape(1, -1, side, side)
    heights, widths = mask[:, :, 0].sum(1), mask[:, 0].sum(1)
    positions = square.new_zeros(*mask.shape, square.shape[1])
    sizes = torch.stack([heights, widths], 1)
    for height, width in torch.unique(sizes, dim=0).tolist():
        if not height * width:
            continue
        fitted = interpolate(square, size=(height, width), mode="bilinear", align_corners=True)
        alike = ((heights == height) & (widths == width)).nonzero().squeeze(1)
        positions[alike, :height, :width] = fitted[0].permute(1, 2, 0)
    return positions


# Public weights of Hugging Face: their tensor names and ours.
#
# What Hugging Face calls ViltForMaskedLM, ViltForImageAndTextRetrieval, ViltForPreTraining or
# ViltModel is read: "dandelin/vilt-b32-mlm", "dandelin/vilt-b32-mlm-itm",
# "dandelin/vilt-b32-finetuned-coco", or a folder.


OUTPUTS = ("rank", "match", "fill", "doubt", "correct")
BODY = "vilt."
PARTS = ("embeddings.", "encoder.", "layernorm.", "pooler.")  # of a ViltModel saved alone
HEADS = {
    "rank_output.": "says.rank.",
    "itm_score.fc.": "says.match.",
    "itm_score.": "says.match.",
    "mlm_score.transform.dense.": "says.fill.enter.0.",
    "mlm_score.transform.LayerNorm.": "says.fill.enter.2.",
    "mlm_score.decoder.bias": "says.fill.bias",
    "mlm_score.bias": "says.fill.bias",
}
UNUSED = ("position_ids", "token_type_ids")  # constants, not weights
WORDS = "vilt.embeddings.text_embeddings.word_embeddings.weight"


def vilt_name(theirs: str) -> str | None:
    """Return our name of one of their tensors; None for one that is left out."""
    if theirs.endswith(UNUSED):
        return None
    if theirs.startswith(PARTS):
        return BODY + theirs
    return theirs if theirs.startswith(BODY) else longest_prefix(theirs, HEADS)


def read_vilt_state(name: str, *, words: int | None = None) -> State:
    """Read the weights of a Hugging Face ViLT and rename them to those of `ViLT`.

    Args:
        name: folder or name of the model.
        words: size of the vocabulary; where it is one more than that of the weights, the last
            word starts as the mean of all and is never predicted.
    """
    source = read_checkpoint(weights_file(name)).state
    state = {ours: value for theirs, value in source.items() if (ours := vilt_name(theirs))}
    if WORDS not in state:
        raise ValueError(f"{name} holds no weights of a ViLT; give one, as dandelin/vilt-b32-mlm")
    embeddings = state[WORDS]
    if words == len(embeddings) + 1:
        state[WORDS] = torch.cat([embeddings, embeddings.mean(0, keepdim=True)])
        if (bias := state.get("says.fill.bias")) is not None:
            state["says.fill.bias"] = pad(bias, (0, 1), value=-100.0)
    return state


@final
class ViLT(JointModel):
    """One transformer over words and patches; the score is read off the first token.

    Items are encoded by the embedding layers alone; the transformer reads pairs of them. It also
    reads words in the sense of `counterfoil.core.types.WordHeadModel`. The parts are those of
    `transformers.ViltModel`, and so are their names in a saved model.

    ViLT: Vision-and-Language Transformer Without Convolution or Region Supervision
    (https://github.com/dandelin/ViLT); the heads doubt and correct are those of TAGS-DC.

    Departs from the authors' code in: all patches are read, in order, where the authors, and
    transformers after them, shuffle them and fill up with others that the attention then leaves
    out (and, in training, draw 200 of them), so a score never depends on a draw or on the batch.
    """

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        inner: int = 3072,
        vocabulary: int = 30522,
        positions: int = 40,
        size: int = 384,
        patch: int = 32,
        dropout: float = 0.0,
        spread: float = SPREAD,
        mask: int | None = None,
        outputs: tuple[str, ...] = ("rank",),
        score: Score = "probability",
        weights: str | None = None,
        pretrained: bool = False,
    ) -> None:
        """Initialise the model; the default sizes are those of the public weights.

        Args:
            layers: of the transformer.
            width: of its tokens.
            heads: of its attention.
            inner: width of its perceptrons.
            vocabulary: number of token ids.
            positions: longest text.
            size: side in pixels of the square that the places of patches are learnt on; pictures
                may be of any shape.
            patch: side of a patch in pixels.
            dropout: share dropped in training.
            spread: of fresh weights; a narrow model needs more than BERT's 0.02, see `UNITER`.
            mask: see `UNITER`; 103 in bert-base-uncased.
            outputs: its heads: "rank", "match", "fill", "doubt", "correct", see `UNITER`.
            score: see `UNITER`.
            weights: folder or name of a Hugging Face ViLT to begin with.
            pretrained: load them; else it starts from fresh ones.

        Raises:
            ValueError: sizes that are not possible, an unknown output, or none that gives a score;
                transformers is not installed, or there are no such weights, or of other sizes.
        """
        super().__init__(score)
        check_positive(layers=layers, inner=inner, positions=positions)
        check_positive(vocabulary=vocabulary, size=size, patch=patch)
        check_heads(heads, width)
        check_patch(size, patch)
        self._mask, words = mask_token(mask, vocabulary)
        for output in outputs:
            check_choice("outputs", output, OUTPUTS)
        transformers = import_transformers()
        config = transformers.ViltConfig(
            vocab_size=words,
            max_position_embeddings=positions,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=inner,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            image_size=size,
            patch_size=patch,
            initializer_range=spread,
        )
        self.vilt: nn.Module = transformers.ViltModel(config)
        self.says = UniterHeads(outputs=outputs, width=width, words=words, features=1, classes=1)
        initialize_weights(self.says, spread)
        if weights is not None and pretrained:
            self.load_state_dict(self.adopted(read_vilt_state(weights, words=words)))

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Embed N images (N, 3, H, W) as a class token and their patches."""
        return embed_patches(self.vilt, images)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Embed the tokens of N texts."""
        return embed_words(self.vilt, texts)

    def word_table(self) -> nn.Module:
        """Return the embedding table of token ids."""
        table: nn.Module = self.vilt.get_input_embeddings()  # type: ignore[operator]
        return table

    @property
    def mask_word(self) -> int:
        """Id of the mask token."""
        return self._mask

    def adopted(self, state: Mapping[str, Tensor]) -> State:
        """Return the state dict to load, from a ViLT of the same sizes with other heads."""
        new = super().adopted(state)
        for name, value in self.state_dict().items():
            if new[name].shape != value.shape:
                raise ValueError(
                    f"weights of another model cannot be taken over: {name!r} is "
                    f"{tuple(new[name].shape)}, and in this model {tuple(value.shape)}"
                )
        return new

    def run_body(
        self, tokens: Tensor, packing: TokenPacking, token_mask: Tensor | None = None
    ) -> Tensor:
        return run_vilt_encoder(self.vilt, tokens, packing, token_mask)

    def pool_first(self, first: Tensor) -> Tensor:
        pooler: nn.Module = self.vilt.pooler  # type: ignore[assignment]
        pooled: Tensor = pooler(first.unsqueeze(1))  # it reads the first token of (P, 1, D)
        return pooled

    @property
    def word_vectors(self) -> Tensor:
        vectors = self.word_table().weight
        assert isinstance(vectors, Tensor)
        return vectors


# A public ViLT by folder or name.


KIND = ("gelu", True, 3, 1e-12)


def load_vilt(name: str, **options: Any) -> Converted:
    """A ViLT by folder or name."""
    return load_converted(name, vilt_from_pretrained, **options)


def vilt_from_pretrained(name: str, *, mask: int | None) -> ConvertedModel:
    """Convert the ViLT of a folder or name, with the heads that are in it and a rank.

    A rank that was not fine-tuned is the yes of the pre-trained match; without that either, as in
    "dandelin/vilt-b32-mlm", it starts from fresh weights and has to be trained.
    """
    config = config_of(name)
    kind = (config.hidden_act, config.qkv_bias, config.num_channels, config.layer_norm_eps)
    if kind != KIND:
        raise ValueError(
            f"{name} is a ViLT of another kind than the public ones: hidden_act, qkv_bias, "
            f"num_channels and layer_norm_eps are {kind}, not {KIND}"
        )
    state = read_vilt_state(name, words=config.vocab_size + (mask is None))
    spec = make_config(
        ViLT,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        size=config.image_size,
        patch=config.patch_size,
        dropout=float(config.hidden_dropout_prob),
        mask=mask,
        outputs=head_names(state),
    )
    state = build_seeded(spec).adopted(with_derived_heads(state))
    return ConvertedModel(spec, state, divisor=spec.arguments["patch"])
