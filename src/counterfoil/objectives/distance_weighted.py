"""Triplets whose negatives are drawn so that every distance is seen alike."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.objectives.block import hinge
from counterfoil.objectives.term import Reduction, Term, dice
from counterfoil.records import INFERENCE, Grid, Scores


@final
class DistanceWeighted(Term):
    """Hinge against one negative for each true pair, drawn by its distance from the anchor.

    On a sphere most items lie at a right angle. A negative is drawn with the inverse of the density
    of its distance, in both directions, so near ones come first: of scores around 0.4 the highest
    one nearly always. Wu et al., ICCV 2017 (https://arxiv.org/abs/1706.07567), with a
    fixed margin as HREM has it (https://github.com/CrossmodalGroup/HREM).

    Scores are read as cosines: a distance is sqrt(2 - 2 score / scale), see `Grid.scale`.

    Departs from the authors' code in: negatives beyond `furthest` do not count when the weights are
    scaled, where theirs may leave no legal one any weight; an anchor without a legal negative costs
    nothing, where theirs then drops the loss of the whole direction.

    Args:
        margin: in units of a score.
        nearest: distances below it count as this one.
        furthest: negatives from here on are never drawn; HREM has 1.7 on Flickr30K, 1.9 on COCO.
        dimensions: of the sphere.
        reduction: see `Term`.
        grid: name of the grid it judges.

    Raises:
        ValueError: distances or dimensions that are not possible.

    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal())
    >>> round(DistanceWeighted(margin=0.2)(Scores({"inference": grid})).item(), 3)
    0.8
    """

    def __init__(
        self,
        *,
        margin: float = 0.2,
        nearest: float = 0.5,
        furthest: float = 1.7,
        dimensions: int = 512,
        reduction: Reduction = "sum",
        grid: str = INFERENCE,
    ) -> None:
        super().__init__(reduction=reduction)
        if not 0 < nearest < furthest < 2:
            raise ValueError(
                f"distances from {nearest} to {furthest} are not possible between unit vectors; "
                "give two between 0 and 2, the nearest first"
            )
        if dimensions < 3:
            raise ValueError(f"a sphere of {dimensions} dimensions is too small; give 3 or more")
        self.margin, self.needs_grid = margin, grid
        self.nearest, self.furthest, self.dimensions = nearest, furthest, dimensions

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        rng = dice(scores, f"distance-weighted negatives of {grid.name}")
        return self.judged(grid, torch.rand(2 * int(grid.positive.sum()), generator=rng))

    def judged(self, grid: Grid, uniforms: Tensor) -> Tensor:
        """The loss with given draws.

        Args:
            grid: what is judged.
            uniforms: (2 P,) from 0 to 1, of the P true pairs image after image, then of those text
                after text.
        """
        by_images, by_texts = uniforms.to(grid.scores.device).chunk(2)
        texts = self._one_way(grid.scores, grid, grid.positive, by_images)
        images = self._one_way(grid.scores.T, grid, grid.positive.T, by_texts)
        return self.reduced(texts + images, grid)

    @torch.no_grad()
    def chances(self, scores: Tensor, positive: Tensor) -> Tensor:
        """(A, C) with which each anchor draws each candidate; zeros where none may be drawn.

        Args:
            scores: (A, C) cosines.
            positive: (A, C) bool.
        """
        distance = (2 - 2 * scores).clamp(min=0).sqrt().clamp(min=self.nearest)
        legal = ~positive & (distance < self.furthest)
        near = distance.clamp(max=self.furthest)
        log = (2 - self.dimensions) * near.log()
        log = log - (self.dimensions - 3) / 2 * (1 - near.square() / 4).log()
        return log.masked_fill(~legal, -torch.inf).softmax(1).masked_fill(~legal, 0)

    def _one_way(self, scores: Tensor, grid: Grid, positive: Tensor, uniforms: Tensor) -> Tensor:
        anchor, true = positive.nonzero(as_tuple=True)
        chances = self.chances(scores / grid.scale, positive)[anchor]
        negative = drawn(chances, uniforms)
        wrong = scores[anchor, negative].masked_fill(~chances.any(1), -torch.inf)
        return hinge(wrong, scores[anchor, true], self.margin).sum()


def drawn(chances: Tensor, uniforms: Tensor) -> Tensor:
    """(P,) one column of each row, the first whose chances up to it reach the row's uniform.

    Args:
        chances: (P, C) that sum to 1; of a row of zeros the first column is drawn.
        uniforms: (P,) from 0 to 1.
    """
    reached = chances.cumsum(1)
    # a sum of rounded chances may end below 1, and no column of chance 0 is to be drawn
    wanted = torch.minimum(uniforms.to(chances.dtype), reached[:, -1]).unsqueeze(1)
    return ((reached >= wanted) & (chances > 0)).long().argmax(1)
