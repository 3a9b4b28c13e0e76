"""Negatives chosen by how likely they are to be wrong."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.core.literals import parse_literal
from counterfoil.objectives.block import Positives, hardest, hinge, negatives, positives
from counterfoil.objectives.term import Reduction, Term, dice
from counterfoil.records import Grid, Scores

Choice = Literal["sampled", "expected"]
PRIOR = 1 / 9999  # odds that a negative is a true pair
SUSPECT = 1e-3  # posterior above which it may well be one


@final
class PosteriorTriplet(Term):
    """Hinge against a negative that is hard, but is probably no true pair.

    The false-negative elimination of FNE (Li et al., ACM Multimedia 2023,
    https://arxiv.org/abs/2308.04380). A negative weighs exp(-d² / 2), where d is how far it scores
    from the positive. Anchor pairs that rank first in both directions tell how positives and
    hardest negatives are distributed, two Gaussians; once more than `enough` are known, a negative
    that is a true pair with posterior p > 0.001 weighs exp(-p / 2) instead. One that scores more
    than the margin below the mean positive weighs nothing, and where nothing is left the hardest is
    taken. The weights follow the authors' code; p begins at odds of 1 to 9999, so that only a score
    far out among the negatives is suspected.

    Departs from the authors' code in: negatives are told by id, and come from the batch, not from
    queues of a momentum encoder; the variance is taken around the mean, not around the means that
    came before; scores are brought to the range of a cosine; and "expected" has no variance of its
    own.

    In training it learns the two distributions as it goes; they are buffers, saved with it.

    Args:
        margin: in units of a score.
        choice: one negative is "sampled" by weight, as the authors do, or the "expected" hinge is
            taken over all of them.
        sharpness: k in the weights exp(-k d²) and exp(-k p).
        enough: pairs that must be known before the posterior is trusted.
        period: after so many steps the distributions are learnt anew; the authors take an epoch. 0
            for never.
        reduction: see `Term`.

    Raises:
        ValueError: another choice, or a negative number.

    >>> from counterfoil.records import Grid
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> scores = Scores({"inference": Grid(s, torch.eye(3).bool(), anchor=s.diagonal())})
    >>> round(PosteriorTriplet(margin=0.5, choice="expected")(scores).item(), 3)
    2.1
    """

    learnt: Tensor

    def __init__(
        self,
        *,
        margin: float = 0.2,
        choice: Choice = "sampled",
        sharpness: float = 0.5,
        enough: int = 200,
        period: int = 0,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        parse_literal(Choice, choice, "how a negative is chosen")
        for name, number in (("sharpness", sharpness), ("enough", enough), ("period", period)):
            if number < 0:
                raise ValueError(f"{name}={number} was given; use 0 or more")
        self.choice: Choice = choice
        self.margin, self.sharpness = margin, sharpness
        self.enough, self.period = enough, period
        self._anew = -1  # step at which they were last learnt anew
        # of positives and of hardest negatives: how many, their mean, their squared deviations
        self.register_buffer("learnt", torch.zeros(2, 3))

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss. In training, what this batch says of the distributions is learnt first."""
        grid = self.grid(scores)
        true, wrong = positives(grid), negatives(grid)
        if self.training:
            self._learn(grid, true, scores.step)
        texts = self._one_way(wrong[true.image], true.score, grid, scores, "texts")
        images = self._one_way(wrong.T[true.text], true.score, grid, scores, "images")
        return self.reduced(texts + images, grid)

    def _one_way(
        self, wrong: Tensor, positive: Tensor, grid: Grid, scores: Scores, what: str
    ) -> Tensor:
        """Of (P, C) candidates, -inf where none, against (P,) positives."""
        positive = positive.unsqueeze(1)
        weights = self._weights(wrong.detach(), positive.detach(), grid.scale)
        costs = hinge(wrong, positive, self.margin)
        if self.choice == "expected":
            return (costs * weights / weights.sum(1, keepdim=True).clamp(min=1e-30)).sum()
        noise = torch.empty(weights.shape).exponential_(generator=dice(scores, f"posterior {what}"))
        place = (weights / noise.to(weights)).argmax(1, keepdim=True)  # one by weight in each row
        return costs.gather(1, place).sum()

    def _weights(self, wrong: Tensor, positive: Tensor, scale: float) -> Tensor:
        """(P, C) how much each negative weighs; 0 for what is none."""
        none = wrong == -torch.inf
        far = ((wrong - positive) / scale).masked_fill(none, 0)
        weights = (-self.sharpness * far.square()).exp()
        count, mean, _ = self.learnt[0]
        match = self._match(wrong.masked_fill(none, 0))
        suspect = (match > SUSPECT) & (count > self.enough)
        weights = torch.where(suspect, (-self.sharpness * match).exp(), weights)
        low = (wrong <= mean - self.margin) & (count > 0)
        weights = weights.masked_fill(none | low, 0)
        lost = ~(weights > 0).any(1, keepdim=True)
        return torch.where(lost & (wrong == wrong.amax(1, keepdim=True)) & ~none, 1, weights)

    def _match(self, score: Tensor) -> Tensor:
        """Posterior that pairs of these scores are true ones; NaN before any were seen."""
        (_, mean, _), (_, other, _) = self.learnt
        spread, against = (self.learnt[:, 2] / self.learnt[:, 0]).clamp(min=1e-8)
        for_it, for_other = (score - mean).square() / spread, (score - other).square() / against
        odds: Tensor = (for_other - for_it + (against / spread).log()) / 2 + math.log(PRIOR)
        return odds.sigmoid()

    @torch.no_grad()
    def _learn(self, grid: Grid, true: Positives, step: int) -> None:
        """From true pairs that score higher than every wrong one of their row and column."""
        if self.period and step % self.period == 0 and step != self._anew:
            self.learnt.zero_()  # once, however often a step is judged
            self._anew = step
        hard = hardest(grid, true)
        first = (true.score > hard.text) & (true.score > hard.image)
        seen = torch.cat((hard.text[first], hard.image[first]))
        for row, new in zip(self.learnt, (true.score[first], seen[seen > -torch.inf])):
            if len(new):
                row.copy_(_merged(row, new.to(row)))


def _merged(known: Tensor, new: Tensor) -> Tensor:
    """Count, mean and squared deviations with those of (N,) new values."""
    count, mean, squares = known
    both = count + len(new)
    away = new.mean() - mean
    around = (new - new.mean()).square().sum()
    moved = mean + away * len(new) / both
    return torch.stack((both, moved, squares + around + away**2 * count * len(new) / both))
