"""Symmetric contrastive cross-entropy, with any number of positives per image."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from counterfoil.objectives.block import positives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Scores


@final
class InfoNCE(Term):
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
        reduction: see `Term`.

    Raises:
        ValueError: a temperature that is not positive, or below `smallest`.

    >>> from counterfoil.records import Grid
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
        true, logits = positives(grid), grid.scores * scale
        wrong = logits.masked_fill(grid.positive, -torch.inf)  # after scaling: -inf * 0 is NaN
        logit = (true.score - self.margin) * scale
        texts = softplus(wrong.logsumexp(1)[true.image] - logit)
        images = softplus(wrong.logsumexp(0)[true.text] - logit)
        return self.reduced((texts + images).sum() / 2, grid)
