"""Losses: pure functions of scores, one file per family.

>>> import torch
>>> scores, mined = torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.tensor([0.95, 0.6])
>>> loss = AdaptiveQuintuplet()
>>> value = loss(scores, hard_text=mined, hard_image=mined, cross=mined, companion=mined)
>>> round(value.item(), 3)
0.95

Registered losses are attributes, too; their modules are imported when they are first used.
"""

from __future__ import annotations

from counterfoil.core import registry
from counterfoil.losses import aoq, base, contrastive, ndgl, queue, schedules, tiled, triplet
from counterfoil.losses.aoq import *
from counterfoil.losses.base import *
from counterfoil.losses.contrastive import *
from counterfoil.losses.ndgl import *
from counterfoil.losses.queue import *
from counterfoil.losses.schedules import *
from counterfoil.losses.tiled import *
from counterfoil.losses.triplet import *

# a family's file lists what it exports, so that a new loss touches that file alone
__all__ = [
    *aoq.__all__,
    *base.__all__,
    *contrastive.__all__,
    *ndgl.__all__,
    *queue.__all__,
    *schedules.__all__,
    *tiled.__all__,
    *triplet.__all__,
]


def __getattr__(name: str) -> object:
    if name in registry.names("loss"):
        return registry.find("loss", name)
    raise AttributeError(f"module 'counterfoil.losses' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *registry.names("loss")]
