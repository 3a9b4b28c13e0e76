"""Several copies of every item in one batch, each judged against its hardest true partner."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor

from counterfoil.core.literals import parse_literal
from counterfoil.objectives.block import hinge, negatives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Grid, Scores

EXPANDED = "expanded"
Against = Literal["hardest", "all", "mean"]


@final
class SelfExpanding(Term):
    """Triplet over h copies of each image and of each text: h images, h texts and h x h pairs each.

    A copy of an image is compared with the copy of its caption that it likes least, and with copies
    of other captions as negatives; a copy of a caption likewise. Every true pair of a batch, of
    which an image may have several, gives 2h hinges. With one copy it is `HardestTriplet`, or
    `SumTriplet` against all.

    The self-expanding triplet loss of ESA (Zhu et al., IEEE TCSVT 2023), which warms up against all
    negatives: ``Then(first=SelfExpanding(against="all"), second=SelfExpanding(), steps=...)``.
    Departs from the authors' code in: negatives are told by id ("diagonal" positives give the
    authors' value), and equally hard ones share the gradient.

    Args:
        against: the "hardest" negative, the sum over "all", or their "mean".
        margin: in units of a score.
        reduction: see `Term`; the "mean" is over anchor pairs, not over their copies.

    Raises:
        ValueError: against something else.

    >>> import torch
    >>> from counterfoil.records import Grid
    >>> s = torch.tensor([[0.9, 0.7, 0.6, 0.5], [0.8, 0.8, 0.1, 0.2],
    ...                   [0.1, 0.3, 0.9, 0.9], [0.2, 0.2, 0.8, 0.9]])
    >>> positive = torch.eye(2).bool().repeat_interleave(2, 0).repeat_interleave(2, 1)
    >>> grid = Grid(s, positive, anchor=torch.tensor([0.7, 0.8]), copies=2)
    >>> round(SelfExpanding(margin=0.2)(Scores({"expanded": grid})).item(), 3)
    0.1
    """

    needs_grid = EXPANDED

    def __init__(
        self,
        *,
        against: Against = "hardest",
        margin: float = 0.2,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        parse_literal(Against, against, "what a copy is held against")
        self.against: Against = against
        self.margin = margin

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        images, texts = self.directions(grid)
        return self.reduced(images + texts, grid)

    def directions(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """Sums over copies of images, for which texts are wrong, and over copies of texts."""
        copies = grid.copies
        text, image = grid.positive[::copies, ::copies].T.nonzero(as_tuple=True)
        images, texts = (size // copies for size in grid.scores.shape)
        blocks = grid.scores.view(images, copies, texts, copies)[image, :, text]  # (P, h, h)
        wrong = negatives(grid)
        rows = self._one_way(wrong.view(images, copies, -1)[image], blocks.amin(2))
        columns = self._one_way(wrong.T.reshape(texts, copies, -1)[text], blocks.amin(1))
        return rows, columns

    def _one_way(self, wrong: Tensor, true: Tensor) -> Tensor:
        """Of (P, h, C) candidates, -inf where none, against (P, h) positives."""
        if self.against == "hardest":
            return hinge(wrong.amax(2), true, self.margin).sum()
        costs = hinge(wrong, true.unsqueeze(2), self.margin)
        if self.against == "all":
            return costs.sum()
        return (costs.sum(2) / wrong.isfinite().sum(2).clamp(min=1)).sum()
