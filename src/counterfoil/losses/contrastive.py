"""Symmetric contrastive cross-entropy, with any number of positives per image."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from counterfoil.core.config import unknown_name
from counterfoil.core.types import Role, Scores
from counterfoil.losses.base import Loss, Reduction, negative_mask, positive_scores


@final
class InfoNCELoss(Loss):
    """Cross-entropy of each true pair among the wrong ones of its row and of its column.

    CLIP (https://arxiv.org/abs/2103.00020), figure 3: with one caption per image and the "mean" it
    is the same value. Each true pair competes with wrong pairs only, so that two captions of one
    image never push each other away, and a row in which all is true costs nothing.

    With a margin every wrong score counts as that much higher (an option of CHAN's code, which
    adds the means of both directions up: twice this value).

    Args:
        temperature: scores are divided by it; with `learnable`, where it starts.
        margin: in units of a score.
        learnable: whether it is trained.
        smallest: a trained temperature does not fall below this (CLIP: 0.01).
        reduction: see `Loss`.

    Raises:
        ValueError: a temperature that is not positive, or below `smallest`.

    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> loss = InfoNCE(temperature=0.1, reduction="mean")
    >>> round(loss(Scores({"inference": grid})).item(), 4)
    0.4073
    """

    def __init__(
        self,
        *,
        temperature: float = 0.07,
        margin: float = 0.0,
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
        self.margin = margin
        self.highest = -math.log(smallest)
        start = torch.tensor(-math.log(temperature))
        self.log_scale = nn.Parameter(start, requires_grad=learnable)

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss. While training, a learnt temperature is first brought back to its range."""
        if self.training and self.log_scale.requires_grad:
            self.log_scale.data.clamp_(max=self.highest)
        grid = self.grid(scores)
        scale = self.log_scale.exp().to(grid.scores.dtype)
        true, logits = positive_scores(grid), grid.scores * scale
        wrong = logits.masked_fill(grid.positive, -torch.inf)  # after scaling: -inf * 0 is NaN
        logit = (true.score - self.margin) * scale
        texts = softplus(wrong.logsumexp(1)[true.image] - logit)
        images = softplus(wrong.logsumexp(0)[true.text] - logit)
        return self.reduced((texts + images).sum() / 2, grid)


# Every pair of the block is its own yes-or-no question.


@final
class SigmoidLoss(Loss):
    """Binary cross-entropy of every pair, on scaled and shifted scores.

    SigLIP (https://arxiv.org/abs/2303.15343), Eq. 1 and algorithm 1, whose code takes the "mean".
    A pair is true when the ids say so. A true pair costs by itself, so a batch without any wrong
    pair is not free here.

    Args:
        scale: scores are multiplied by it; with `learnable`, where it starts.
        bias: added to the scaled score; with `learnable`, where it starts.
        learnable: whether both are trained.
        reduction: see `Loss`.

    Raises:
        ValueError: a scale that is not positive.

    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> loss = Sigmoid(scale=10.0, bias=-5.0, reduction="mean")
    >>> round(loss(Scores({"inference": grid})).item(), 4)
    1.6059
    """

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
        """Scalar loss."""
        grid = self.grid(scores)
        dtype = grid.scores.dtype
        logits = grid.scores * self.log_scale.exp().to(dtype) + self.bias.to(dtype)
        return self.reduced(softplus(torch.where(grid.positive, -logits, logits)).sum(), grid)


# Contrastive cross-entropy over the block and over candidates from elsewhere.


@final
class InfoNCEWithCandidatesLoss(Loss):
    """`InfoNCELoss` in which candidates of some roles stand beside the wrong ones of the block.

    NegCLIP (https://arxiv.org/abs/2210.01936), section 4: written captions are appended to the
    texts of a batch and images choose among all of them, while texts choose among images alone.
    Which captions an image is asked about is up to what proposes them, see
    `counterfoil.negatives.generation.store.GeneratedCaptions`. NegCLIP's hard images are in the
    block itself, see
    `counterfoil.negatives.sampling.NeighbourImages`; those of `cxc_images` have no captions of
    their own and compete for their anchor's alone.

    Args:
        texts: roles whose texts join the wrong texts of an anchor's image.
        images: roles whose images join the wrong images of an anchor's text.
        temperature: scores are divided by it.
        reduction: see `Loss`.

    Raises:
        ValueError: a temperature that is not positive, no role at all, or an unknown one.

    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> loss = JoinedInfoNCE(temperature=0.1, reduction="mean")
    >>> none = {Role.WRITTEN: torch.tensor([[-torch.inf], [-torch.inf]])}
    >>> round(loss(Scores({"inference": grid}, none)).item(), 4)
    0.4073
    >>> foils = {Role.WRITTEN: torch.tensor([[0.9], [0.6]])}
    >>> round(loss(Scores({"inference": grid}, foils)).item(), 4)
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
        known = [role.value for role in Role]
        for role in (*texts, *images):
            if role not in known:
                raise ValueError(unknown_name(role, known, "a role of a pair"))
        if not (texts or images):
            raise ValueError("no role joins the block; name one in texts or images, or use InfoNCE")
        self.temperature = temperature
        self.texts, self.images = tuple(map(Role, texts)), tuple(map(Role, images))
        self.needs = frozenset({*self.texts, *self.images})

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        true, wrong = positive_scores(grid), negative_mask(grid)
        assert len(true.text) == len(grid.anchor), "every text of the block is one anchor's"
        chosen = (
            (wrong[true.image], self.texts),
            (wrong.T[true.text], self.images),
        )
        costs = [
            softplus(self._logit(torch.cat([block, *(scores.pairs[r] for r in roles)], 1), true[2]))
            for block, roles in chosen
        ]
        return self.reduced(torch.stack(costs).sum() / 2, grid)

    def _logit(self, wrong: Tensor, true: Tensor) -> Tensor:
        """(B,) of all wrong ones together, above the true one."""
        return (wrong / self.temperature).logsumexp(1) - true / self.temperature
