"""New words for the slots of masked captions.

TAGS (https://arxiv.org/abs/2111.03349, Eq. 2): the words of a slot are drawn from the softmax of
its logits divided by a temperature, each slot by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.reading import Slots


def probabilities(logits: Tensor, *, temperature: float, banned: Tensor | None = None) -> Tensor:
    """(M, V) how likely each word is written in each slot; rows sum to 1.

    Args:
        logits: (M, V).
        temperature: above 1 makes unlikely words likelier.
        banned: (V,) bool, words that are never written; None for the authors' form, which writes
            special tokens too (T4 of their code).
    """
    logits = logits.detach().float() / temperature
    if banned is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    return logits.softmax(1)


def drawn(chances: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """(M, C) long, words drawn with replacement, alike on every device.

    Args:
        chances: (M, V).
        count: C, words for each slot.
        rng: on the CPU.
    """
    below = chances.double().cumsum(1)
    at = torch.rand(len(chances), count, generator=rng, dtype=torch.double) * (1 - 1e-12)
    return torch.searchsorted(below, at.to(below.device) * below[:, -1:], right=True)


def refilled(values: Tensor, slots: Slots, words: Tensor) -> Tensor:
    """(P * C, L) token ids of P masked texts, each with C sets of words in its slots.

    Args:
        values: (P, L) long, masked.
        slots: M places.
        words: (M, C) long.
    """
    out = values.unsqueeze(1).repeat(1, words.shape[1], 1)
    out[slots.pair, :, slots.place] = words
    return out.flatten(0, 1)
