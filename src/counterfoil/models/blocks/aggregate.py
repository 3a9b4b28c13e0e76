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
        mask: bool, True where a query is real; None when all are. Broadcastable, and its axis `dim`
            is that of the queries too.
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


Pooling = Literal["LSE", "Mean", "Max", "Sum", "Softmax"]


def pooled(
    kind: Pooling, similarity: Tensor, dim: int, mask: Tensor | None, temperature: float
) -> Tensor:
    """One score from the similarities along `dim` (CHAN, CVPR 2023, section 3.3).

    "LSE" is log(sum(exp(s / temperature))), in units of the similarity over the temperature;
    "Softmax" is the mean weighted with softmax(s / temperature). The rest is `aggregate`'s.

    Args:
        kind: what to do.
        similarity: (..., Q, ...).
        dim: axis of the queries.
        mask: as in `aggregate`.
        temperature: of "LSE" and "Softmax".
    """
    if kind == "LSE":
        return aggregate("LogSumExp", similarity, dim, mask, 1 / temperature) / temperature
    if kind != "Softmax":
        return aggregate(kind, similarity, dim, mask, 1 / temperature)
    if mask is not None:
        similarity = similarity.masked_fill(~mask, 0)
    sharp = similarity / temperature
    weight = sharp if mask is None else sharp.masked_fill(~mask, -torch.inf)
    return (weight.softmax(dim) * similarity).sum(dim)
