"""Hinges whose margin grows with how near the wrong caption is in meaning (LSEH)."""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
from torch import Tensor

from counterfoil.core.literals import parse_choice
from counterfoil.objectives.block import hinge, positives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Grid, Scores

Against = Literal["hardest", "sum"]
SameImage = Literal["excluded", "no margin"]


@final
class SemanticMargin(Term):
    """Hinge with the margin alpha + lam * F, where F is the guide, in both directions.

    LSEH (Gong and Cosma, "Improving visual-semantic embeddings by learning semantically-enhanced
    hard negatives", Pattern Recognition 2023). A nearer caption has to stay further below the true
    one. The negative is chosen with its margin, so the guide says too which one is hardest.
    Departs from the authors' code in: pairs that are true by id are no negatives, even where the
    batch calls them wrong; theirs are, at margin 0: ``same_image="no margin"``, which wants
    "diagonal" positives. A guide of -inf marks such pairs.

    Args:
        alpha: margin of a caption that has nothing in common, in units of a score.
        lam: what the nearest caption adds to it.
        against: the "hardest" negative of the batch, or the "sum" over all.
        same_image: what becomes of pairs that the guide marks.
        reduction: see `Term`.

    Raises:
        ValueError: a word that is not known.

    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> near = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1.0, 0.0], [0.4, 0.0, 1.0]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal(), guide=near)
    >>> scores = Scores({"inference": grid})
    >>> round(SemanticMargin(alpha=0.2, lam=0.0)(scores).item(), 3)
    0.8
    >>> round(SemanticMargin(alpha=0.2, lam=0.1)(scores).item(), 3)
    0.88
    """

    needs_guide = True

    def __init__(
        self,
        *,
        alpha: float = 0.185,
        lam: float = 0.025,
        against: Against = "hardest",
        same_image: SameImage = "excluded",
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        for name, given, kinds in (
            ("against", against, get_args(Against)),
            ("same_image", same_image, get_args(SameImage)),
        ):
            parse_choice(kinds, given, f"a value of {name!r}")
        self.alpha, self.lam = alpha, lam
        self.against, self.same_image = against, same_image

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        texts, images = self.directions(grid)
        return self.reduced(texts + images, grid)

    def directions(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """Sums of the hinges against wrong texts and against wrong images."""
        true = positives(grid)
        wrong = (grid.scores + self.margin(grid)).masked_fill(self._left_out(grid), -torch.inf)
        if self.against == "hardest":
            texts, images = wrong.amax(1)[true.image], wrong.amax(0)[true.text]
            return hinge(texts, true.score, 0).sum(), hinge(images, true.score, 0).sum()
        positive = true.score.unsqueeze(1)
        return (
            hinge(wrong[true.image], positive, 0).sum(),
            hinge(wrong.T[true.text], positive, 0).sum(),
        )

    def margin(self, grid: Grid) -> Tensor:
        """(I, T) margins, 0 for true pairs."""
        assert grid.guide is not None, "the step checks that there is a guide"
        none = grid.positive | grid.guide.isneginf()
        return (self.alpha + self.lam * grid.guide).masked_fill(none, 0)

    def _left_out(self, grid: Grid) -> Tensor:
        """(I, T) bool, True for pairs that are no negatives."""
        assert grid.guide is not None, "the step checks that there is a guide"
        if self.same_image == "no margin":
            return grid.positive
        return grid.positive | grid.guide.isneginf()
