"""ERNIE-ViL: a stream of words and one of regions that attend to each other (Yu et al., AAAI 2021).

The retrieval model alone: its pre-training on scene graphs was never released.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from counterfoil.core.config import Config, config
from counterfoil.core.console import warn
from counterfoil.core.types import Embeddings, ModalityBatch, Pairs
from counterfoil.models.checkpoints import (
    Checkpoint,
    ConvertedModel,
    State,
    longest_prefix,
    option_value,
)
from counterfoil.models.layers.joint_encoder import (
    SPREAD,
    PairModel,
    Score,
    build_seeded,
    initialize_weights,
    tokens_at_once,
)
from counterfoil.models.layers.pooling import (
    ImageTower,
    check_features,
    check_heads,
    check_positive,
    full_precision,
    zero_padded,
)
from counterfoil.papers.models.lightningdot import check_rows
from counterfoil.papers.models.uniter import HEAD_WIDTH, MASK, WordPieceEmbedding

EPSILON = 1e-5  # of Paddle's layer norms
PLACE = 5  # x1, y1, x2, y2 and area, as fractions of the picture


@final
class GlobalAndRegions(ImageTower):
    """ERNIE-ViL's embedding of an image: norm(features + place), with dropout, of all and of each.

    First stands the whole picture: the mean of its regions' features, in a box of all of it.
    """

    def __init__(self, *, features: int, width: int, dropout: float) -> None:
        super().__init__()
        check_positive(features=features, width=width)
        self.width, self.features = width, features
        self.fc, self.place = nn.Linear(features, width), nn.Linear(PLACE, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, items: ModalityBatch) -> Embeddings:
        """Embed N images of R regions with boxes as (N, 1 + R, D)."""
        values, place, mask = self.rows(items)
        embedded = self.norm(self.fc(values) + self.place(place))
        return Embeddings(self.dropout(embedded), mask)

    def rows(self, items: ModalityBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return features (N, 1 + R, F), places (N, 1 + R, 5) and mask of the whole and regions."""
        check_features(items, self.features)
        if items.boxes is None:
            raise ValueError(
                "this model reads where regions are, and these image features have no boxes; give "
                "features with boxes, or choose a model that does without"
            )
        values = zero_padded(items.values, items.mask).to(self.fc.weight.dtype)
        boxes = zero_padded(items.boxes[..., :4], items.mask).to(values.dtype)
        count = items.mask.sum(1).clamp(min=1).view(-1, 1, 1)
        area = (boxes[..., 2:] - boxes[..., :2]).prod(2, keepdim=True)
        whole = boxes.new_tensor([0.0, 0.0, 1.0, 1.0, 1.0]).expand(len(items), 1, PLACE)
        return (
            torch.cat([values.sum(1, keepdim=True) / count, values], 1),
            torch.cat([whole, torch.cat([boxes, area], 2)], 1),
            torch.cat([items.mask.new_ones(len(items), 1), items.mask], 1),
        )


@final
class StreamLayer(nn.Module):
    """BERT's layer whose keys and values may come from another stream, of another width."""

    def __init__(
        self, *, width: int, other: int, shared: int, heads: int, inner: int, dropout: float
    ) -> None:
        """Initialise the module.

        Args:
            width: of the stream.
            other: of the stream that it attends to; its own width where that is itself.
            shared: width of queries, keys and values together.
            heads: of the attention.
            inner: width of the perceptron.
            dropout: share dropped in training.

        Raises:
            ValueError: a size that is not possible.
        """
        super().__init__()
        check_positive(width=width, other=other, inner=inner)
        check_heads(heads, shared)
        self.heads, self.share = heads, dropout
        self.query, self.out = nn.Linear(width, shared), nn.Linear(shared, width)
        self.key, self.value = nn.Linear(other, shared), nn.Linear(other, shared)
        self.norm, self.last_norm = (nn.LayerNorm(width, eps=EPSILON) for _ in range(2))
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        """Return the states (P, L, D); `mask` (P, L') is True where the other stream is real."""
        attended = scaled_dot_product_attention(
            self._heads(self.query(tokens)),
            self._heads(self.key(other)),
            self._heads(self.value(other)),
            attn_mask=mask[:, None, None],
            dropout_p=self.share if self.training else 0.0,
        )
        attended = self.out(attended.transpose(1, 2).flatten(2))
        states = self.norm(tokens + self.dropout(attended))
        change = self.narrow(gelu(self.wide(states)))
        out: Tensor = self.last_norm(states + self.dropout(change))
        return out

    def _heads(self, tokens: Tensor) -> Tensor:
        """Return (P, heads, L, D / heads) for the attention."""
        return tokens.view(*tokens.shape[:2], self.heads, -1).transpose(1, 2)


