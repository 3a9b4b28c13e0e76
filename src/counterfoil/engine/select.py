"""Picking the few from the many: what the reducers need of a machine.

On the CPU NumPy's vectorised partition, comparison and radix sort are several times faster than
torch's; elsewhere torch does the same. Both give the same values.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

NOTHING = -(2**63)
LOWEST = torch.finfo(torch.float32).min
_LAST = 2**32 - 1
_FLIP = 0x7FFFFFFF
_SHORT = 2**15


def rank_keys(scores: Tensor, rows: Tensor) -> Tensor:
    """Whole numbers that order like (score descending, row ascending), so that none can tie.

    The high half is the float32's bit pattern made monotone, the low half counts down the row.

    Args:
        scores: float32, without NaN.
        rows: long, same shape, below 2**32.
    """
    bits = (scores + 0.0).view(torch.int32)  # adding zero turns -0.0 into 0.0
    monotone = bits ^ ((bits >> 31) & _FLIP)
    return (monotone.long() << 32) + (_LAST - rows)


def scores_of(keys: Tensor) -> Tensor:
    """The float32 scores in rank keys; -inf where a key is `NOTHING`."""
    monotone = (keys >> 32).int()
    bits = monotone ^ ((monotone >> 31) & _FLIP)
    return bits.view(torch.float32).masked_fill(keys == NOTHING, -torch.inf)


def rows_of(keys: Tensor) -> Tensor:
    """The long rows in rank keys; -1 where a key is `NOTHING`."""
    return (_LAST - (keys & _LAST)).masked_fill(keys == NOTHING, -1)


def reaching(scores: Tensor, floor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where a contiguous (i, t) block of scores is at least the floor, in row-major order.

    Args:
        scores: (i, t).
        floor: (i, 1) or (1, t).

    Returns:
        (n,) scores, (n,) long rows and (n,) long columns.
    """
    if scores.device.type == "cpu":
        found = np.flatnonzero(scores.numpy() >= floor.numpy())
        flat, row = torch.from_numpy(found), torch.from_numpy(found // scores.shape[1])
        column = flat - row * scores.shape[1]
    else:
        row, column = (scores >= floor).nonzero(as_tuple=True)
        flat = row * scores.shape[1] + column
    return scores.flatten().index_select(0, flat), row, column


def best(values: Tensor, k: int) -> Tensor:
    """(Q, k) largest of (Q, C) values, the least of them first, the others in any order.

    All C of them where C is at most k. The values themselves are left in disorder.
    """
    k = min(k, values.shape[1])
    if values.device.type == "cpu":
        split = values.shape[1] - k
        values.numpy().partition(split, axis=1)
        return values[:, split:]
    return values.topk(k, 1).values.flip(1)


def descending(values: Tensor) -> Tensor:
    """(Q, C) values sorted along each row, largest first."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=1)).flip(1)
    return values.sort(1, descending=True).values


def grouping(labels: Tensor, groups: int) -> Tensor:
    """Places that bring equal labels together, in order of label and then of place.

    Args:
        labels: (n,) long, from 0 to `groups` - 1.
        groups: how many labels there can be.
    """
    if labels.device.type == "cpu" and groups <= _SHORT:
        short = labels.numpy().astype(np.int16)  # two bytes are sorted by radix
        return torch.from_numpy(np.argsort(short, kind="stable"))
    return labels.sort(stable=True).indices
