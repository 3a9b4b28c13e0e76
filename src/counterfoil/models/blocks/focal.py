"""Focal attention: what a query attends to less than to the rest of its context is dropped."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Rule = Literal["equal", "prob"]
Focus = Rule | Literal["none"]
ROUNDINGS = 64  # a weight this few roundings below the bar counts as above it


def focused(focus: Focus, weight: Tensor, context: int, mask: Tensor | None) -> Tensor:
    """The weights, with 0 for those that are not kept (BFAN, ACM MM 2019).

    "equal" keeps what is above the mean; "prob" keeps k where sum_j (w_k - w_j) sqrt(w_j) > 0,
    which is w_k > sum_j w_j^1.5 / sum_j sqrt(w_j). Neither depends on the scale of the weights,
    and the choice is not differentiated.

    Departs from the authors' code in: the largest weight is always kept, so a uniform context
    stays uniform instead of giving NaN (B1).

    Args:
        focus: the rule.
        weight: not negative, 0 at padding.
        context: axis of the context.
        mask: bool, broadcastable, True where the context is real; None when all of it is.
    """
    if focus == "none":
        return weight
    with torch.no_grad():
        bar = _mean(weight, context, mask) if focus == "equal" else _balance(weight, context)
        dropped = weight <= bar * (1 - ROUNDINGS * torch.finfo(weight.dtype).eps)
    return weight.masked_fill(dropped, 0)


def _mean(weight: Tensor, context: int, mask: Tensor | None) -> Tensor:
    total = weight.sum(context, keepdim=True)
    if mask is None:
        return total / weight.shape[context]
    return total / mask.sum(context, keepdim=True).clamp(min=1)


def _balance(weight: Tensor, context: int) -> Tensor:
    """The mean of the weights, each counted with its root."""
    root = weight.sqrt()
    share = root.sum(context, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
    return (weight * root).sum(context, keepdim=True) / share
