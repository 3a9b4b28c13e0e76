"""Contrastive losses: softmax (InfoNCE) and sigmoid cross-entropy over the pairs of a batch."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from counterfoil.core.config import parse_choice
from counterfoil.core.types import Needs, Role, Scores, VectorScores
from counterfoil.losses.base import (
    Loss,
    Reduction,
    negative_scores,
    positive_scores,
    weighted_positive_scores,
)
from counterfoil.losses.tiled import check_hardness, tiled_info_nce

__all__ = [
    "InfoNCELoss",
    "InfoNCEWithCandidatesLoss",
    "SigmoidLoss",
    "TripletCLIPLoss",
]


@final
class InfoNCELoss(Loss):
    """Cross-entropy of each true pair among the wrong ones of its row and of its column.

    CLIP (https://arxiv.org/abs/2103.00020), figure 3: with one caption per image and the "mean" it
    is the same value. Departs from the authors' code in: each true pair competes with wrong pairs
    only, so that two captions of one image never push each other away, and a row in which all is
    true adds 0; an extra positive is one more true pair, with its weight.

    With a margin every wrong score counts as that much higher (an option of CHAN's code, which
    adds the means of both directions up: twice this value).

    With a hardness weight a, e^(s/t) of a wrong score s becomes e^(s/t + a sg(s)), where sg has no
    gradient: each wrong pair weighs as much as at the lower temperature 1 / (1/t + a), and pulls as
    at t. LLaVE (https://arxiv.org/abs/2503.04812) takes 9 for the cosines of a batch,
    EmbeddingGemma (https://arxiv.org/abs/2509.20354) 5 for given negatives alone, which is not
    done here. Not HCL, whose weights have the mean 1.

    Args:
        temperature: scores are divided by it; with `learnable`, where it starts.
        margin: in units of a score.
        hardness: factor of a score that is added to the logit of a wrong pair; 0 for none.
        learnable: whether the temperature is trained.
        smallest: a trained temperature does not fall below this (CLIP: 0.01).
        reduction: see `Loss`.

    Raises:
        ValueError: a temperature that is not positive, or below `smallest`; a hardness that is
            negative or not finite.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> loss = InfoNCELoss(temperature=0.1, reduction="mean")
    >>> round(loss(scores).item(), 4)
    0.4073
    """

    uses_extra = True

    def __init__(
        self,
        *,
        temperature: float = 0.07,
        margin: float = 0.0,
        hardness: float = 0.0,
        learnable: bool = False,
        smallest: float = 0.01,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not 0 < smallest <= temperature:
            raise ValueError(
                f"a temperature of {temperature} was given; it must be positive and not below "
                f"`smallest`, which is {smallest}"
            )
        check_hardness(hardness)
        self.margin, self.hardness = margin, hardness
        self.highest = -math.log(smallest)
        start = torch.tensor(-math.log(temperature))
        self.log_scale = nn.Parameter(start, requires_grad=learnable)

    def forward(self, scores: Scores) -> Tensor:
        """Return the scalar loss; while training, first clamp a learnt temperature to its range."""
        matrix = self.matrix(scores)
        scale = self._scale().to(matrix.scores.dtype)
        # log(1 + sum of exp(wrong - true)) is the cross-entropy among the true and all wrong ones
        true, weight = weighted_positive_scores(matrix)
        out = matrix.positive | matrix.scores.isneginf()
        # -inf after scaling: the gradient of a learnt scale would be -inf * 0, which is NaN
        finite = matrix.scores.masked_fill(out, 0)
        wrong = finite * scale + finite.detach() * self.hardness
        wrong = wrong.masked_fill(out, -torch.inf)
        logit = (true.score - self.margin) * scale
        texts = softplus(wrong.logsumexp(1)[true.image] - logit)
        images = softplus(wrong.logsumexp(0)[true.text] - logit)
        return self.reduce(((texts + images) * weight).sum() / 2, matrix)

    def tiled(self, vectors: VectorScores) -> Tensor:
        """Return the same loss of vectors, without their score matrix."""
        return tiled_info_nce(
            vectors.images,
            vectors.texts,
            vectors.text_to_image,
            1 / self._scale(),
            margin=self.margin,
            hardness=self.hardness,
            exempt=vectors.exempt,
            equal=vectors.equal,
            weight=vectors.weight,
            reduction=self.reduction,
        )

    def _scale(self) -> Tensor:
        """The factor of the scores, in its range."""
        if self.training and self.log_scale.requires_grad:
            self.log_scale.data.clamp_(max=self.highest)
        return self.log_scale.exp()


@final
class SigmoidLoss(Loss):
    """Binary cross-entropy of every pair, on scaled and shifted scores.

    SigLIP (https://arxiv.org/abs/2303.15343), Eq. 1 and algorithm 1, whose code takes the "mean".
    Departs from the authors' code in: an image may have several true texts, and an extra positive
    counts with its weight. True pairs have terms of their own, so a batch without any wrong pair
    has a loss too.

    Args:
        scale: scores are multiplied by it; with `learnable`, where it starts.
        bias: added to the scaled score; with `learnable`, where it starts.
        learnable: whether both are trained.
        reduction: see `Loss`.

    Raises:
        ValueError: a scale that is not positive.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> round(SigmoidLoss(scale=10.0, bias=-5.0, reduction="mean")(scores).item(), 4)
    1.6059
    """

    uses_extra = True

    def __init__(
        self,
        *,
        scale: float = 10.0,
        bias: float = -10.0,
        learnable: bool = True,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not scale > 0:
            raise ValueError(f"a scale of {scale} was given; it must be positive")
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)), requires_grad=learnable)
        self.bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learnable)

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        dtype = matrix.scores.dtype
        scale, bias = self.log_scale.exp().to(dtype), self.bias.to(dtype)
        out = matrix.scores.isneginf()  # such a pair adds 0; a gradient of -inf * 0 would be NaN
        logits = matrix.scores.masked_fill(out, 0) * scale + bias
        logits = logits.masked_fill(out, -torch.inf)
        cost = softplus(torch.where(matrix.positive, -logits, logits)).sum()
        if (extra := matrix.extra) is not None:
            cost = cost + (softplus(-extra.score * scale - bias) * extra.weight.to(dtype)).sum()
        return self.reduce(cost, matrix)


@final
class InfoNCEWithCandidatesLoss(Loss):
    """`InfoNCELoss` with candidates of some roles beside the wrong pairs of the batch.

    NegCLIP (https://arxiv.org/abs/2210.01936), section 4: generated captions are appended to the
    texts of a batch; images choose among all of them, texts among images alone. Here each image
    competes with the candidates in its own row, which
    `counterfoil.negatives.generated.GeneratedCaptions` chooses. NegCLIP's hard images are in
    the batch itself, see `counterfoil.negatives.sampling.NeighbourImages`; images of the roles in
    `images` have no captions in the batch and compete for their anchor's text alone.

    Args:
        texts: roles whose texts join the wrong texts of an anchor's image.
        images: roles whose images join the wrong images of an anchor's text.
        temperature: scores are divided by it.
        reduction: see `Loss`.

    Raises:
        ValueError: a temperature that is not positive, no role at all, or an unknown one.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> loss = InfoNCEWithCandidatesLoss(temperature=0.1, reduction="mean")
    >>> round(loss(scores, generated=torch.tensor([-torch.inf, -torch.inf])).item(), 4)
    0.4073
    >>> round(loss(scores, generated=torch.tensor([0.9, 0.6])).item(), 4)
    0.6227
    """

    def __init__(
        self,
        *,
        texts: tuple[str, ...] = ("written",),
        images: tuple[str, ...] = (),
        temperature: float = 0.07,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not temperature > 0:
            raise ValueError(f"a temperature of {temperature} was given; it must be positive")
        for role in (*texts, *images):
            parse_choice((known.value for known in Role), role, "a role of a pair")
        if not (texts or images):
            raise ValueError("no role joins the block; name one in texts or images, or use InfoNCE")
        self.temperature = temperature
        self.texts, self.images = tuple(map(Role, texts)), tuple(map(Role, images))
        self.needs = Needs(roles=frozenset({*self.texts, *self.images}))

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        true, wrong = positive_scores(matrix), negative_scores(matrix)
        assert len(true.text) == len(matrix.anchor), (
            "every true pair of the block is an anchor pair"
        )
        directions = ((wrong[true.image], self.texts), (wrong.T[true.text], self.images))
        costs = []
        for in_batch, roles in directions:
            candidates = torch.cat([in_batch, *(scores.pairs[role] for role in roles)], 1)
            excess = (candidates / self.temperature).logsumexp(1) - true.score / self.temperature
            costs.append(softplus(excess))
        return self.reduce(torch.stack(costs).sum() / 2, matrix)


@final
class TripletCLIPLoss(Loss):
    """InfoNCE with foils in both directions: false captions, and pictures of which they are true.

    TripletCLIP (https://arxiv.org/abs/2411.02545), section 3.3. With the foil T' of each caption
    and its picture I', L = N(I, T, T') + N(I', T', T), where N(X, Y, Z) is NegCLIP's loss: the mean
    of two cross-entropies, of the images X among the texts Y and Z, and of the texts Y among the
    images X. So a true caption never competes with the picture of a foil for its image; the picture
    competes for it with its foil.

    Departs from the authors' code in: an anchor without a foil adds the first part alone, and true
    pairs compete with wrong ones only, as in `InfoNCELoss`; one temperature, which is not trained.
    `counterfoil.training.foils.Foils` gives the pairs.

    Args:
        temperature: scores are divided by it.
        reduction: see `Loss`.

    Raises:
        ValueError: a temperature that is not positive.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> foils = torch.tensor([[0.9, 0.2], [0.3, 0.6]])
    >>> loss = TripletCLIPLoss(temperature=0.1, reduction="mean")
    >>> other = {"generated_image": foils.T, "generated_pair": scores.T}
    >>> round(loss(scores, generated=foils, **other).item(), 4)
    1.2315
    """

    needs = Needs(roles=frozenset({Role.WRITTEN, Role.WRITTEN_IMAGE, Role.WRITTEN_PAIR}))

    def __init__(self, *, temperature: float = 0.07, reduction: Reduction = "sum") -> None:
        super().__init__(reduction=reduction)
        if not temperature > 0:
            raise ValueError(f"a temperature of {temperature} was given; it must be positive")
        self.temperature = temperature

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        texts, images, pairs = (
            scores.pairs[role] for role in (Role.WRITTEN, Role.WRITTEN_IMAGE, Role.WRITTEN_PAIR)
        )
        square = (len(matrix.anchor), len(matrix.anchor))
        if not texts.shape == images.shape == pairs.shape == square:
            raise ValueError(
                f"generated, generated_image and generated_pair are {tuple(texts.shape)}, "
                f"{tuple(images.shape)} and {tuple(pairs.shape)}; each anchor of {square[0]} needs "
                "one foil, or -inf, and all are scored with all, as the source Foils does"
            )
        true, wrong = positive_scores(matrix), negative_scores(matrix)
        own = pairs.diagonal()
        there = ~own.isneginf()
        others = pairs.masked_fill(
            torch.eye(len(own), dtype=torch.bool, device=own.device), -torch.inf
        )
        return self.reduce(
            self._cost(true.score, torch.cat([wrong[true.image], texts], 1), wrong.T[true.text])
            + self._cost(own[there], torch.cat([others, images.T], 1)[there], others.T[there]),
            matrix,
        )

    def _cost(self, true: Tensor, texts: Tensor, images: Tensor) -> Tensor:
        """Sum over the (P,) true pairs of both cross-entropies, among (P, N) wrong ones; halved."""
        logit = true / self.temperature
        excess = [(wrong / self.temperature).logsumexp(1) - logit for wrong in (texts, images)]
        return softplus(torch.stack(excess)).sum() / 2
