"""The ablation of AOQ whose derived pairs come from the batch."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.objectives.block import hinge, negatives, positives
from counterfoil.objectives.offline import OFFLINE, in_batch, mined, online_negatives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Grid, Scores


@final
class OnlineQuintuplet(Term):
    """`OfflineTriplet` plus two hinges against pairs derived from the in-batch hard negatives.

    AOQ (https://arxiv.org/abs/2003.03669), Table 3, "OnlineQuin": Eq. 4 whose derived pairs are
    those of the online negatives, i_on with t_on and the image of t_on with a text of i_on; the
    authors released no code for it. Of several texts of i_on the one that scores highest with the
    image of t_on is taken. Where t_on describes i_on, as where the batch has no negative, there is
    no derived pair.

    Args:
        online: margin of the in-batch hinges.
        offline: margin of the mined and of the derived hinges.
        reduction: see `Term`.

    >>> grid = Grid(torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.7, 0.6], [0.5, 0.95, 0.8]]),
    ...             torch.eye(3).bool(), anchor=torch.tensor([0.9, 0.7, 0.8]))
    >>> pairs = {role: torch.zeros(3, 1) for role in OnlineQuintuplet().needs}
    >>> round(OnlineQuintuplet()(Scores({"inference": grid}, pairs)).item(), 3)
    1.05
    """

    needs = OFFLINE

    def __init__(
        self, *, online: float = 0.2, offline: float = 0.0, reduction: Reduction = "sum"
    ) -> None:
        super().__init__(reduction=reduction)
        self.online, self.offline = online, offline

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        online = in_batch(grid, online_negatives(grid), self.online)
        offline = mined(scores, grid, self.needs, self.offline)
        derived = hinge(_derived(grid), grid.anchor, self.offline).sum()
        return self.reduced(online + offline + derived, grid)


def _derived(grid: Grid) -> Tensor:
    """(2, B) scores of the derived pairs, -inf where there is none."""
    true, wrong = positives(grid), negatives(grid)
    text = wrong.argmax(1)[true.image]
    image = wrong.argmax(0)[true.text]
    owner = true.image[text]  # texts of the block are the anchors, in order
    real = (wrong[true.image, text] != -torch.inf) & (wrong[image, true.text] != -torch.inf)
    real = real & (owner != image)
    companion = grid.scores[owner].masked_fill(~grid.positive[image], -torch.inf).amax(1)
    return torch.stack([grid.scores[image, text], companion]).masked_fill(~real, -torch.inf)
