"""Region relationship reasoning: every region is told what the others hold (VSRN, section 3.1)."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from counterfoil.models.blocks.norm import normed_tokens
from counterfoil.models.blocks.tower import hidden, positive

RegionNorm = Literal["channel", "vector"]


@final
class Relation(nn.Module):
    """v + norm(W (R v)) with R = theta(v) phi(v)^T / number of regions (eq. 2 to 4).

    It begins as the identity: scale and shift of the normalisation start at 0. What is added is
    cubic in v, so regions far from unit scale may overflow (V4).

    Departs from the authors' code in: padding takes part neither in R nor in the statistics, and
    a single region is normalised by the running statistics.
    """

    def __init__(self, *, width: int) -> None:
        """Keyword arguments.

        Args:
            width: of the region vectors.
        """
        super().__init__()
        positive(width=width)
        self.theta, self.phi = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        nn.init.zeros_(self.norm.weight)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(N, R, D) regions, zero at padding, to the same; without a mask all are real."""
        relation = self.theta(tokens) @ self.phi(tokens).mT
        if mask is None:
            change = self.out(relation @ self.value(tokens) / tokens.shape[1])
        else:
            count = mask.sum(1).clamp(min=1).view(-1, 1, 1)
            change = self.out(relation @ hidden(self.value(tokens), mask) / count)
        return tokens + normed_tokens(self.norm, change, mask)


def level(kind: RegionNorm, tokens: Tensor) -> Tensor:
    """(N, R, D) regions, zero at padding, at length 1; what is zero stays zero.

    Args:
        kind: "vector": every region on its own; "channel": every feature over the regions of an
            image, as the authors' code has it (V1).
        tokens: the regions.
    """
    length = torch.linalg.vector_norm(tokens, dim=1 if kind == "channel" else 2, keepdim=True)
    levelled: Tensor = tokens / length.masked_fill(length == 0, 1)
    return levelled
