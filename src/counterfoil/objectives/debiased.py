"""Contrastive losses that know of false negatives, or that weigh negatives by how hard they are."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterfoil.objectives.block import Positives, positives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Scores

EVEN = 1e-6  # so near, what is left of the negatives has no finite logarithm


@final
class Debiased(Term):
    """InfoNCE whose sum over N negatives is corrected, or weighed, or both.

    DCL (https://arxiv.org/abs/2007.00224): of the negatives a share `tau_plus` is false and looks
    like the positive, so that much is taken off, down to what N negatives of the lowest score would
    give. HCL (https://arxiv.org/abs/2010.04592): before that, a negative is weighed by its own
    exponential to the power `beta`, with weights of 1 on average. With both at 0 this is `InfoNCE`;
    with a growing `beta` only the hardest negative is left, N times.

    Departs from the authors' code in: images and texts face each other, in both directions;
    negatives are told by id; everything stays logarithms, so no temperature overflows.

    Args:
        temperature: scores are divided by it.
        tau_plus: how likely a negative is a true pair; 0 for no correction. The authors take 0.1
            for ten classes; among captions far fewer are false.
        beta: how strongly hard negatives are preferred; 0 for not at all. The authors take 0.5 to
            2.
        lowest: the lowest score there is, -1 for a cosine; asked for with `tau_plus` only.
        reduction: see `Term`.

    Raises:
        ValueError: a temperature that is not positive, a share that is none, or a negative `beta`.

    >>> from counterfoil.records import Grid
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> scores = Scores({"inference": Grid(s, torch.eye(3).bool(), anchor=s.diagonal())})
    >>> terms = Debiased(), Debiased(tau_plus=0.1), Debiased(beta=1.0)
    >>> [round(term(scores).item(), 3) for term in terms]
    [1.888, 1.756, 2.617]
    """

    def __init__(
        self,
        *,
        temperature: float = 0.07,
        tau_plus: float = 0.0,
        beta: float = 0.0,
        lowest: float = -1.0,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not temperature > 0:
            raise ValueError(f"a temperature of {temperature} was given; it must be positive")
        if not 0 <= tau_plus < 1:
            raise ValueError(
                f"tau_plus={tau_plus} was given; it is the share of negatives that are false, "
                "from 0 to below 1"
            )
        if not beta >= 0:
            raise ValueError(f"beta={beta} was given; use 0 for equal weights, or more")
        self.temperature, self.lowest = temperature, lowest
        self.tau_plus, self.beta = tau_plus, beta

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        true = positives(grid)
        texts = self._one_way(grid.scores[true.image], ~grid.positive[true.image], true)
        images = self._one_way(grid.scores.T[true.text], ~grid.positive.T[true.text], true)
        return self.reduced((texts + images) / 2, grid)

    def _one_way(self, scores: Tensor, wrong: Tensor, true: Positives) -> Tensor:
        """Of (P, C) scores against P positives; a row without a wrong one is free."""
        some = wrong.any(1)
        wrong = wrong[some]
        logits, positive = scores[some] / self.temperature, true.score[some] / self.temperature
        hard = (logits * self.beta).masked_fill(~wrong, -torch.inf)
        both = (logits * (1 + self.beta)).masked_fill(~wrong, -torch.inf)
        count = wrong.sum(1).to(logits).log()
        excess = both.logsumexp(1) - hard.logsumexp(1) + count - positive
        return softplus(self._corrected(excess, count, positive)).sum()

    def _corrected(self, excess: Tensor, count: Tensor, positive: Tensor) -> Tensor:
        """(P,) logarithms of negatives over positive, without the false ones."""
        if not self.tau_plus:
            return excess
        false = count + math.log(self.tau_plus) - excess
        all_false = false > -EVEN
        left = (-false.masked_fill(all_false, -torch.inf).exp()).log1p() + excess
        floor = count + self.lowest / self.temperature - positive
        return torch.where(all_false, floor, floor.maximum(left - math.log1p(-self.tau_plus)))
