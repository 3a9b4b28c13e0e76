"""A loss of mined negatives: one class with a `forward`, for plain loops, sums and the trainer."""

import argparse
from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import Needs, Role, Scores
from counterfoil.losses import HardestTripletLoss, Loss, WeightedSum


@final
class SoftMarginLoss(Loss):
    """log(1 + exp((negative - positive) / temperature)) of every mined negative text.

    Args:
        temperature: in units of a score.
    """

    # the trainer draws and scores these pairs, and no wrong pairs of the batch, which are not read
    needs = Needs(roles=frozenset({Role.HARD_TEXT}), block=False)

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__(reduction="mean")
        self.temperature = temperature

    def forward(self, scores: Scores) -> Tensor:
        grid = self.matrix(scores)  # grid.anchor: (B,) scores of the true pairs
        mined = scores.pairs[Role.HARD_TEXT]  # (B, N), N mined texts for each
        excess = (mined - grid.anchor.unsqueeze(1)) / self.temperature
        return self.reduce(torch.nn.functional.softplus(excess).mean(1).sum(), grid)


def main() -> None:
    """Use the loss alone and in a weighted sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="the same: it is always tiny")
    parser.parse_args()
    torch.manual_seed(0)
    scores, hard_text = torch.rand(4, 4, requires_grad=True), torch.rand(4, 5)

    loss = SoftMarginLoss()(scores, hard_text=hard_text)
    loss.backward()
    print("alone:", round(loss.item(), 3))

    terms = {"triplet": (1.0, HardestTripletLoss()), "soft": (0.5, SoftMarginLoss())}
    losses = WeightedSum(terms=terms)(scores, hard_text=hard_text)
    print("in a sum:", {name: round(value.item(), 3) for name, value in losses.items()})

    try:
        SoftMarginLoss()(scores)
    except ValueError as error:
        print("without mined texts:", error)


if __name__ == "__main__":
    main()
