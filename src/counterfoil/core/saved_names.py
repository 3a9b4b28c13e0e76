"""Stable names of classes in saved files: model folders, recipes, stores, digests.

A configuration is saved as ``{"call": "SCAN", ...}``. When a class is moved or renamed, its name in
files stays and only its place in the table below changes. A loss without an entry is saved by its
name in `counterfoil.losses`; a class of another package as ``package.module:Class``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from counterfoil.core.registry import SHIPPED, names, saved_by_name

PLACES: Mapping[str, str] = {  # name in files -> module:class of this version
    "Adapted": "counterfoil.models.frozen:FrozenWithAdapters",
    "Adapters": "counterfoil.models.frozen:FrozenAdapters",
    "AdaptiveQuintuplet": "counterfoil.losses.aoq:AdaptiveQuintuplet",
    "After": "counterfoil.losses.schedules:StartAt",
    "AttentionFiltration": "counterfoil.papers.models.sgraf:AttentionFiltration",
    "BFAN": "counterfoil.papers.models.bfan:BFAN",
    "BLIP": "counterfoil.models.blip:BLIP",
    "BatchGraph": "counterfoil.papers.models.hrem:BatchGraph",
    "Bert": "counterfoil.models.layers.pretrained:BertTextTower",
    "BoxedRegions": "counterfoil.papers.models.uniter:RegionEmbedding",
    "CHAN": "counterfoil.papers.models.chan:CHAN",
    "CandidateConfig": "counterfoil.negatives.sampling:CandidateConfig",
    "Captioner": "counterfoil.papers.models.vsrn:Captioner",
    "ClassHead": "counterfoil.models.layers.joint_encoder:ClassHead",
    "CrossEncoderModel": "counterfoil.models.sentence_transformers:CrossEncoderModel",
    "DenseEmbedder": "counterfoil.models.sentence_transformers:DenseEmbedder",
    "Dependencies": "counterfoil.papers.models.xdim:Dependencies",
    "Desk": "counterfoil.papers.tags.inputs:GeneratorInputs",
    "DistanceWeighted": "counterfoil.papers.compared.losses:DistanceWeightedTripletLoss",
    "DivE": "counterfoil.papers.models.dive:DivE",
    "DualEncoder": "counterfoil.models.clip:DualEncoder",
    "ESA": "counterfoil.papers.models.esa:ESA",
    "Edited": "counterfoil.papers.compared.counterfactual:CounterfactualSampler",
    "EnhancedRegions": "counterfoil.papers.models.user:EnhancedRegions",
    "External": "counterfoil.papers.models.esa:ExternalAttention",
    "FILIP": "counterfoil.models.filip:FILIP",
    "FrozenPatches": "counterfoil.models.layers.pretrained:FrozenPatches",
    "GPO": "counterfoil.papers.models.gpo:GPO",
    "GRU": "counterfoil.models.layers.towers:GRU",
    "GeneralPool": "counterfoil.papers.models.gpo:GeneralizedPooling",
    "GlobalPool": "counterfoil.papers.models.sgraf:GlobalPool",
    "GraphReasoning": "counterfoil.papers.models.sgraf:GraphReasoning",
    "Grids": "counterfoil.models.layers.pretrained:TimmGridTower",
    "HREM": "counterfoil.papers.models.hrem:HREM",
    "HardestRectified": "counterfoil.losses.ndgl:HardNegativeRectificationLoss",
    "HardestTriplet": "counterfoil.losses.triplet:HardestTripletLoss",
    "InfoNCE": "counterfoil.losses.contrastive:InfoNCELoss",
    "JoinedInfoNCE": "counterfoil.losses.contrastive:InfoNCEWithCandidatesLoss",
    "JointEncoder": "counterfoil.papers.models.uniter:JointEncoder",
    "JointLayer": "counterfoil.papers.models.uniter:JointLayer",
    "KeyQueue": "counterfoil.negatives.momentum:KeyQueue",
    "MLPRegions": "counterfoil.models.layers.towers:MLPRegions",
    "MarginDistribution": "counterfoil.losses.ndgl:MarginDistillationLoss",
    "MeanTriplet": "counterfoil.losses.triplet:MeanTripletLoss",
    "MomentumQueue": "counterfoil.negatives.momentum:MomentumQueue",
    "MomentumQueueLoss": "counterfoil.losses.queue:MomentumQueueLoss",
    "MultiVectorEmbedder": "counterfoil.models.sentence_transformers:MultiVectorEmbedder",
    "NAAF": "counterfoil.papers.models.naaf:NAAF",
    "Objective": "counterfoil.losses.base:WeightedSum",
    "OfflineQuintuplet": "counterfoil.losses.aoq:OfflineQuintuplet",
    "OfflineTriplet": "counterfoil.losses.aoq:OfflineTriplet",
    "OnlineQuintuplet": "counterfoil.losses.aoq:OnlineQuintuplet",
    "OpenClip": "counterfoil.models.open_clip:OpenClipModel",
    "PartsTower": "counterfoil.papers.models.dive:PartsTower",
    "Patches": "counterfoil.models.layers.towers:PatchTower",
    "Perceptron": "counterfoil.papers.models.chan:FeedForward",
    "PieceEmbedding": "counterfoil.papers.models.uniter:WordPieceEmbedding",
    "PooledParts": "counterfoil.papers.models.dive:PooledParts",
    "Ramped": "counterfoil.losses.schedules:LinearRamp",
    "RankedBelow": "counterfoil.losses.triplet:MarginRankingLoss",
    "RegionDrop": "counterfoil.models.layers.towers:RegionDrop",
    "Regions": "counterfoil.models.layers.towers:Regions",
    "Relation": "counterfoil.papers.models.vsrn:RegionRelation",
    "Residual": "counterfoil.models.layers.towers:ResidualBlock",
    "ResidualPool": "counterfoil.papers.models.hrem:ResidualPool",
    "Rules": "counterfoil.data.phrases:RulePhraseParser",
    "SCAN": "counterfoil.papers.models.scan:SCAN",
    "Screened": "counterfoil.negatives.online:TopScoringMiner",
    "SGRAF": "counterfoil.papers.models.sgraf:SGRAF",
    "SelfAdjusted": "counterfoil.papers.compared.losses:SelfAdjustedCFMLoss",
    "SelfAttention": "counterfoil.papers.models.chan:SelfAttention",
    "SelfExpanding": "counterfoil.papers.compared.losses:SelfExpandingLoss",
    "SelfExplored": "counterfoil.papers.compared.losses:SelfExploredCFMLoss",
    "SemanticMargin": "counterfoil.papers.compared.losses:LSEHLoss",
    "SemiHard": "counterfoil.losses.triplet:SemiHardTripletLoss",
    "Sieve": "counterfoil.papers.tags.inputs:CandidateFilter",
    "Sigmoid": "counterfoil.losses.contrastive:SigmoidLoss",
    "Slots": "counterfoil.papers.models.dive:SlotAttention",
    "Spacy": "counterfoil.data.phrases:SpacyPhraseParser",
    "Stored": "counterfoil.data.phrases:PhraseFile",
    "SumTriplet": "counterfoil.losses.triplet:SumTripletLoss",
    "Tailored": "counterfoil.papers.tags.generation:TagsGenerator",
    "Then": "counterfoil.losses.schedules:SwitchAfter",
    "TiedHead": "counterfoil.models.layers.joint_encoder:TiedHead",
    "TimmModel": "counterfoil.models.layers.pretrained:TimmTower",
    "UNITER": "counterfoil.papers.models.uniter:UNITER",
    "UTOLoss": "counterfoil.losses.queue:UTOLoss",
    "UniterHeads": "counterfoil.models.layers.joint_encoder:UniterHeads",
    "VSE": "counterfoil.models.vsepp:VSEPP",
    "VSRN": "counterfoil.papers.models.vsrn:VSRN",
    "Vectors": "counterfoil.models.embeddings:EmbeddingModel",
    "ViLT": "counterfoil.papers.models.vilt:ViLT",
    "VisionModel": "counterfoil.models.layers.pretrained:HFVisionTower",
    "WordDrop": "counterfoil.models.layers.towers:WordDrop",
    "Words": "counterfoil.papers.tags.losses:WordLoss",
    "WordsAndStates": "counterfoil.papers.models.dive:WordsAndStates",
    "Written": "counterfoil.negatives.generated:GeneratedCaptions",
    "XDim": "counterfoil.papers.models.xdim:XDim",
}

LOSSES = "counterfoil.losses"  # every loss is an attribute of this package
_REGISTERED = SHIPPED["loss"]
_NAMES = {place: name for name, place in (*_REGISTERED.items(), *PLACES.items())}


def saved_name(make: Callable[..., Any]) -> str:
    """Name of a class or function in files; ``module:qualname`` for those of other packages."""
    place = f"{make.__module__}:{make.__qualname__}"
    if make.__module__.startswith(f"{LOSSES}."):
        return _NAMES.get(place, make.__qualname__)
    return _NAMES.get(place) or saved_by_name(make) or place


def short_name(make: Callable[..., Any]) -> str:
    """`saved_name` without a module, for digests that do not depend on where the code is."""
    return saved_name(make).rpartition(":")[2]


def is_place(place: str) -> bool:
    """Return True if files may name this ``module:class``: it is in the table, or a loss."""
    return place in _NAMES or (
        place.startswith(f"{LOSSES}:") and place.partition(":")[2] not in names("loss")
    )


def place_of(name: str) -> str:
    """``module:qualname`` of a name in a file; other names unchanged."""
    known = PLACES.get(name) or _REGISTERED.get(name)
    return known or (f"{LOSSES}:{name}" if name.isidentifier() else name)
