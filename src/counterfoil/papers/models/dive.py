"""DivE: a set of diverse vectors per image and per text (Kim et al., CVPR 2023)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize

from counterfoil.core.config import config, lazy
from counterfoil.core.types import (
    INFERENCE,
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
)
from counterfoil.models.base import RetrievalModel, anchors_of
from counterfoil.models.checkpoints import (
    BERT,
    POSITIONS,
    Checkpoint,
    ConvertedModel,
    State,
    TensorNames,
    given_options,
    gru_config,
    option_value,
    refuse_options,
)
from counterfoil.models.layers.pooling import (
    POOLS,
    ImageTower,
    Pool,
    TextTower,
    check_choice,
    check_positive,
    full_mask,
    full_precision,
    pool_vectors,
    single_vector,
    zero_padded,
)
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions, run_recurrent

# Towers that return local vectors (parts) and a global one (whole).


@final
class PartVectors(NamedTuple):
    """Outputs of a `PartsTower` for N items."""

    parts: Embeddings  # (N, L, F) vectors of the parts; arbitrary at padding
    whole: Tensor  # (N, D) vector of the whole item


class PartsTower(nn.Module, ABC):
    """An encoder of items as vectors of their parts and one vector of the whole."""

    width: int
    part_width: int

    @abstractmethod
    def forward(self, items: ModalityBatch) -> PartVectors:
        """Encode N items; vectors are not normalised."""


@final
class PooledParts(PartsTower):
    """A tower whose vectors are the parts, and pooled the whole."""

    def __init__(
        self, *, tower: ImageTower | TextTower, pool: Pool = "max", apart: bool = False
    ) -> None:
        """Initialise the module.

        Args:
            tower: encoder of the items.
            pool: pooling of its vectors: "max" of regions, and "max" or "first" of BERT's tokens in
                the authors' code.
            apart: use the first half of each vector for the part, and pool the other half, as if
                the tower ended in two parallel layers.

        Raises:
            ValueError: an option that is not known, or a width that cannot be halved.
        """
        super().__init__()
        check_choice("pool", pool, POOLS)
        if apart and tower.width % 2:
            raise ValueError(
                f"a tower of width {tower.width} cannot be halved; with apart=True give it twice "
                "the width of the joint space"
            )
        self.tower = tower
        self.kind: Pool = pool
        self.apart = apart
        self.width = self.part_width = tower.width // (2 if apart else 1)

    def forward(self, items: ModalityBatch) -> PartVectors:
        """Encode items as parts and a whole."""
        bag: Embeddings = self.tower(items)
        parts = Embeddings(bag.tokens[..., : self.part_width], bag.mask)
        pooled = Embeddings(bag.tokens[..., -self.width :], bag.mask)
        return PartVectors(parts, pool_vectors(self.kind, pooled))


@final
class WordsAndStates(PartsTower):
    """Word embeddings are the parts, the mean of a network's last states the whole (DivE)."""

    def __init__(self, *, gru: GRU, dropout: float = 0.1) -> None:
        """Initialise the module.

        Args:
            gru: bidirectional network; its `dropout` applies to the embeddings.
            dropout: dropout rate of the whole.

        Raises:
            ValueError: the network has one direction, or several layers.
        """
        super().__init__()
        if not gru.rnn.bidirectional or gru.rnn.num_layers > 1:
            raise ValueError(
                "the states at both ends of a text come from a single layer that reads in both "
                "directions; use GRU(layers=1, bidirectional=True)"
            )
        self.gru, self.dropout = gru, nn.Dropout(dropout)
        self.width, self.part_width = gru.width, gru.embed.embedding_dim

    def forward(self, items: ModalityBatch) -> PartVectors:
        """Encode texts; the mask must be True from the first word to the last."""
        words = self.gru.embedded(items)
        states = run_recurrent(self.gru.rnn, words.tokens, words.mask)
        onwards = pool_vectors("last", Embeddings(states[..., : self.width], words.mask))
        return PartVectors(words, self.dropout((onwards + states[:, 0, self.width :]) / 2))


# Similarity of two sets of unit vectors (section 3.3).
#
# Axes: K elements to an image, M to a text. Similarities of elements are (K, I, M, T) for all pairs
# of two pools and (K, 1, M, P) for aligned ones, so that reductions over the elements run along
# rows of memory. Masks are broadcast: (K, I, 1, 1) and (1, 1, M, T), or (K, 1, 1, P) and
# (1, 1, M, P); None where all elements are real.


