"""Batch normalisation of rows, over those that are real."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm


def normed(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """(P, D) batch normalisation; by the running statistics where a batch has only one row."""
    if len(rows) > 1 or not norm.training:
        normal: Tensor = norm(rows)
        return normal
    return batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def normed_tokens(norm: nn.BatchNorm1d, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """(N, L, D) the same over all tokens of all items.

    Args:
        norm: of D features.
        tokens: of the items.
        mask: (N, L), False for tokens that take no part and become zero; None: all take part.
    """
    if mask is None:
        return normed(norm, tokens.flatten(0, 1)).view_as(tokens)
    rows = normed(norm, tokens[mask])
    spread = torch.zeros(tokens.shape, dtype=rows.dtype, device=rows.device)
    return spread.masked_scatter(mask.unsqueeze(-1), rows)