@final
class CoLayer(nn.Module):
    """Both streams attend to each other at once, from what enters the layer."""

    def __init__(self, *, text: StreamLayer, image: StreamLayer) -> None:
        super().__init__()
        self.text, self.image = text, image

    def forward(self, texts: Embeddings, images: Embeddings) -> tuple[Embeddings, Embeddings]:
        """Return both streams of P pairs."""
        text = self.text(texts.tokens, images.tokens, images.mask)
        image = self.image(images.tokens, texts.tokens, texts.mask)
        return Embeddings(text, texts.mask), Embeddings(image, images.mask)


@final
class ErnieViL(PairModel):
    """Two streams with co-attention; the score is read off both first tokens.

    Layers before the first co-attention read one stream alone, so each item passes them once, not
    once a pair. ERNIE-ViL (https://github.com/PaddlePaddle/ERNIE, branch repro).

    Departs from the authors' code in: hidden keys are left out of the attention, not lowered by
    10,000; an item of several pairs of a batch has one dropout mask before the first co-attention.
    """

    def __init__(
        self,
        *,
        meets: tuple[tuple[int, int], ...] = ((6, 0), (7, 1), (8, 2), (9, 3), (10, 4), (11, 5)),
        width: int = 768,
        heads: int = 12,
        inner: int = 3072,
        image_width: int = 1024,
        image_heads: int = 8,
        image_inner: int = 1024,
        shared: int = 1024,
        shared_heads: int = 8,
        vocabulary: int = 30522,
        positions: int = 512,
        features: int = 2048,
        dropout: float = 0.1,
        mask: int | None = None,
        score: Score = "probability",
        spread: float = SPREAD,
    ) -> None:
        """Initialise the model; the default sizes are those of the base model.

        Args:
            meets: before which layer of the text and of the image each co-attention stands, both
                ascending; the last layers come behind the last co-attention. In the large model
                texts have 24 layers, so these are (18, 0) to (23, 5).
            width: of the text stream; 1024 in the large model.
            heads: of its attention; 16 in the large model.
            inner: width of its perceptrons; 4096 in the large model.
            image_width: of the image stream.
            image_heads: of its attention.
            image_inner: width of its perceptrons.
            shared: width of the co-attention.
            shared_heads: of the co-attention.
            vocabulary: number of token ids.
            positions: longest text.
            features: width of a region's features.
            dropout: share dropped in training.
            mask: id of the mask token; where None there is one more embedding for it.
            score: what losses read, see `UNITER`; the authors' loss reads probabilities.
            spread: of fresh weights, see `UNITER`.

        Raises:
            ValueError: sizes that are not possible, or co-attentions out of order.
        """
        super().__init__(score)
        check_meets(meets)
        self.meets = tuple((int(text), int(image)) for text, image in meets)
        self.text = WordPieceEmbedding(
            vocabulary=vocabulary,
            positions=positions,
            width=width,
            dropout=dropout,
            mask=mask,
            epsilon=EPSILON,
        )
        self.image = GlobalAndRegions(features=features, width=image_width, dropout=dropout)
        texts, images = (1 + last for last in self.meets[-1])

        text_layer = partial(StreamLayer, width=width, inner=inner, dropout=dropout)
        image_layer = partial(StreamLayer, width=image_width, inner=image_inner, dropout=dropout)
        self.text_layers = nn.ModuleList(
            text_layer(other=width, shared=width, heads=heads) for _ in range(texts)
        )
        self.image_layers = nn.ModuleList(
            image_layer(other=image_width, shared=image_width, heads=image_heads)
            for _ in range(images)
        )
        self.co_layers = nn.ModuleList(
            CoLayer(
                text=text_layer(other=image_width, shared=shared, heads=shared_heads),
                image=image_layer(other=width, shared=shared, heads=shared_heads),
            )
            for _ in self.meets
        )
        self.text_pool, self.image_pool = nn.Linear(width, shared), nn.Linear(image_width, shared)
        self.match = nn.Linear(shared, 1)
        initialize_weights(self, spread)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images up to the first co-attention."""
        return self._alone(self.image(images), self.image_layers[: self.meets[0][1]])

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts up to the first co-attention."""
        return self._alone(self.text(texts), self.text_layers[: self.meets[0][0]])

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """Return the (P,) logits of listed pairs of rows, a bounded number of tokens at a time."""
        pairs = pairs.to(texts.tokens.device)
        tokens = texts.mask.shape[1] + images.mask.shape[1]
        size = max(1, tokens_at_once(texts.tokens.device) // max(1, tokens))
        parts = [texts.tokens.new_zeros(0)]
        for start in range(0, len(pairs.image), size):
            rows = slice(start, start + size)
            states = self.read_pairs(images.rows(pairs.image[rows]), texts.rows(pairs.text[rows]))
            parts.append(self.logits(*self.pool(*states)))
        return torch.cat(parts)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) logits, a bounded number of tokens at a time."""
        image, text = torch.meshgrid(
            torch.arange(len(images)), torch.arange(len(texts)), indexing="ij"
        )
        scores = self.score_indices(images, texts, Pairs(image, text).flatten())
        return scores.view(len(images), len(texts))

    def read_pairs(self, images: Embeddings, texts: Embeddings) -> tuple[Embeddings, Embeddings]:
        """Return the last states of both streams of P pairs, texts first."""
        texts, images = (
            Embeddings(zero_padded(side.tokens, side.mask), side.mask) for side in (texts, images)
        )
        ends = [*self.meets[1:], (self.meets[-1][0] + 1, self.meets[-1][1] + 1)]
        for layer, (text, image), (text_end, image_end) in zip(
            self.co_layers, self.meets, ends, strict=True
        ):
            texts, images = layer(texts, images)
            texts = self._alone(texts, self.text_layers[text:text_end])
            images = self._alone(images, self.image_layers[image:image_end])
        return texts, images

    def pool(self, texts: Embeddings, images: Embeddings) -> tuple[Tensor, Tensor]:
        """Return the pooled first states of both streams, each (P, C)."""
        text, image = self.text_pool(texts.tokens[:, 0]), self.image_pool(images.tokens[:, 0])
        return text.relu(), image.relu()

    def logits(self, text: Tensor, image: Tensor) -> Tensor:
        """Return the (P,) logits of pooled states, never in half precision."""
        with torch.autocast(text.device.type, enabled=False):
            product = full_precision(text) * full_precision(image)
            found: Tensor = self.match(product).squeeze(1)
            return found

    @staticmethod
    def _alone(stream: Embeddings, layers: nn.ModuleList) -> Embeddings:
        """Pass a stream through layers of its own."""
        tokens = stream.tokens
        for layer in layers:
            tokens = layer(tokens, tokens, stream.mask)
        return Embeddings(tokens, stream.mask)


def check_meets(meets: tuple[tuple[int, int], ...]) -> None:
    """Refuse co-attentions that are none or out of order."""
    ordered = all(a <= c and b <= d for (a, b), (c, d) in pairwise(meets))
    if not meets or min(min(meets)) < 0 or not ordered:
        raise ValueError(
            f"meets={meets!r} is no order of co-attentions; give pairs of a layer of the text and "
            "one of the image, both ascending from 0"
        )


# The authors' checkpoints: their names of tensors and ours, and weights (in, out).


PREFIXES = {
    "word_embedding": "text.word_embeddings.weight",
    "pos_embedding": "text.position_embeddings.weight",
    "pre_encoder_layer_norm_": "text.norm.",
    "image_emb.": "image.fc.",
    "image_loc.": "image.place.",
    "vl_pre_encoder_layer_norm_": "image.norm.",
    "pooled_fc_text.": "text_pool.",
    "pooled_fc_image.": "image_pool.",
    "match_fc.": "match.",
}
KINDS = "sent_embedding"  # its first row is read
TABLES = {"word_embedding", "pos_embedding", KINDS}
MATCH = {"match.weight": "match_fc.w_0", "match.bias": "match_fc.b_0"}  # new in fine-tuning
THEIR_LAYER = re.compile(r"encoder_(layer|vlayer|colayer)_(\d+)_(vl_)?(.+)")
STREAMS = {"layer": "text_layers", "vlayer": "image_layers", "colayer": "co_layers"}
LAYER = {
    "multi_head_att_query_fc.": "query.",
    "multi_head_att_key_fc.": "key.",
    "multi_head_att_value_fc.": "value.",
    "multi_head_att_output_fc.": "out.",
    "post_att_layer_norm_": "norm.",
    "ffn_fc_0.": "wide.",
    "ffn_fc_1.": "narrow.",
    "post_ffn_layer_norm_": "last_norm.",
}
KINDS_OF_TENSOR = {"w_0": "weight", "b_0": "bias", "scale": "weight", "bias": "bias"}
NEEDED = (
    "text.word_embeddings.weight",
    "text.position_embeddings.weight",
    "text.kind",
    "image.fc.weight",
    "text_layers.0.query.weight",
    "image_layers.0.query.weight",
    "text_layers.0.wide.weight",
    "image_layers.0.wide.weight",
    "co_layers.0.text.query.weight",
    "co_layers.0.image.query.weight",
    "text_pool.weight",
    "image_pool.weight",
)


def ernievil_name(theirs: str) -> str | None:
    """Return our name of one of their tensors; None for one that is unused."""
    before, names, rest = "", PREFIXES, theirs
    if layer := THEIR_LAYER.fullmatch(theirs):
        side = "" if layer[1] != "colayer" else "image." if layer[3] else "text."
        before, names, rest = f"{STREAMS[layer[1]]}.{layer[2]}.{side}", LAYER, layer[4]
    ours = longest_prefix(rest, names)
    if ours is None or ours in PREFIXES.values():
        return ours
    stem, _, kind = ours.rpartition(".")
    return f"{before}{stem}.{KINDS_OF_TENSOR[kind]}" if kind in KINDS_OF_TENSOR else None


def is_ernievil(theirs: str) -> bool:
    """True for a tensor of the model, as against one of its pre-training or of an optimiser."""
    return theirs == KINDS or ernievil_name(theirs) is not None


def convert_ernievil(state: Mapping[str, Tensor]) -> State:
    """Rename the authors' tensors to those of `ErnieViL`; unused ones are left out.

    Raises:
        ValueError: a tensor is missing or has another number of dimensions.
    """
    new = {
        ours: _transposed(value, theirs) if theirs.endswith(".w_0") else value
        for theirs, value in state.items()
        if (ours := ernievil_name(theirs))
    }
    for name in TABLES & state.keys():
        check_rows(state[name], name, 1)
    if KINDS in state:
        new["text.kind"] = state[KINDS][0]
    if missing := [name for name in NEEDED if name not in new]:
        raise ValueError(
            f"this ERNIE-ViL checkpoint has no {missing[0]!r}; is it another system's?"
        )
    return new


def _transposed(value: Tensor, name: str) -> Tensor:
    if value.dim() != 2:
        raise ValueError(
            f"{name!r} has the shape {tuple(value.shape)}, and a matrix is needed; give the folder "
            "of parameters as it was downloaded"
        )
    return value.T.contiguous()


def ernievil_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert the parameters of ERNIE-ViL.

    A checkpoint that is only pre-trained has no matching layer: it gets a fresh one, and a warning.

    Widths and numbers of layers are read off the tensors. What tensors do not show is in the
    options, the JSON file that comes with the parameters: "num_attention_heads" (64 numbers to
    each), "v_num_attention_heads" (8), "co_num_attention_heads" (8), "t_biattention_id" and
    "v_biattention_id" (the last layers of both).

    Raises:
        ValueError: it is not a whole ERNIE-ViL checkpoint, an option makes it another model, or its
            options and tensors contradict.
    """
    state, options = convert_ernievil(checkpoint.state), checkpoint.options
    activation = options.get("hidden_act")
    if activation is not None and not str(activation).startswith("gelu"):
        raise ValueError(
            f"these parameters were trained with hidden_act={activation!r}, and ErnieViL has gelu "
            "alone; with that it would be another model, so it is not converted"
        )
    counts = {part: _count(state, part) for part in STREAMS.values()}
    meets = tuple(
        zip(
            *(
                _meeting(options.get(name), counts[part], counts["co_layers"], name)
                for name, part in (
                    ("t_biattention_id", "text_layers"),
                    ("v_biattention_id", "image_layers"),
                )
            ),
            strict=True,
        )
    )
    words, width = state["text.word_embeddings.weight"].shape
    image_width, features = state["image.fc.weight"].shape
    shared = len(state["text_pool.weight"])
    spec = config(
        ErnieViL,
        meets=meets,
        width=width,
        heads=_heads(options, "num_attention_heads", max(1, width // HEAD_WIDTH), width),
        inner=len(state["text_layers.0.wide.weight"]),
        image_width=image_width,
        image_heads=_heads(options, "v_num_attention_heads", 8, image_width),
        image_inner=len(state["image_layers.0.wide.weight"]),
        shared=shared,
        shared_heads=_heads(options, "co_num_attention_heads", 8, shared),
        vocabulary=words,
        positions=len(state["text.position_embeddings.weight"]),
        features=features,
        mask=option_value(options, "mask", MASK if words > MASK else 0),
    )
    return ConvertedModel(spec, _with_match(state, spec))


def _with_match(state: State, spec: Config[ErnieViL]) -> State:
    """Return the weights with a fresh match where there is none."""
    missing = [name for name in MATCH if name not in state]
    if not missing:
        return state
    if len(missing) == 1:
        raise ValueError(
            f"this ERNIE-ViL checkpoint has no {MATCH[missing[0]]!r}; give the whole folder"
        )
    warn(
        "this ERNIE-ViL checkpoint has no 'match_fc', so it is only pre-trained: its match is new, "
        "and its scores mean nothing until it is fine-tuned"
    )
    fresh = build_seeded(spec).state_dict()
    return state | {name: fresh[name] for name in missing}


def _heads(options: Mapping[str, Any], name: str, default: int, width: int) -> int:
    """Return a number of attention heads that divides the width."""
    heads = option_value(options, name, default)
    if options.get(name) is None and width % heads:
        raise ValueError(
            f"no options say how many attention heads these parameters have, and the usual {heads} "
            f"do not divide a width of {width}; put the JSON file with {name!r} that belongs to "
            "them beside them"
        )
    if heads < 1 or width % heads:
        raise ValueError(
            f"{name}={heads} does not divide a width of {width}; give the JSON file that belongs "
            "to these parameters"
        )
    return heads


def _count(state: State, part: str) -> int:
    return len({name.split(".")[1] for name in state if name.startswith(f"{part}.")})


def _meeting(given: object, layers: int, count: int, name: str) -> list[int]:
    """Return the layers of one stream that stand behind each co-attention."""
    found = [*range(layers - count, layers)] if given is None else given
    if not isinstance(found, list | tuple) or any(type(n) is not int for n in found):
        raise ValueError(
            f"{name}={given!r} is no list of whole numbers; give the JSON file that belongs to "
            "these parameters"
        )
    if len(found) != count or found[-1] + 1 != layers:
        raise ValueError(
            f"{name}={found} does not fit the {count} co-attentions and {layers} layers of these "
            "parameters; give the JSON file that belongs to them"
        )
    return [*found]
