"""External space attention: every dimension chooses among the elements by itself."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from counterfoil.models.blocks.tower import hidden, positive, projection
from counterfoil.records import Encoded


@final
class External(nn.Module):
    """Sum of an item's vectors with weights of their own for each dimension.

    Dimension d of the result is sum_n softmax_n(a_nd) f_nd, where a = W f + b: from a bag of L
    vectors L * D weights, not L (ESA, Zhu et al., IEEE TCSVT 2023).

    Departs from the authors' code in: what is left out has a logit of -inf, theirs -1e4; an item of
    which nothing would be left keeps all; and W begins alike for images, BERT and GRU, uniform
    within sqrt(6 / (in + out)), where theirs for the GRU begins as PyTorch's layers do.
    """

    def __init__(self, *, width: int) -> None:
        """Keyword arguments.

        Args:
            width: of the vectors.
        """
        super().__init__()
        positive(width=width)
        self.fc = projection(width, width)

    def forward(self, bag: Encoded, keep: Tensor | None = None) -> Tensor:
        """One or more vectors per item; zero for an item without any.

        Args:
            bag: (N, L, D).
            keep: (N, C, L) bool, which elements each of C copies of an item is made of; None for
                one copy of all.

        Returns:
            (N, C, D).
        """
        tokens = hidden(bag.tokens, bag.mask)
        logits = self.fc(tokens)
        masks = bag.mask.unsqueeze(1)
        if keep is not None:
            kept = keep & masks
            masks = torch.where(kept.any(2, keepdim=True), kept, masks)
        return torch.stack([_weighed(tokens, logits, mask) for mask in masks.unbind(1)], 1)


def _weighed(tokens: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """(N, D) sums of (N, L, D) tokens, zero at padding, over what a mask (N, L) leaves."""
    out = (~mask & mask.any(1, keepdim=True)).unsqueeze(-1)  # an empty item: zeros, not NaN
    weights = logits.masked_fill(out, -torch.inf).softmax(1)
    return (weights * tokens).sum(1)
