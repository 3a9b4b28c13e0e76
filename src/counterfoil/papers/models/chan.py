"""CHAN: cross-modal hard aligning (Pan, Wu and Zhang, CVPR 2023)."""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.checkpoints import (
    BERT,
    POSITIONS,
    TEXTS,
    Checkpoint,
    ConvertedModel,
    TensorNames,
    convert_towers,
)
from counterfoil.models.layers.attention_model import AttentionModel
from counterfoil.models.layers.cross_attention import (
    AttentionHead,
    CrossAttention,
    HardAssignment,
    QueryPooling,
)
from counterfoil.models.layers.pooling import ImageTower, TextTower, check_choice, check_heads

# Self-attention over the regions of an image.


Sight = Literal["regions", "padding", "batch"]


@final
class SelfAttention(nn.Module):
    """Pre-norm self-attention, x + attention(norm(x)), with an MLP behind it if chosen.

    Departs from CHAN's code in: padding is not attended to, and a transformer's layer attends
    within an image, not across the batch; `sees` restores both.
    """

    def __init__(
        self, *, width: int, heads: int = 8, perceptron: bool = False, sees: Sight = "regions"
    ) -> None:
        """Initialise the module.

        Args:
            width: of the vectors.
            heads: of the attention.
            perceptron: add an MLP of four times the width (QuickGELU).
            sees: "regions": the real vectors of the same item; "padding": its padding too;
                "batch": the vectors at the same place in all items.

        Raises:
            ValueError: the heads do not divide the width.
        """
        super().__init__()
        check_heads(heads, width)
        self.sees: Sight = sees
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.perceptron = FeedForward(width=width) if perceptron else None

    def forward(self, bag: Embeddings) -> Embeddings:
        """(N, L, D) to the same; what the mask hides is arbitrary."""
        tokens = bag.tokens + self._attended(self.norm(bag.tokens), bag.mask)
        if self.perceptron is not None:
            tokens = self.perceptron(tokens)
        return Embeddings(tokens, bag.mask)

    def _attended(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.sees == "batch":
            x = x.transpose(0, 1)
        hidden = None
        if self.sees == "regions" and not bool(mask.all()):
            hidden = ~mask & mask.any(1, keepdim=True)  # an item without any gives no NaN
        attended: Tensor = self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
        return attended.transpose(0, 1) if self.sees == "batch" else attended


@final
class FeedForward(nn.Module):
    """x + narrow(QuickGELU(wide(norm(x))))."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to the same."""
        wide = self.wide(self.norm(x))
        out: Tensor = x + self.narrow(wide * torch.sigmoid(1.702 * wide))
        return out


Pooling = Literal["LSE", "Mean", "Max", "Sum", "Softmax"]
Coding = Literal["VHA", "THA", "VSA"]
RegionBlock = Literal["basic", "selfattention", "transformer"]


@final
class CHAN(AttentionModel):
    """Hard alignment: each word is matched with its most similar region, and these are pooled.

    Affinities of padding are never read: captions are packed, regions masked with -inf.

    Departs from the authors' code in: padded regions are no keys of the self-attention, and the
    transformer attends within an image (`sees`); an affinity of -1 is an affinity, not padding;
    softmax pooling gives no NaN with padding; an image without regions is one zero region.

    Attributes:
        score_scale: 1 / beta for "LSE", whose score is not brought back to cosines; else 1. The
            authors' margin of 0.05 is in these units, so it is 0.005 of a cosine there.
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        block: RegionBlock = "basic",
        coding: Coding = "VHA",
        pooling: Pooling = "LSE",
        alpha: float = 0.1,
        beta: float = 0.1,
        heads: int = 8,
        sees: Sight = "regions",
        normalise_images: bool = True,
        normalise_texts: bool = True,
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts; every token counts as a word, BERT's special ones too.
            block: what regions learn from each other: "basic" nothing (with BERT),
                "selfattention" (with a GRU) or "transformer", see `SelfAttention`.
            coding: "VHA": each word takes its best region; "THA": each region its best word;
                "VSA": each region attends to the words.
            pooling: how the similarities become one score, see `QueryPooling`; "LSE", which is
                log(sum(exp(s / beta))), with a GRU, "Mean" with BERT.
            alpha: temperature of "VSA".
            beta: temperature of "LSE" and "Softmax".
            heads: of the self-attention.
            sees: what it attends to; the authors' weights were trained with "padding", those of a
                transformer with "batch". Then an item's encoding depends on its batch.
            normalise_images: scale region vectors to length 1.
            normalise_texts: scale word vectors to length 1.

        Raises:
            ValueError: an option that is not known, a temperature that is not positive, or parts of
                different widths.
        """
        super().__init__(image, text, normalise=(normalise_images, normalise_texts))
        check_choice("block", block, get_args(RegionBlock))
        check_choice("coding", coding, get_args(Coding))
        check_choice("pooling", pooling, get_args(Pooling))
        check_choice("sees", sees, get_args(Sight))
        for name, temperature in (("alpha", alpha), ("beta", beta)):
            if temperature <= 0:
                raise ValueError(f"{name}={temperature} is no temperature; it must be positive")
        self.block = (
            None
            if block == "basic"
            else SelfAttention(
                width=image.width, heads=heads, perceptron=block == "transformer", sees=sees
            )
        )
        self.coding: AttentionHead = HardAssignment("t2i" if coding == "VHA" else "i2t")
        if coding == "VSA":
            self.coding = CrossAttention("i2t", "no_norm", 1 / alpha)
        self.heads = (self.coding,)
        self.pooling: Pooling = pooling
        # its "LSE" is in units of the similarity over the temperature
        self.query_pooling = (
            QueryPooling("LogSumExp", 1 / beta, divisor=beta, unit=True)
            if pooling == "LSE"
            else QueryPooling(pooling, 1 / beta, unit=True)
        )
        self.beta = beta
        self.score_scale = 1 / beta if pooling == "LSE" else 1.0

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as region vectors."""
        regions: Embeddings = self.image(images)
        return self.scale_images(regions if self.block is None else self.block(regions))


# The authors' checkpoints: their tensor names and ours.


NAMES = TensorNames(
    system="a CHAN",
    prefixes={
        "img_enc.fc.": "image.fc.",
        "img_enc.feedforward.ln.": "block.norm.",
        "img_enc.feedforward.ln_1.": "block.norm.",
        "img_enc.feedforward.attn.": "block.attention.",
        "img_enc.feedforward.ln_2.": "block.perceptron.norm.",
        "img_enc.feedforward.mlp.c_fc.": "block.perceptron.wide.",
        "img_enc.feedforward.mlp.c_proj.": "block.perceptron.narrow.",
        **TEXTS,
    },
    unused=("txt_enc.fc.", POSITIONS),
    needed=("image.fc.weight",),
    either=("text.fc.weight", "text.embed.weight"),
)
OPTIONS = {  # "belta" is theirs
    "coding_type": "coding",
    "pooling_type": "pooling",
    "alpha": "alpha",
    "belta": "beta",
}


def chan_from_checkpoint(
    checkpoint: Checkpoint, *, bert: str = BERT, sees: Sight | None = None
) -> ConvertedModel:
    """Convert a checkpoint of CHAN; without its options, as published."""
    state = NAMES.renamed(checkpoint.state)
    block: RegionBlock = "selfattention" if "block.norm.weight" in state else "basic"
    if "block.perceptron.norm.weight" in state:
        block = "transformer"
    options = {
        "pooling_type": "LSE" if "text.embed.weight" in state else "Mean",
        **{name: value for name, value in checkpoint.options.items() if value},
    }
    for name, ending in {"coding_type": "Coding", "pooling_type": "Pooling"}.items():
        if name in options:
            options[name] = str(options[name]).removesuffix(ending)
    return convert_towers(
        CHAN,
        Checkpoint(state, options),
        state,
        options=OPTIONS,
        bert=bert,
        block=block,
        sees=sees or ("batch" if block == "transformer" else "regions"),
    )