SetSimilarity = Literal[
    "smooth_chamfer", "smooth_chamfer_euclidean", "chamfer", "max", "mean_sigmoid"
]
CELLS_AT_ONCE = 1 << 24


def set_score_matrix(
    kind: SetSimilarity, images: Embeddings, texts: Embeddings, alpha: float
) -> Tensor:
    """Return (I, T) similarities of all sets, from one product of all their elements.

    Args:
        kind: "smooth_chamfer" is the mean, over the elements of both sets, of the smooth maximum
            logsumexp(alpha s) / alpha of the similarities s with the other set (eq. 7);
            "smooth_chamfer_euclidean" the same with s a negated distance; "chamfer" with the
            maximum itself; "max" is the maximum over all pairs; "mean_sigmoid" the mean of
            1 / (1 + e^-s).
        images: sets of the images.
        texts: sets of the texts.
        alpha: sharpness of the smooth maximum.
    """
    cells = images.tokens.shape[1] * texts.tokens.shape[1] * len(texts)
    step = max(1, CELLS_AT_ONCE // max(1, cells))
    right, text = _elements(texts).transpose(0, 1), _where(texts.mask.T[None, None])
    rows = []
    for first in range(0, len(images), step):
        image_part = images.rows(slice(first, first + step))
        left = _elements(image_part).transpose(0, 1)
        near = _near(kind, left.flatten(0, 1), right.flatten(0, 1))
        near = near.view(*left.shape[:2], *right.shape[:2])
        image = _where(image_part.mask.T[:, :, None, None])
        rows.append(_similarity(kind, near, image, text, alpha)[0, :, 0])
    return torch.cat(rows)


def set_score_pairs(
    kind: SetSimilarity, images: Embeddings, texts: Embeddings, alpha: float
) -> Tensor:
    """Return (P,) similarities of P images with P texts, see `set_score_matrix`."""
    near = _near(kind, _elements(images), _elements(texts)).permute(1, 2, 0).unsqueeze(1)
    image, text = _where(images.mask.T[:, None, None]), _where(texts.mask.T[None, None])
    return _similarity(kind, near, image, text, alpha)[0, 0, 0]


def _near(kind: SetSimilarity, left: Tensor, right: Tensor) -> Tensor:
    with torch.autocast(left.device.type, enabled=False):
        if kind == "smooth_chamfer_euclidean":
            return -torch.cdist(left, right)
        return left @ right.mT


def _similarity(
    kind: SetSimilarity, near: Tensor, images: Tensor | None, texts: Tensor | None, alpha: float
) -> Tensor:
    """Return (1, I, 1, T) similarities, without their elements."""
    if kind == "mean_sigmoid":
        return _mean(_mean(near.sigmoid(), texts, 2), images, 0)
    if kind == "max":
        return _real(_real(near, texts).amax(2, keepdim=True), images).amax(0, keepdim=True)
    best: Callable[..., Tensor] = torch.amax
    scale = 1.0
    if kind != "chamfer":
        best, scale, near = torch.logsumexp, alpha, near * alpha
    by_image, by_text = best(_real(near, texts), 2, True), best(_real(near, images), 0, True)
    return (_mean(by_image, images, 0) + _mean(by_text, texts, 2)) / (2 * scale)


def _mean(values: Tensor, real: Tensor | None, axis: int) -> Tensor:
    if real is None:
        return values.mean(axis, keepdim=True)
    return values.masked_fill(~real, 0).sum(axis, keepdim=True) / real.sum(axis, keepdim=True)


def _real(values: Tensor, real: Tensor | None) -> Tensor:
    return values if real is None else values.masked_fill(~real, -torch.inf)


def _elements(bag: Embeddings) -> Tensor:
    return full_precision(zero_padded(bag.tokens, bag.mask))


def _where(mask: Tensor) -> Tensor | None:
    return None if bool(mask.all()) else mask


# Slot attention: slots compete for the parts of an item (section 3.2).


Positions = Literal["none", "sine"]


@final
class SlotAttention(nn.Module):
    """Slot attention: learned vectors that attend to an item's parts in several rounds.

    All rounds share their weights. In each, a softmax over the slots divides each part among them;
    each slot adds the weighted mean of the parts, then the output of an MLP.

    Departs from the authors' code in: padding has no weight (theirs gives 1 / K of it to each of K
    slots), and positions are relative to the item's own length (theirs to the longest of the
    batch); `released_padding` does both as in their code.
    """

    def __init__(
        self,
        *,
        width: int,
        part_width: int,
        slots: int = 4,
        heads: int = 4,
        head_width: int = 512,
        rounds: int = 4,
        inner: int = 4,
        dropout: float = 0.1,
        positions: Positions = "none",
        released_padding: bool = False,
    ) -> None:
        """Initialise the module.

        Args:
            width: width of a slot.
            part_width: width of the parts.
            slots: number of slots.
            heads: number of attention heads.
            head_width: width of each head.
            rounds: number of attention rounds.
            inner: hidden width of the MLP, as a multiple of `width`.
            dropout: dropout rate after the attention and inside the MLP.
            positions: "sine" adds position encodings to the keys of the parts.
            released_padding: treat padding as the authors' code does, see above.

        Raises:
            ValueError: a size below 1, or an unknown option.
        """
        super().__init__()
        check_positive(slots=slots, heads=heads, head_width=head_width, rounds=rounds, inner=inner)
        check_choice("positions", positions, get_args(Positions))
        self.heads, self.rounds, self.positions = heads, rounds, positions
        self.released_padding = released_padding
        self.scale = head_width**-0.5
        self.latents = nn.Parameter(torch.randn(slots, width))
        self.slot_norm, self.part_norm = nn.LayerNorm(width), nn.LayerNorm(part_width)
        self.query = nn.Linear(width, heads * head_width, bias=False)
        self.key = nn.Linear(part_width, heads * head_width, bias=False)
        self.value = nn.Linear(part_width, heads * head_width, bias=False)
        self.out = nn.Linear(heads * head_width, width)
        self.inner_norm = nn.LayerNorm(width)
        self.enter, self.leave = nn.Linear(width, inner * width), nn.Linear(inner * width, width)
        self.last_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, parts: Embeddings) -> Tensor:
        """Return the slots (N, K, width) of N items; keys and values are computed once."""
        tokens = parts.tokens if self.released_padding else zero_padded(parts.tokens, parts.mask)
        normal = self.part_norm(tokens)
        coded = normal + self._codes(parts.mask, normal) if self.positions == "sine" else normal
        key, value = self._split(self.key(coded)), self._split(self.value(normal))
        slots = self.latents.expand(len(parts), -1, -1)
        for _ in range(self.rounds):
            attended = self._attend(self.slot_norm(slots), key, value, parts.mask)
            slots = slots + self.dropout(self.out(attended))
            entered = gelu(self.enter(self.inner_norm(slots)))
            slots = slots + self.leave(self.dropout(entered))
        last: Tensor = self.last_norm(slots)
        return last

    def _attend(self, slots: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Return (N, K, heads * head_width) weighted means of the parts."""
        logits = self._split(self.query(slots)) @ key.mT * self.scale
        padding = ~mask[:, None, None]
        if self.released_padding:
            share = logits.masked_fill(padding, torch.finfo(logits.dtype).min).softmax(2)
        else:
            share = logits.softmax(2).masked_fill(padding, 0)
        share = share / (share.sum(3, keepdim=True) + 1e-7)
        attended: Tensor = (share @ value).transpose(1, 2).flatten(2)
        return attended

    def _split(self, vectors: Tensor) -> Tensor:
        """(N, L, heads * head_width) as (N, heads, L, head_width)."""
        return vectors.view(*vectors.shape[:2], self.heads, -1).transpose(1, 2)

    def _codes(self, mask: Tensor, like: Tensor) -> Tensor:
        length = mask.sum(1, keepdim=True)
        if self.released_padding:
            length = torch.full_like(length, mask.shape[1])
        return slot_codes(length, mask.shape[1], like)


def slot_codes(length: Tensor, places: int, like: Tensor) -> Tensor:
    """Return (N, places, F) sines and cosines of each position as a share of the circle."""
    width = like.shape[-1]
    place = torch.arange(1, places + 1, device=like.device, dtype=torch.float)
    angle = place / (length + 1e-6) * (2 * math.pi)
    entry = torch.arange(width, device=like.device)
    slower = 10000.0 ** (2 * (entry // 2) / width)
    turn = angle.unsqueeze(2) / slower
    return torch.where(entry % 2 == 0, turn.sin(), turn.cos()).to(like.dtype)


# Auxiliary losses: diversity within a set, discrepancy between modalities.


def set_discrepancy(
    images: Tensor, texts: Tensor, *, gamma: float | None = 0.5, total: bool = False
) -> Tensor:
    """Return the maximum mean discrepancy of (N, D) and (M, D), by the kernel e^(-gamma ||x - y||).

    The distance in the kernel is not squared; pairs of a vector with itself count.

    Args:
        images: one sample.
        texts: the other.
        gamma: sharpness of the kernel; 1 / D if None.
        total: sum over pairs instead of taking means.
    """
    images, texts = full_precision(images), full_precision(texts)
    width = 1 / images.shape[1] if gamma is None else gamma

    def alike(left: Tensor, right: Tensor) -> Tensor:
        kernel = torch.exp(-width * torch.cdist(left, right))
        return kernel.sum() if total else kernel.mean()

    return alike(images, images) - 2 * alike(images, texts) + alike(texts, texts)


def set_crowding(sets: Tensor, *, sharpness: float = 2.0) -> Tensor:
    """Return the (N,) diversity loss: means of e^(-sharpness ||x - y||^2) over pairs of a set."""
    first, second = torch.triu_indices(sets.shape[1], sets.shape[1], 1, device=sets.device)
    sets = full_precision(sets)
    square = (sets[:, first] - sets[:, second]).square().sum(2)
    return torch.exp(-sharpness * square).sum(1) / max(1, len(first))


APART = "apart"  # the view that carries the loss of each item's own set
Diversity = Literal["slots", "elements"]


@final
class DivE(RetrievalModel):
    """Each item is a set of vectors: slots that attend to its parts, each plus the whole.

    In training the sets of the batch's anchors have further losses, the same with any number of
    processes: "mmd" pulls the elements of images and texts together, "diversity" pushes the slots
    of an item apart.

    Departs from the authors' code in: two losses of weight 0 are not there; the image tower is run
    once, not twice with other dropout; padding has no weight in the slots and positions are
    relative to an item's own length (`released_padding` does as in their code);
    "smooth_chamfer_euclidean" is negated, so that higher is better.
    """

    def __init__(
        self,
        *,
        image: PartsTower,
        text: PartsTower,
        slots: int = 4,
        heads: int = 4,
        head_width: int = 512,
        rounds: int = 4,
        inner: int = 4,
        dropout: float = 0.1,
        similarity: SetSimilarity = "smooth_chamfer",
        alpha: float = 16.0,
        mmd_weight: float = 0.01,
        diversity_weight: float = 0.01,
        diversity_of: Diversity = "slots",
        released_padding: bool = False,
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            slots: vectors per set.
            heads: see `SlotAttention`.
            head_width: see `SlotAttention`.
            rounds: see `SlotAttention`.
            inner: see `SlotAttention`; 4 in the authors' script, 2 in their code's default.
            dropout: see `SlotAttention`.
            similarity: of two sets, see `set_score_matrix`.
            alpha: see `set_score_matrix`.
            mmd_weight: of `set_discrepancy` between all elements of images and of texts.
            diversity_weight: of `set_crowding` within an item's set, images and texts added.
            diversity_of: the "slots" before the whole is added, or the "elements" after.
            released_padding: see `SlotAttention`.

        Raises:
            ValueError: an option that is not known, or towers of different widths.
        """
        super().__init__()
        check_choice("similarity", similarity, get_args(SetSimilarity))
        check_choice("diversity_of", diversity_of, get_args(Diversity))
        if image.width != text.width:
            raise ValueError(
                f"the image tower gives {image.width} numbers for a whole and the text tower "
                f"{text.width}; give both the same width"
            )
        self.image, self.text = image, text
        several = partial(
            SlotAttention,
            width=image.width,
            slots=slots,
            heads=heads,
            head_width=head_width,
            rounds=rounds,
            inner=inner,
            dropout=dropout,
            released_padding=released_padding,
        )
        self.image_slots = several(part_width=image.part_width)
        self.text_slots = several(part_width=text.part_width, positions="sine")
        self.image_norm, self.text_norm = nn.LayerNorm(image.width), nn.LayerNorm(text.width)
        self.similarity, self.alpha = similarity, alpha
        self.mmd_weight, self.diversity_weight = mmd_weight, diversity_weight
        self.diversity_of = diversity_of
        self.uses_batch_context = bool(mmd_weight or diversity_weight)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as K unit vectors each."""
        return self.images(images)[0]

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as K unit vectors each."""
        return self.texts(texts)[0]

    @property
    def score_name(self) -> str:
        return f"{self.similarity.replace('_', ' ')} of sets of vectors"

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return set_score_pairs(self.similarity, images, texts, self.alpha)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return set_score_matrix(self.similarity, images, texts, self.alpha)

    def forward(self, batch: Batch) -> EncodedViews:
        """Encode a training batch, with the diversity loss of each item's own set."""
        images, image_slots = self.images(batch.images)
        texts, text_slots = self.texts(batch.texts)
        views = {INFERENCE: EncodedBatch(images, texts)}
        if self.diversity_weight:
            views[APART] = EncodedBatch(
                self._crowding(images, image_slots), self._crowding(texts, text_slots)
            )
        return EncodedViews(views)

    def batch_forward(
        self, batch: Batch, views: EncodedViews, wanted: frozenset[str]
    ) -> EncodedViews:
        """Add the losses of the sets of all anchors."""
        losses: dict[str, Tensor] = {}
        if self.mmd_weight:
            sets = anchors_of(batch, views.inference)
            elements = (side.tokens.flatten(0, 1) for side in (sets.images, sets.texts))
            losses["mmd"] = self.mmd_weight * set_discrepancy(*elements)
        if APART in views.views:
            own = anchors_of(batch, views.views[APART])
            crowding = own.images.tokens.mean() + own.texts.tokens.mean()
            losses["diversity"] = self.diversity_weight * crowding
        return EncodedViews({INFERENCE: views.inference}, losses)

    def images(self, images: ModalityBatch) -> tuple[Embeddings, Tensor]:
        """Return the sets of N images, and their slots (N, K, D) before the whole is added."""
        parts, whole = self.image(images)
        slots = self.image_slots(parts)
        return set_elements(self.image_norm(whole), slots), slots

    def texts(self, texts: ModalityBatch) -> tuple[Embeddings, Tensor]:
        """Return the sets of N texts, and their slots (N, K, D) before the whole is added."""
        parts, whole = self.text(texts)
        slots = self.text_slots(parts)
        return set_elements(self.text_norm(whole), slots), slots

    def _crowding(self, sets: Embeddings, slots: Tensor) -> Embeddings:
        """Return `set_crowding` of each item, as a vector of one number."""
        spread = normalize(slots, dim=2) if self.diversity_of == "slots" else sets.tokens
        return single_vector(set_crowding(spread).unsqueeze(1))


def set_elements(whole: Tensor, slots: Tensor) -> Embeddings:
    """Add (N, D) wholes to (N, K, D) slots and scale to length 1."""
    tokens = normalize(whole.unsqueeze(1) + slots, dim=2)
    return Embeddings(tokens, full_mask(tokens))


# The authors' checkpoints: their tensor names and ours.


OPTIONS = {
    "dropout": "dropout",
    "temperature": "alpha",
    "mmd_weight": "mmd_weight",
    "unif_weight": "diversity_weight",
}
SIMILARITIES: dict[str, SetSimilarity] = {  # by their name of a loss
    "smooth_chamfer": "smooth_chamfer",
    "chamfer": "chamfer",
    "max": "max",
    "mp": "mean_sigmoid",
}
IMAGE_POOLS: dict[str, Pool] = {"max": "max", "avg": "mean"}
KNOWN: dict[str, tuple[Any, ...]] = {  # options of which only some values are read
    "arch": ("slot",),
    "loss": tuple(SIMILARITIES),
    "denominator": (2,),
    "temperature_txt_scale": (1,),
    "spm_img_pos_enc_type": ("none",),
    "spm_txt_pos_enc_type": ("sine",),
    "spm_activation": ("gelu",),
    "spm_residual_activation": ("none",),
    "img_res_pool": tuple(IMAGE_POOLS),
    "img_res_first_pool": (False,),
}
HEADS = 4  # of the attention, in the authors' code a constant
LAYERS = ".agg_block.layers."
LAYER = {
    "0.fn.to_q": "query",
    "0.fn.to_k": "key",
    "0.fn.to_v": "value",
    "0.fn.to_out.0": "out",
    "0.norm": "slot_norm",
    "0.norm_context": "part_norm",
    "2.fn.net.0": "enter",
    "2.fn.net.3": "leave",
    "2.norm": "inner_norm",
}
BLOCK = {
    "residual_norm.": "_norm.",
    "agg_block.latents": "_slots.latents",
    "agg_block.last_layer.0.": "_slots.last_norm.",
    **{f"agg_block.layers.0.{theirs}.": f"_slots.{ours}." for theirs, ours in LAYER.items()},
}
NAMES = TensorNames(
    system="a DivE",
    prefixes={
        "img_enc.fc.": "image.tower.fc.",
        "img_enc.mlp.fc1.": "image.tower.enter.",
        "img_enc.mlp.fc2.": "image.tower.leave.",
        "img_enc.mlp.bn.bn.": "image.tower.norm.",
        "txt_enc.embed.": "text.gru.embed.",
        "txt_enc.rnn.": "text.gru.rnn.",
        "txt_enc.bert.": "text.tower.body.",
        "txt_enc.linear.": "text.tower.fc.",
        "txt_enc.linear2.": "whole.",
        **{f"img_enc.spm.{theirs}": f"image{ours}" for theirs, ours in BLOCK.items()},
        **{f"txt_enc.spm.{theirs}": f"text{ours}" for theirs, ours in BLOCK.items()},
    },
    unused=(POSITIONS,),
    needed=(
        "image.tower.fc.weight",
        "image.tower.enter.weight",
        "image_slots.latents",
        "text_slots.latents",
    ),
)


def convert_dive(state: Mapping[str, Tensor]) -> State:
    """Rename the authors' tensors to those of `DivE`; of all rounds, those of the first."""
    once: State = {}
    for name, value in state.items():
        first = name.replace(f"{LAYERS}{_round(name)}.", f"{LAYERS}0.")
        if first == name:
            once[name] = value
        elif first not in state or not torch.equal(value, state[first]):
            raise ValueError(
                f"{name!r} differs from that of the first round; only rounds that share their "
                "layers are read"
            )
    new = NAMES.renamed(once)
    for kind in ("weight", "bias"):  # BERT may have two layers: that of the parts, of the whole
        if (whole := new.pop(f"whole.{kind}", None)) is not None:
            new[f"text.tower.fc.{kind}"] = torch.cat([new[f"text.tower.fc.{kind}"], whole])
    return new


def dive_from_checkpoint(checkpoint: Checkpoint, *, bert: str = BERT) -> ConvertedModel:
    """Convert a checkpoint of DivE, with `released_padding`, as its weights were trained.

    Raises:
        ValueError: tensors are missing or unknown, or an option makes it another model.
    """
    options, state = checkpoint.options, convert_dive(checkpoint.state)
    ranks = options.get("loss") or "smooth_chamfer"
    words = "text.gru.embed.weight" in state
    pools = ("rnn",) if words else ("max", "cls")
    refuse_options(DivE, checkpoint, KNOWN | {"txt_pooling": pools, "eval_similarity": (ranks,)})
    rounds = {_round(name) for name in checkpoint.state if LAYERS in name}
    width, features = state["image.tower.fc.weight"].shape
    image = lazy(
        MLPRegions,
        features=features,
        width=width,
        inner=len(state["image.tower.enter.bias"]),
        stacked=True,
        dropout=option_value(options, "img_1x1_dropout", 0.1),
    )
    spec = config(
        DivE,
        image=lazy(
            PooledParts, tower=image, pool=IMAGE_POOLS[options.get("img_res_pool") or "max"]
        ),
        text=_text(state, options, bert),
        slots=len(state["image_slots.latents"]),
        heads=HEADS,
        head_width=len(state["image_slots.query.weight"]) // HEADS,
        rounds=len(rounds),
        inner=len(state["image_slots.enter.weight"]) // width,
        similarity=SIMILARITIES[ranks],
        diversity_of="slots" if option_value(options, "unif_residual", True) else "elements",
        released_padding=True,
        **given_options(DivE, checkpoint, OPTIONS),
    )
    return ConvertedModel(spec, state)


def _text(state: State, options: Mapping[str, Any], bert: str) -> PartsTower:
    """Return the config of the text tower that fits these tensors and options."""
    if "text.gru.embed.weight" in state:
        plain = {name.replace("text.gru.", "text."): value for name, value in state.items()}
        share = 0.0 if options.get("rnn_no_dropout") else option_value(options, "dropout", 0.1)
        return lazy(WordsAndStates, gru=gru_config(plain, dropout=share), dropout=share)
    width = len(state["text.tower.fc.weight"])
    return lazy(
        PooledParts,
        tower=lazy(BertTextTower, name=bert, width=width, pretrained=False),
        pool="first" if options.get("txt_pooling") == "cls" else "max",
        apart=width > len(state["text_norm.weight"]),
    )


def _round(name: str) -> str:
    """Return the number of the round that a tensor of the slots belongs to."""
    return name.partition(LAYERS)[2].partition(".")[0]
