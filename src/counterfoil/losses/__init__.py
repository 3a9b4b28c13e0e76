"""Losses: pure functions of scores, one file per family.

>>> import torch
>>> scores, mined = torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.tensor([0.95, 0.6])
>>> loss = AdaptiveQuintuplet()
>>> value = loss(scores, hard_text=mined, hard_image=mined, cross=mined, companion=mined)
>>> round(value.item(), 3)
0.95
"""

from __future__ import annotations

from counterfoil.losses import aoq, base, contrastive, ndgl, queue, schedules, tiled, triplet
from counterfoil.losses.aoq import *
from counterfoil.losses.base import *
from counterfoil.losses.contrastive import *
from counterfoil.losses.ndgl import *
from counterfoil.losses.queue import *
from counterfoil.losses.schedules import *
from counterfoil.losses.tiled import *
from counterfoil.losses.triplet import *
from counterfoil.papers.compared import losses as baselines
from counterfoil.papers.compared.losses import *
from counterfoil.papers.tags import losses as tags
from counterfoil.papers.tags.losses import *

# a family's file lists what it exports, so that a new loss touches that file alone
__all__ = [
    *aoq.__all__,
    *base.__all__,
    *baselines.__all__,
    *contrastive.__all__,
    *ndgl.__all__,
    *queue.__all__,
    *schedules.__all__,
    *tags.__all__,
    *tiled.__all__,
    *triplet.__all__,
]
