"""From one similarity per query to one score."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregate = Literal["LogSumExp", "Mean", "Max", "Sum"]


def aggregate(
    kind: Aggregate, similarity: Tensor, dim: int, mask: Tensor | None, sharpness: float
) -> Tensor:
    """One score from the similarities along `dim`.

    LogSumExp is log(sum(exp(sharpness * s))) / sharpness (SCAN, ECCV 2018, eq. 6), not divided by
    the count, so it and Sum grow with the number of queries.

    Args:
        kind: what to do.
        similarity: (..., Q, ...).
        dim: axis of the queries.
        mask: bool with as many axes, broadcastable, True where a query is real; None when all are.
        sharpness: lambda of LogSumExp.
    """
    if kind in ("LogSumExp", "Max"):
        if mask is not None:
            similarity = similarity.masked_fill(~mask, -torch.inf)
        if kind == "Max":
            return similarity.amax(dim)
        return (similarity * sharpness).logsumexp(dim) / sharpness
    if mask is not None:
        similarity = similarity.masked_fill(~mask, 0)
    total = similarity.sum(dim)
    if kind == "Sum":
        return total
    if mask is None:
        return total / similarity.shape[dim]
    return total / mask.sum(dim).clamp(min=1)
