"""NAAF: negative-aware attention (Zhang, Mao, Wang and Zhang, CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from counterfoil.core.console import warn
from counterfoil.core.types import Batch, Embeddings, EncodedViews, ModalityBatch, Pairs
from counterfoil.models.base import anchors_of
from counterfoil.models.checkpoints import (
    GRU_TOWERS,
    Checkpoint,
    ConvertedModel,
    TensorNames,
    convert_towers,
    option_value,
)
from counterfoil.models.layers.cross_attention import (
    AttendedProducts,
    AttentionBlock,
    CrossAttention,
    Direction,
    PackedTexts,
    padding_bias,
    score_tiles,
    where_positive,
)
from counterfoil.models.layers.fused import (
    AlignedPairs,
    align_listed,
    align_pairs,
    apply_heads,
    prepare_context,
)
from counterfoil.models.layers.pooling import ImageTower, TextTower, unit_vectors
from counterfoil.models.layers.towers import TwoTowerModel

ENOUGH_WORDS = 200  # sampled words that a threshold is estimated from
SMOOTHING = 0.7  # share of the new estimate; the rest is the carried threshold


@final
@dataclass(frozen=True, slots=True)
class NegativeAwareAttention:
    """Both branches of negative-aware attention: how mismatched and how matched each word is.

    With affinities s of a word and the regions, threshold t and lambda = `sharpness`:

        margin   = max_k s_k - t                                             below 0: a mismatch
        positive = cos(word, sum_{s_k > t} exp(lambda (s_k - t)) v_k)        0 without such a region
                   + sum_k p_k s_k                                           p: attention of SCAN

    Words have length 1, so the cosine is that of `AttendedProducts` with a query of length 1.
    """

    results: ClassVar[int] = 2
    learnt: ClassVar[int] = 2
    grams: ClassVar[bool] = True

    sharpness: float  # inverse temperature of both attentions
    threshold: float | Tensor  # the threshold t; a number, or a tensor without axes
    direction: Direction = "t2i"

    def attend(self, block: AttentionBlock) -> tuple[Tensor, ...]:
        """Return margin and positive effect (n, L, I) of each word; differentiable."""
        affinity, gram = block.affinity, block.gram
        assert gram is not None
        real = affinity
        if block.regions is not None:
            real = affinity + padding_bias(block.regions)
        best = real.max(3, keepdim=True).values
        # the weights are relative to the best region's: their scale cancels in the cosine
        weight = (self.sharpness * (affinity - best.detach())).exp()
        weight = where_positive((real - self.threshold).detach(), weight)
        n, words, images, regions = weight.shape
        rows = weight.reshape(n * words, images, regions).transpose(0, 1)
        product = torch.bmm(rows, gram).transpose(0, 1).reshape(weight.shape)
        attended = AttendedProducts(
            (weight * affinity).sum(3), (weight * product).sum(3), weight.sum(3)
        )
        one = torch.ones((), device=weight.device)
        scan = CrossAttention("t2i", "clipped_l2norm", self.sharpness)
        relevance = (scan.weights(block) * affinity).sum(3)
        return best.squeeze(3) - self.threshold, attended.cosine(one) + relevance

    def derivative(self, block: AttentionBlock, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of the affinity and of the Gram matrix, by autograd on the block."""
        assert block.gram is not None
        with torch.enable_grad():
            affinity = block.affinity.detach().requires_grad_()
            gram = block.gram.detach().requires_grad_()
            results = self.attend(replace(block, affinity=affinity, gram=gram))
            d_affinity, d_gram = torch.autograd.grad(results, (affinity, gram), grads)
        return d_affinity, d_gram


