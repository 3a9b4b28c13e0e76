"""X-Dim: cross-dimensional semantic dependency (Zhang et al., ACM MM 2023)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.checkpoints import (
    BERT,
    POSITIONS,
    REGIONS,
    TEXTS,
    THIRD,
    Checkpoint,
    ConvertedModel,
    TensorNames,
    convert_towers,
)
from counterfoil.models.layers.cross_attention import (
    CrossAttention,
    PackedTexts,
    attended_pairs,
    attended_vectors,
    score_tiles,
)
from counterfoil.models.layers.fused import prepare_context
from counterfoil.models.layers.pooling import ImageTower, TextTower, ensure_nonempty, unit_vectors
from counterfoil.models.layers.towers import TwoTowerModel

NUMBERS_AT_ONCE = 1 << 24  # entries of attended vectors: 64 MB of float32
EPS = 1e-8  # added to lengths
LARGEST_EXPONENT = 20.0  # tanh of its exponential is 1


@final
class Dependencies(nn.Module):
    """The learnt dependency of each dimension of the joint space on all others (section 3.2).

    With P = sigmoid(table), row i is tanh(exp(e^a (P_i - t_i))) * P_i at length 1, where the
    threshold t_i is the row's mean plus c_i of its standard deviations.

    Departs from the authors' code in: any width; the exponent is cut where tanh is 1, so
    that nothing overflows.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(width, width))
        self.deviations = nn.Parameter(2.5 + 0.1 * torch.randn(width))
        self.sharpness = nn.Parameter(torch.tensor(4.0))

    def forward(self) -> Tensor:
        """Return the (D, D) matrix."""
        strength = self.table.sigmoid()
        deviation, mean = torch.std_mean(strength, 1, correction=1)
        threshold = mean + self.deviations * deviation
        exponent = self.sharpness.exp() * (strength - threshold.unsqueeze(1))
        dependent = exponent.clamp(max=LARGEST_EXPONENT).exp().tanh()
        rows = dependent * strength
        # at the initial values a row is shorter than 1e-8 wherever nothing exceeds its threshold,
        # so the authors' constant decides its length
        length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows / (length + EPS)


@final
class XDim(TwoTowerModel):
    """Words attend to regions and are compared with them across dimensions.

    With the dependency matrix W and its column sums d, the affinity of word q and region v is
    tanh(q . diag(d) v), and the similarity of q with its attended vector c is the sum of the
    entries of W (c * q) at length 1, which is d . (c * q) / |W (c * q)|. The score is the mean over
    words. The length needs W (c * q) of each word with each image, so attended vectors are formed,
    a few captions at a time.

    Departs from the authors' code in: padded regions take no part (X2).

    Attributes:
        score_scale: the square root of the width, the largest sum of the entries of a vector of
            length 1. The authors' margin of 0.2 is in these units.
    """

    def __init__(self, *, image: ImageTower, text: TextTower) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts; every token counts as a word, BERT's special ones too.

        Raises:
            ValueError: towers of different widths.
        """
        super().__init__(image, text)
        self.dependencies = Dependencies(width=image.width)
        self.temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.score_scale = math.sqrt(image.width)

    @property
    def score_name(self) -> str:
        return "cross-attention of dependent dimensions"

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as region vectors of length 1."""
        return ensure_nonempty(unit_vectors(self.image(images)))

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        images, texts = (prepare_context(items, gram=False) for items in (images, texts))
        matrix = self.dependencies()
        scaled = replace(texts, tokens=texts.tokens * matrix.sum(0))
        attended = attended_pairs(images, scaled, self._head(), squash=True)
        similarity = _similarity(attended, texts.tokens, scaled.tokens, matrix)
        return similarity.masked_fill(~texts.mask, 0).sum(1) / texts.mask.sum(1)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores, a few captions of equal length at a time."""
        matrix, head = self.dependencies(), self._head()
        diagonal = matrix.sum(0)

        def tile(images: Embeddings, texts: PackedTexts) -> Tensor:
            """Return the (T, I) scores of a tile."""
            at_once = max(1, NUMBERS_AT_ONCE // max(1, len(images) * images.tokens.shape[2]))
            rows = []
            for run in texts.runs():
                for cut in run.cut(at_once):
                    words = texts.words[cut.words].view(cut.n, cut.length, -1)
                    scaled = words * diagonal
                    attended = attended_vectors(images, scaled, head, squash=True)
                    rows.append(_similarity(attended, words, scaled, matrix).mean(2).T)
            return torch.cat(rows)

        return score_tiles(prepare_context(images, gram=False), texts, tile)

    def _head(self) -> CrossAttention:
        return CrossAttention("t2i", "clipped_l2norm", self.temperature.exp())


def _similarity(attended: Tensor, words: Tensor, scaled: Tensor, matrix: Tensor) -> Tensor:
    """Return the similarities (..., L) of words (..., L, D) with what they attend to."""
    attended = normalize(attended, dim=-1)
    # the entries of W x add up to d . x, as d holds the column sums of W
    length: Tensor = torch.linalg.vector_norm((attended * words) @ matrix.T, dim=-1)
    return (attended * scaled).sum(-1) / (length + EPS)


# The authors' checkpoints, whose third state dict is the score module.


NAMES = TensorNames(
    system="an X-Dim",
    prefixes={
        **REGIONS,
        **TEXTS,
        f"{THIRD}weights.weight": "dependencies.table",
        f"{THIRD}sim_map.weight": "dependencies.deviations",
        f"{THIRD}temp_learnable.weight": "dependencies.sharpness",
        f"{THIRD}temp_scale.weight": "temperature",
    },
    unused=("img_enc.mlp.bns.1.", f"{THIRD}sim_eval.", POSITIONS),
    needed=("image.enter.weight", "text.fc.weight", "dependencies.table"),
)


def xdim_from_checkpoint(checkpoint: Checkpoint, *, bert: str = BERT) -> ConvertedModel:
    """Convert a checkpoint of X-Dim."""
    state = NAMES.renamed(checkpoint.state)
    state["dependencies.deviations"] = state["dependencies.deviations"].flatten()
    for name in ("dependencies.sharpness", "temperature"):
        state[name] = state[name].reshape(())
    return convert_towers(XDim, checkpoint, state, bert=bert)
