"""Longer tables of text positions, for captions beyond what a model was trained on.

Long-CLIP (Zhang et al., ECCV 2024, https://arxiv.org/abs/2403.15378), section 3.1: the first 20
positions, which short captions have trained well, stay; the others are stretched by 4, with linear
interpolation in between. CLIP's 77 positions become 248. A caption of up to 20 tokens is encoded as
before; longer ones need further training.

Departs from the authors' code in: one table is trained, where theirs freezes the first 20 positions
in a copy; their second loss, short captions against a few components of the images, is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

KEPT, FACTOR = 20, 4


def stretched_length(length: int) -> int:
    """Return the number of positions after stretching: 248 for 77.

    Raises:
        ValueError: there is nothing to stretch.
    """
    if length <= KEPT + 1:
        raise ValueError(
            f"a text encoder of {length} positions cannot be stretched: the first {KEPT} stay as "
            "they are; leave --long-captions out"
        )
    return FACTOR * length - (FACTOR - 1) * KEPT


def stretched_positions(table: Tensor) -> Tensor:
    """Return the table (4 N - 60, D) stretched from (N, D).

    >>> table = torch.arange(22.0).unsqueeze(1)
    >>> stretched_positions(table)[18:, 0].tolist()
    [18.0, 19.0, 20.0, 20.25, 20.5, 20.75, 21.0, 21.25, 21.5, 21.75]
    """
    stretched_length(len(table))  # refuses a short one
    rest = table[KEPT:]
    # the last position goes on as the two last ones differ
    steps = torch.cat([rest[1:] - rest[:-1], rest[-1:] - rest[-2:-1]])
    shares = torch.arange(FACTOR, dtype=table.dtype, device=table.device) / FACTOR
    between = rest.unsqueeze(1) + shares.view(1, -1, 1) * steps.unsqueeze(1)
    return torch.cat([table[:KEPT], between.flatten(0, 1)])


def load_stretched(longer: nn.Module, shorter: nn.Module, key: str) -> None:
    """Copy weights into a model that differs in its number of text positions alone.

    Args:
        longer: the model to fill.
        shorter: where the weights come from.
        key: name of the table of positions in both.
    """
    state: dict[str, Any] = dict(shorter.state_dict())
    state[key] = stretched_positions(state[key])
    longer.load_state_dict(state)