@final
class NAAF(TwoTowerModel):
    """SCAN's attention with an explicit effect of words that match no region.

    The score is the mean over words of a negative effect (its best affinity minus a threshold, if
    that is below 0) and two positive effects, see `NegativeAwareAttention`; range about
    [-1 - t, 2]. At inference the sign of the negative effect is decided on margins that are
    propagated between the words of the caption (section 3.3). It is exact although no attended
    vector is formed, like the score of `counterfoil.papers.models.scan.SCAN`.

    The threshold separates word similarities of matched from those of mismatched pairs. It is
    mined in training from the words of captions whose image ranks first (section 3.2): two
    Gaussians are fitted to them, and t solves p_matched(t) = alpha p_mismatched(t).

    Departs from the authors' code in: one threshold a batch, mined from that batch and used in the
    next, where theirs changes from caption to caption and starts at 0 in every batch; the root is
    computed without cancellation; images may have different numbers of regions, and texts one word.

    Attributes:
        score_scale: 2.0, the largest positive effect of a word. The authors' margin of 0.2 is in
            these units.
        thresholds: (2,) buffer: the threshold in training and that of inference (the mean of the
            matched words minus three deviations).
        uses_batch_context: in training the thresholds are mined from the whole batch.
    """

    score_scale = 2.0
    uses_batch_context = True
    thresholds: Tensor
    mined: Tensor

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        lambda_softmax: float = 20.0,
        alpha: float = 2.0,
        intra_lambda: float = 5.0,
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            lambda_softmax: inverse temperature of both attentions.
            alpha: cost of a matched word below the threshold, relative to a mismatched one above
                it; higher values raise the threshold.
            intra_lambda: inverse temperature of the propagation between words at inference.

        Raises:
            ValueError: towers of different widths.
        """
        super().__init__(image, text)
        self.lambda_softmax, self.intra_lambda, self.alpha = lambda_softmax, intra_lambda, alpha
        self.register_buffer("thresholds", torch.zeros(2))
        self.register_buffer("mined", torch.zeros(2))

    @property
    def score_name(self) -> str:
        return "negative-aware cross-attention"

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as region vectors of length 1, with their Gram matrices."""
        return prepare_context(unit_vectors(self.image(images)))

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return self._score(align_pairs((self._head(),), images, texts), texts)

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        aligned = align_listed((self._head(),), images, texts, pairs)
        return self._score(aligned, texts.rows(pairs.text))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores, tile by tile, with one matrix product per tile."""
        return self._matrix(images, texts, self._threshold())

    @torch.no_grad()
    def batch_forward(
        self, batch: Batch, views: EncodedViews, wanted: frozenset[str]
    ) -> EncodedViews:
        """Use the thresholds mined from the last batch, and mine new ones from this batch."""
        self.thresholds.copy_(self.mined)
        anchors = anchors_of(batch, views.inference)
        self.mined.copy_(self._mine(anchors.images, anchors.texts, batch.positive))
        return views

    def _mine(self, images: Embeddings, texts: Embeddings, positive: Tensor) -> Tensor:
        scores = self._matrix(images, texts, self._threshold())
        first = scores.argmax(0)
        correct = positive[first, torch.arange(len(texts), device=first.device)]
        if not bool(correct.any()):
            return self.thresholds
        captions = texts.rows(correct)
        matched = best_affinities(images.rows(first[correct]), captions)
        mismatched = best_affinities(images.rows(scores.argmin(0)[correct]), captions)
        if len(matched) <= ENOUGH_WORDS:
            return self.thresholds
        return mined_thresholds(matched, mismatched, self.thresholds, self.alpha)

    def _threshold(self) -> Tensor:
        return self.thresholds[0] if self.training else self.thresholds[1]

    def _head(self, threshold: Tensor | None = None) -> NegativeAwareAttention:
        value = self._threshold() if threshold is None else threshold
        return NegativeAwareAttention(self.lambda_softmax, value)

    def _matrix(self, images: Embeddings, texts: Embeddings, threshold: Tensor) -> Tensor:
        head = self._head(threshold)

        def tile(images: Embeddings, texts: PackedTexts) -> Tensor:
            """Return the (T, I) scores of a tile."""
            (results,) = apply_heads(images, texts, (head,))
            rows = []
            for run in texts.runs():
                shape = (run.n, run.length, -1)
                margin, positive = (result[run.words].view(shape) for result in results)
                negative = self._negative(margin, texts.words[run.words].view(shape), None)
                rows.append((negative + positive).mean(1))
            return torch.cat(rows)

        return score_tiles(prepare_context(images), texts, tile)

    def _score(self, pairs: AlignedPairs, texts: Embeddings) -> Tensor:
        mask = texts.mask
        margin, positive = (x.masked_fill(~mask, 0) for x in pairs.attend(self._head()))
        words = texts.tokens.masked_fill(~mask.unsqueeze(-1), 0)
        negative = self._negative(margin.unsqueeze(-1), words, mask).squeeze(-1)
        return (negative + positive).sum(1) / mask.sum(1)

    def _negative(self, margin: Tensor, words: Tensor, mask: Tensor | None) -> Tensor:
        """Return the negative effects of words (n, L, D) from margins (n, L, I), 0 at padding."""
        if self.training:
            return margin.clamp(max=0)
        with torch.no_grad():  # only the sign is taken, so nothing flows through the propagation
            logits = self.intra_lambda * torch.bmm(words, words.mT)
            if mask is not None:
                logits = logits.masked_fill(~mask.unsqueeze(1), -torch.inf)
            mismatch = torch.bmm(logits.softmax(2).to(margin.dtype), margin.detach()) < 0
        # as released, the effect is the word's own margin, which may be positive
        return margin.masked_fill(~mismatch, 0)


# The threshold between similarities of matched and of mismatched words.


def best_affinities(images: Embeddings, texts: Embeddings) -> Tensor:
    """Return the highest affinity of each word of P texts with P images: (W,), W words in all."""
    images = prepare_context(images, gram=False)
    tokens = texts.tokens.masked_fill(~texts.mask.unsqueeze(-1), 0)
    affinity = torch.bmm(tokens, images.tokens.mT)
    return affinity.masked_fill(~images.mask.unsqueeze(1), -torch.inf).amax(2)[texts.mask]


def mined_thresholds(
    matched: Tensor, mismatched: Tensor, carried: Tensor, alpha: float = 2.0
) -> Tensor:
    """Return new thresholds from similarities of matched and of mismatched words (section 3.2).

    With Gaussians fitted to both, the threshold of training solves p_matched(t) = alpha
    p_mismatched(t), where matched words begin to prevail; that of inference is the mean of the
    matched words minus three deviations. Values outside [0, 1] become 0, and both are smoothed
    with the carried ones.
    """
    (mean_p, std_p), (mean_n, std_n) = (
        (x.mean(), x.std(correction=1)) for x in (matched, mismatched)
    )
    a = std_p**2 - std_n**2
    b = 2 * (mean_p * std_n**2 - mean_n * std_p**2)
    c = (mean_n * std_p) ** 2 - (mean_p * std_n) ** 2
    c = c + 2 * (std_p * std_n) ** 2 * torch.log(std_n / (alpha * std_p) + 1e-8)
    discriminant = b**2 - 4 * a * c
    new = carried
    if discriminant > 0:
        root = discriminant.sqrt()
        # the same root twice: the first form has no cancellation, and no division by a = 0
        crossing = -2 * c / (b + root) if b > 0 else (root - b) / (2 * a + 1e-10)
        new = torch.stack([crossing, mean_p - 3 * std_p])
    new = torch.where((new < 0) | (new > 1), 0, new)
    return SMOOTHING * new + (1 - SMOOTHING) * carried


# The authors' checkpoints.


NAMES = TensorNames(
    system="a NAAF",
    prefixes={"txt_enc.embed.glove.": "text.embed.", **GRU_TOWERS},
    needed=("image.fc.bias", "text.embed.weight"),
)
OPTIONS = {"lambda_softmax": "lambda_softmax", "alpha": "alpha"}


def naaf_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of NAAF; its thresholds are read from its options."""
    state = NAMES.renamed(checkpoint.state)
    names = ("thres", "thres_safe")
    if missing := [name for name in names if checkpoint.options.get(name) is None]:
        warn(
            f"this NAAF checkpoint has no {' and no '.join(missing)} among its options, where its "
            "authors keep its thresholds; 0 is taken, and it scores otherwise: give the whole "
            "checkpoint"
        )
    thresholds = [option_value(checkpoint.options, name, 0.0) for name in names]
    state["thresholds"] = torch.tensor(thresholds)
    state["mined"] = state["thresholds"].clone()
    return convert_towers(NAAF, checkpoint, state, options=OPTIONS)
