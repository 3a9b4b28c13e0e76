"""UNITER: one transformer over words and regions (Chen et al., ECCV 2020)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from counterfoil.core.config import config
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.checkpoints import (
    Checkpoint,
    ConvertedModel,
    State,
    longest_prefix,
    option_value,
)
from counterfoil.models.layers.joint_encoder import (
    EPSILON,
    SPREAD,
    JointModel,
    Score,
    TokenPacking,
    UniterHeads,
    build_seeded,
    head_names,
    initialize_weights,
    mask_token,
    require_head,
    with_derived_heads,
)
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    check_features,
    check_heads,
    check_positive,
    valid_ids,
    zero_padded,
)

# Embedding layers: wordpieces with positions, regions with boxes.


PLACE = 7  # numbers of `box_features`


@final
class WordPieceEmbedding(TextTower):
    """BERT's embedding of wordpieces: norm(word + position + kind), with dropout.

    Padding is embedded as the word 0.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        positions: int,
        width: int,
        dropout: float,
        mask: int | None,
        epsilon: float = EPSILON,
    ) -> None:
        super().__init__()
        check_positive(vocabulary=vocabulary, positions=positions, width=width)
        self._mask, words = mask_token(mask, vocabulary)
        self.width = width
        self.word_embeddings = nn.Embedding(words, width)
        self.position_embeddings = nn.Embedding(positions, width)
        self.kind = nn.Parameter(torch.empty(width))
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Embed token ids (N, L)."""
        known, longest = self.word_embeddings.num_embeddings, self.position_embeddings
        ids = valid_ids(items, longest=longest.num_embeddings, vocabulary=known)
        words = self.word_embeddings(ids)
        order = self.position_embeddings.weight[: ids.shape[1]]
        return Embeddings(self.dropout(self.norm(words + order + self.kind)), items.mask)

    def word_table(self) -> nn.Module:
        """Return the embedding table of token ids."""
        return self.word_embeddings

    @property
    def mask_word(self) -> int:
        """Id of the mask token."""
        return self._mask


@final
class RegionEmbedding(ImageTower):
    """UNITER's embedding of regions: norm(norm(features) + norm(place) + kind), with dropout.

    The place of a region is x1, y1, x2, y2, width, height and area, as fractions of the picture.
    """

    def __init__(self, *, features: int, width: int, dropout: float, hides: bool) -> None:
        super().__init__()
        check_positive(features=features, width=width)
        self.width, self.features = width, features
        self.fc, self.place = nn.Linear(features, width), nn.Linear(PLACE, width)
        self.fc_norm, self.place_norm, self.norm = (
            nn.LayerNorm(width, eps=EPSILON) for _ in range(3)
        )
        self.kind = nn.Parameter(torch.empty(width))
        self.veil = nn.Parameter(torch.empty(features)) if hides else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, items: ModalityBatch, veiled: Tensor | None = None) -> Embeddings:
        """Embed regions (N, R, F) with boxes; `veiled` (N, R) is True where features are hidden."""
        check_features(items, self.features)
        values = zero_padded(items.values, items.mask).to(self.fc.weight.dtype)
        if veiled is not None:
            values = torch.where(veiled.unsqueeze(2), self._veil(), values)
        where = box_features(self._boxes(items).to(values.dtype))
        regions = self.fc_norm(self.fc(values)) + self.place_norm(self.place(where))
        return Embeddings(self.dropout(self.norm(regions + self.kind)), items.mask)

    @staticmethod
    def _boxes(items: ModalityBatch) -> Tensor:
        if items.boxes is None:
            raise ValueError(
                "this model reads where regions are, and these image features have no boxes; give "
                "features with boxes, or choose a model that does without"
            )
        return zero_padded(items.boxes, items.mask)

    def _veil(self) -> Tensor:
        if self.veil is None:
            raise ValueError(
                "this model has nothing that stands for a hidden region; build it with the outputs "
                "regress or classify"
            )
        return self.veil


def box_features(boxes: Tensor) -> Tensor:
    """Return (N, R, 7) x1, y1, x2, y2, width, height, area of boxes (N, R, 4 or 6), as fractions.

    Where widths and heights are there they are taken as they are: the authors stored them in half
    precision, as the corners.
    """
    size = boxes[..., 4:] if boxes.shape[2] == 6 else boxes[..., 2:] - boxes[..., :2]
    return torch.cat([boxes[..., :4], size, size.prod(2, keepdim=True)], 2)


# The transformer.


@final
class JointLayer(nn.Module):
    """BERT's layer: self-attention and MLP, each with a residual and a norm behind it (post-LN)."""

    def __init__(self, *, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.share = heads, dropout
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.last_norm = nn.LayerNorm(width, eps=EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: Tensor, packing: TokenPacking, token_mask: Tensor | None = None
    ) -> Tensor:
        """Return the states (S, D) of all tokens, or (K, D) of those in `token_mask`."""
        width = tokens.shape[1]
        queries, residual = packing, tokens
        if token_mask is None:
            query, key, value = self.enter(tokens).chunk(3, 1)
        else:
            # the rows of `enter` are query, key and value: only tokens in `token_mask` need queries
            queries, residual = packing.only(token_mask), tokens[token_mask]
            weight, bias = self.enter.weight, self.enter.bias
            query = linear(residual, weight[:width], bias[:width])
            key, value = linear(tokens, weight[width:], bias[width:]).chunk(2, 1)
        attended = scaled_dot_product_attention(
            self._heads(query, queries),
            self._heads(key, packing),
            self._heads(value, packing),
            attn_mask=packing.keys,
            dropout_p=self.share if self.training else 0.0,
        )
        attended = queries.packed(attended.transpose(1, 2).flatten(2))
        states = self.norm(residual + self.dropout(self.leave(attended)))
        change = self.narrow(gelu(self.wide(states)))
        out: Tensor = self.last_norm(states + self.dropout(change))
        return out

    def _heads(self, tokens: Tensor, packing: TokenPacking) -> Tensor:
        """Return (P, heads, longest, D / heads) for the attention."""
        head_width = tokens.shape[1] // self.heads
        return packing.padded(tokens).view(*packing.shape, self.heads, head_width).transpose(1, 2)


@final
class JointEncoder(nn.Module):
    """BERT's encoder over packed sequences; its last layer computes only the states needed."""

    def __init__(self, *, layers: int, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        check_positive(layers=layers, inner=inner)
        check_heads(heads, width)
        self.layers = nn.ModuleList(
            JointLayer(width=width, heads=heads, inner=inner, dropout=dropout)
            for _ in range(layers)
        )

    def forward(
        self, tokens: Tensor, packing: TokenPacking, token_mask: Tensor | None = None
    ) -> Tensor:
        """Return last hidden states (S, D), or (K, D) of `token_mask`; see `JointLayer`."""
        for layer in self.layers[:-1]:
            tokens = layer(tokens, packing)
        last: Tensor = self.layers[-1](tokens, packing, token_mask)
        return last


@final
class UNITER(JointModel):
    """One transformer over words and regions; the score is read off the first token.

    Items are encoded by the embedding layers alone; the transformer reads pairs of them. Sequences
    are packed, so that neither padding nor the batch has a share in a pair's score. It also reads
    words in the sense of `counterfoil.core.types.WordHeadModel`.

    UNITER: Universal Image-Text Representation Learning (https://github.com/ChenRocks/UNITER); the
    heads doubt and correct are those of TAGS-DC (https://github.com/LibertFan/TAGS).

    Departs from the authors' code in: hidden keys are left out of the attention, not lowered by
    10,000; an item of several pairs of a batch has one dropout mask in the embedding layers; the
    last layer is computed only for tokens that are read.
    """

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        inner: int = 3072,
        vocabulary: int = 28996,
        positions: int = 512,
        features: int = 2048,
        classes: int = 1601,
        dropout: float = 0.1,
        mask: int | None = None,
        outputs: tuple[str, ...] = ("rank",),
        score: Score = "probability",
        spread: float = SPREAD,
    ) -> None:
        """Initialise the model; the default sizes are those of UNITER-base.

        Args:
            layers: of the transformer; 24 in UNITER-large.
            width: of its tokens; 1024 in UNITER-large.
            heads: of its attention; 16 in UNITER-large.
            inner: width of its perceptrons; 4096 in UNITER-large.
            vocabulary: number of token ids.
            positions: longest text.
            features: width of a region's features.
            classes: of regions, where they are classified.
            dropout: share dropped in training.
            mask: id of the token that hides a word, 103 in bert-base-cased; where None there is
                one more embedding for it, behind the vocabulary.
            outputs: its heads: "rank" one score, "match" two logits, no and yes; "fill" hidden
                words, "doubt" whether a token is right, "correct" which word belongs there;
                "regress" features and "classify" classes of regions. What is not named is not
                there.
            score: what losses read: "probability", the sigmoid of the rank, or of what "match"
                finds where there is no rank; "logit", the same before the sigmoid. Pairs are ranked
                by the logit either way, as the authors evaluate.
            spread: of fresh weights; a narrow model needs more than BERT's 0.02, near one by the
                root of its width, or its layers add next to nothing for thousands of steps.

        Raises:
            ValueError: sizes that are not possible, an unknown output, or none that gives a score.
        """
        super().__init__(score)
        self.text = WordPieceEmbedding(
            vocabulary=vocabulary, positions=positions, width=width, dropout=dropout, mask=mask
        )
        hides = bool({"regress", "classify"} & set(outputs))
        self.image = RegionEmbedding(features=features, width=width, dropout=dropout, hides=hides)
        self.body = JointEncoder(
            layers=layers, width=width, heads=heads, inner=inner, dropout=dropout
        )
        self.pooler = nn.Linear(width, width)
        self.says = UniterHeads(
            outputs=outputs,
            width=width,
            words=self.text.word_embeddings.num_embeddings,
            features=features,
            classes=classes,
        )
        initialize_weights(self, spread)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Embed the regions of N images."""
        return self.embed_images(images)

    def embed_images(self, images: ModalityBatch, veiled: Tensor | None = None) -> Embeddings:
        """Embed regions with some features masked: `veiled` is (N, R) bool, True at masked ones."""
        embedded: Embeddings = self.image(images, veiled)
        return embedded

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Embed the tokens of N texts."""
        embedded: Embeddings = self.text(texts)
        return embedded

    def regressed(self, states: Tensor) -> Tensor:
        """Return (M, F) features of the masked region at each state."""
        head = require_head(self.says.regress, "regress")
        features: Tensor = head(states, self.image.fc.weight.T)
        return features

    def classified(self, states: Tensor) -> Tensor:
        """Return (M, C) logits of the class of each region."""
        logits: Tensor = require_head(self.says.classify, "classify")(states)
        return logits

    def run_body(
        self, tokens: Tensor, packing: TokenPacking, token_mask: Tensor | None = None
    ) -> Tensor:
        states: Tensor = self.body(tokens, packing, token_mask)
        return states

    def pool_first(self, first: Tensor) -> Tensor:
        pooled: Tensor = self.pooler(first)
        return pooled.tanh()

    @property
    def word_vectors(self) -> Tensor:
        return self.text.word_embeddings.weight


# The checkpoints of UNITER and TAGS: their tensor names and ours.


HEAD_WIDTH = 64  # of all published sizes
MASK = 103  # in bert-base-cased

WORDS = "uniter.embeddings.word_embeddings.weight"
KINDS = "uniter.embeddings.token_type_embeddings.weight"  # of a word, and of a region
VEIL = "uniter.img_embeddings.mask_embedding.weight"  # zero, and what stands for a region
PREFIXES = {
    "uniter.embeddings.word_embeddings.": "text.word_embeddings.",
    "uniter.embeddings.position_embeddings.": "text.position_embeddings.",
    "uniter.embeddings.LayerNorm.": "text.norm.",
    "uniter.img_embeddings.img_linear.": "image.fc.",
    "uniter.img_embeddings.img_layer_norm.": "image.fc_norm.",
    "uniter.img_embeddings.pos_linear.": "image.place.",
    "uniter.img_embeddings.pos_layer_norm.": "image.place_norm.",
    "uniter.img_embeddings.LayerNorm.": "image.norm.",
    "uniter.pooler.dense.": "pooler.",
    "rank_output.": "says.rank.",
    "itm_output.": "says.match.",
    "disc_output.": "says.doubt.",
    "feat_regress.net.": "says.regress.enter.",
    "feat_regress.bias": "says.regress.bias",
    "region_classifier.net.3.": "says.classify.out.",
    "region_classifier.net.": "says.classify.enter.",
    **{
        f"{theirs}.predictions.{part}": f"says.{ours}.{own}"
        for theirs, ours in (("cls", "fill"), ("correction_output", "correct"))
        for part, own in (
            ("bias", "bias"),
            ("transform.dense.", "enter.0."),
            ("transform.LayerNorm.", "enter.2."),
        )
    },
}
LAYER = {
    "attention.output.dense.": "leave.",
    "attention.output.LayerNorm.": "norm.",
    "intermediate.dense.": "wide.",
    "output.dense.": "narrow.",
    "output.LayerNorm.": "last_norm.",
}
PROJECTIONS = ("query", "key", "value")
THEIR_LAYER = re.compile(r"uniter\.encoder\.layer\.(\d+)\.(.+)")
OUR_LAYER = re.compile(r"body\.layers\.(\d+)\.(.+)")
BERT = ("embeddings.", "img_embeddings.", "encoder.", "pooler.")  # what may stand behind "bert."
NEEDED = ("text.word_embeddings.weight", "image.fc.weight", "body.layers.0.enter.weight")


def uniter_name(theirs: str) -> str | None:
    """Return our name of one of their tensors; None for one that is unused or joined with others.

    Query, key and value projections of a layer are one tensor here.
    """
    if layer := THEIR_LAYER.fullmatch(theirs):
        ours = longest_prefix(layer[2], LAYER)
        return ours and f"body.layers.{layer[1]}.{ours}"
    return longest_prefix(theirs, PREFIXES)


def convert_uniter(state: Mapping[str, Tensor]) -> State:
    """Rename tensors of UNITER and TAGS to those of `UNITER`; unused ones are left out.

    Names with "gamma" and "beta", and with "bert." before them or in place of "uniter.", are known.
    """
    source = {_plain(name): value for name, value in state.items()}
    new = {ours: value for name, value in source.items() if (ours := uniter_name(name))}
    for name in source:
        if (layer := THEIR_LAYER.fullmatch(name)) and ".self.query." in name:
            kind = name.rpartition(".")[2]
            new[f"body.layers.{layer[1]}.enter.{kind}"] = joined_projections(source, name)
    if KINDS in source:
        new["text.kind"], new["image.kind"] = source[KINDS][:2]
    if VEIL in source:
        new["image.veil"] = source[VEIL][1]
    if missing := [name for name in NEEDED if name not in new]:
        raise ValueError(f"this UNITER checkpoint has no {missing[0]!r}; is it another system's?")
    return new


def joined_projections(source: Mapping[str, Tensor], query: str) -> Tensor:
    """The query, key and value projections of a layer as one tensor, by the name of the query."""
    parts = [source.get(query.replace("query", part)) for part in PROJECTIONS]
    return torch.cat([part for part in parts if part is not None])


def uniter_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of UNITER or TAGS, with the heads that are in it and a rank.

    A rank that was not fine-tuned is the yes of the pre-trained match; other tensors that are
    missing begin as fresh ones. Sizes are read off the tensors, "heads" (64 numbers to each) and
    "mask" (103) may be among the options.

    Raises:
        ValueError: it is not a UNITER checkpoint.
    """
    state = convert_uniter(checkpoint.state)
    vocabulary, width = state["text.word_embeddings.weight"].shape
    options = checkpoint.options
    spec = config(
        UNITER,
        layers=len({layer[1] for name in state if (layer := OUR_LAYER.fullmatch(name))}),
        width=width,
        heads=option_value(options, "heads", max(1, width // HEAD_WIDTH)),
        inner=_rows(state, "body.layers.0.wide.weight", 4 * width),
        vocabulary=vocabulary,
        positions=_rows(state, "text.position_embeddings.weight", 512),
        features=state["image.fc.weight"].shape[1],
        classes=_rows(state, "says.classify.out.weight", 1601),
        mask=option_value(options, "mask", MASK if vocabulary > MASK else 0),
        outputs=head_names(state),
    )
    state = with_derived_heads(state)
    own = build_seeded(spec).state_dict()
    return ConvertedModel(spec, {name: state.get(name, value) for name, value in own.items()})


def _rows(state: State, name: str, otherwise: int) -> int:
    return len(state[name]) if name in state else otherwise


def _plain(name: str) -> str:
    name = name.replace("gamma", "weight").replace("beta", "bias").removeprefix("module.")
    suffix = name.removeprefix("bert.")
    return f"uniter.{suffix}" if suffix != name and suffix.startswith(BERT) else suffix
