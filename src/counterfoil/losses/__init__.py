"""Losses: pure functions of scores, one file per family.

>>> import torch
>>> scores, mined = torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.tensor([0.95, 0.6])
>>> loss = AdaptiveQuintuplet()
>>> value = loss(scores, hard_text=mined, hard_image=mined, cross=mined, companion=mined)
>>> round(value.item(), 3)
0.95
"""

from __future__ import annotations

from counterfoil.losses.aoq import (
    AdaptiveQuintuplet,
    OfflineQuintuplet,
    OfflineTriplet,
    OnlineQuintuplet,
)
from counterfoil.losses.base import Loss, WeightedSum, weighted_sum
from counterfoil.losses.baselines import (
    DebiasedContrastiveLoss,
    DistanceWeightedTripletLoss,
    LSEHLoss,
    PosteriorTripletLoss,
    SelectiveHardNegativeLoss,
    SelfAdjustedCFMLoss,
    SelfExpandingLoss,
    SelfExploredCFMLoss,
)
from counterfoil.losses.contrastive import InfoNCELoss, InfoNCEWithCandidatesLoss, SigmoidLoss
from counterfoil.losses.ndgl import HardNegativeRectificationLoss, MarginDistillationLoss
from counterfoil.losses.queue import MomentumQueueLoss, UTOLoss
from counterfoil.losses.schedules import LinearRamp, StartAt, SwitchAfter
from counterfoil.losses.tags import WordLoss
from counterfoil.losses.tiled import tiled_hardest_triplet, tiled_info_nce
from counterfoil.losses.triplet import (
    HardestTripletLoss,
    MarginRankingLoss,
    MeanTripletLoss,
    SemiHardTripletLoss,
    SumTripletLoss,
)

# the names in the papers
DCLLoss = HCLLoss = DebiasedContrastiveLoss  # tau_plus=, beta=
FNELoss = PosteriorTripletLoss
HNRLoss = HardNegativeRectificationLoss
MRLoss = MarginDistillationLoss
NegCLIPLoss = InfoNCEWithCandidatesLoss
SelHNLoss = SelectiveHardNegativeLoss
SigLIPLoss = SigmoidLoss
VSEPPLoss = HardestTripletLoss

__all__ = [
    "AdaptiveQuintuplet",
    "DCLLoss",
    "DebiasedContrastiveLoss",
    "DistanceWeightedTripletLoss",
    "FNELoss",
    "HCLLoss",
    "HNRLoss",
    "HardNegativeRectificationLoss",
    "HardestTripletLoss",
    "InfoNCELoss",
    "InfoNCEWithCandidatesLoss",
    "LSEHLoss",
    "LinearRamp",
    "Loss",
    "MRLoss",
    "MarginDistillationLoss",
    "MarginRankingLoss",
    "MeanTripletLoss",
    "MomentumQueueLoss",
    "NegCLIPLoss",
    "OfflineQuintuplet",
    "OfflineTriplet",
    "OnlineQuintuplet",
    "PosteriorTripletLoss",
    "SelHNLoss",
    "SelectiveHardNegativeLoss",
    "SelfAdjustedCFMLoss",
    "SelfExpandingLoss",
    "SelfExploredCFMLoss",
    "SemiHardTripletLoss",
    "SigLIPLoss",
    "SigmoidLoss",
    "StartAt",
    "SumTripletLoss",
    "SwitchAfter",
    "UTOLoss",
    "VSEPPLoss",
    "WeightedSum",
    "WordLoss",
    "tiled_hardest_triplet",
    "tiled_info_nce",
    "weighted_sum",
]
