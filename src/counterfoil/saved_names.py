"""Stable names of all that files of ours may name: model folders, recipes, stores, digests.

A written call is saved as ``{"call": "SCAN", ...}``. The name stays when a class moves or is called
otherwise: then only its place below changes. A class of somebody else's package, which has no name
here, is written as ``package.module:Class``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

PLACES: Mapping[str, str] = {  # name in files -> where it is today
    "Adapted": "counterfoil.models.adapted:Adapted",
    "Adapters": "counterfoil.models.adapted:Adapters",
    "AdaptiveQuintuplet": "counterfoil.objectives.quintuplet:AdaptiveQuintuplet",
    "After": "counterfoil.objectives.curriculum:After",
    "BFAN": "counterfoil.models.bfan:BFAN",
    "BLIP": "counterfoil.models.blip:BLIP",
    "BatchGraph": "counterfoil.models.blocks.graph:BatchGraph",
    "Bert": "counterfoil.models.blocks.bert:Bert",
    "BoxedRegions": "counterfoil.models.blocks.boxed:BoxedRegions",
    "CHAN": "counterfoil.models.chan:CHAN",
    "Captioner": "counterfoil.models.blocks.captioner:Captioner",
    "ClassHead": "counterfoil.models.blocks.uniter_heads:ClassHead",
    "Debiased": "counterfoil.objectives.debiased:Debiased",
    "Desk": "counterfoil.negatives.desk:Desk",
    "DistanceWeighted": "counterfoil.objectives.distance_weighted:DistanceWeighted",
    "DivE": "counterfoil.models.dive:DivE",
    "DualEncoder": "counterfoil.models.clip:DualEncoder",
    "ESA": "counterfoil.models.esa:ESA",
    "Edited": "counterfoil.negatives.edited:Edited",
    "External": "counterfoil.models.blocks.external:External",
    "GPO": "counterfoil.models.gpo:GPO",
    "GRU": "counterfoil.models.blocks.gru:GRU",
    "GeneralPool": "counterfoil.models.blocks.gpo:GeneralPool",
    "Grids": "counterfoil.models.blocks.grids:Grids",
    "HREM": "counterfoil.models.hrem:HREM",
    "HardestRectified": "counterfoil.objectives.margins:HardestRectified",
    "HardestTriplet": "counterfoil.objectives.triplet:HardestTriplet",
    "InfoNCE": "counterfoil.objectives.infonce:InfoNCE",
    "JoinedInfoNCE": "counterfoil.objectives.joined:JoinedInfoNCE",
    "JointEncoder": "counterfoil.models.blocks.joint:JointEncoder",
    "JointLayer": "counterfoil.models.blocks.joint:JointLayer",
    "MLPRegions": "counterfoil.models.blocks.mlp:MLPRegions",
    "MarginDistribution": "counterfoil.objectives.margins:MarginDistribution",
    "MeanTriplet": "counterfoil.objectives.mean_triplet:MeanTriplet",
    "Objective": "counterfoil.objectives.term:Objective",
    "OfflineQuintuplet": "counterfoil.objectives.quintuplet:OfflineQuintuplet",
    "OfflineTriplet": "counterfoil.objectives.quintuplet:OfflineTriplet",
    "OnlineQuintuplet": "counterfoil.objectives.online_quintuplet:OnlineQuintuplet",
    "OpenClip": "counterfoil.models.open_clip:OpenClip",
    "PartsTower": "counterfoil.models.blocks.parts:PartsTower",
    "Patches": "counterfoil.models.blocks.patches:Patches",
    "Perceptron": "counterfoil.models.blocks.selfattention:Perceptron",
    "PieceEmbedding": "counterfoil.models.blocks.boxed:PieceEmbedding",
    "PooledParts": "counterfoil.models.blocks.parts:PooledParts",
    "PosteriorTriplet": "counterfoil.objectives.posterior:PosteriorTriplet",
    "Ramped": "counterfoil.objectives.curriculum:Ramped",
    "RankedBelow": "counterfoil.objectives.triplet:RankedBelow",
    "RegionDrop": "counterfoil.models.blocks.augment:RegionDrop",
    "Regions": "counterfoil.models.blocks.regions:Regions",
    "Relation": "counterfoil.models.blocks.relation:Relation",
    "Residual": "counterfoil.models.blocks.patches:Residual",
    "ResidualPool": "counterfoil.models.blocks.residual:ResidualPool",
    "Rules": "counterfoil.data.phrases:RulePhraseParser",
    "SCAN": "counterfoil.models.scan:SCAN",
    "Screened": "counterfoil.negatives.screened:Screened",
    "SelectivelyHardest": "counterfoil.objectives.selective:SelectivelyHardest",
    "SelfAdjusted": "counterfoil.objectives.counterfactual:SelfAdjusted",
    "SelfAttention": "counterfoil.models.blocks.selfattention:SelfAttention",
    "SelfExpanding": "counterfoil.objectives.self_expanding:SelfExpanding",
    "SelfExplored": "counterfoil.objectives.counterfactual:SelfExplored",
    "SemanticMargin": "counterfoil.objectives.semantic:SemanticMargin",
    "SemiHard": "counterfoil.objectives.triplet:SemiHard",
    "Sieve": "counterfoil.negatives.candidates:Sieve",
    "Sigmoid": "counterfoil.objectives.sigmoid:Sigmoid",
    "Slots": "counterfoil.models.blocks.slots:Slots",
    "Spacy": "counterfoil.data.phrases:SpacyPhraseParser",
    "Stored": "counterfoil.data.phrases:PhraseFile",
    "SumTriplet": "counterfoil.objectives.triplet:SumTriplet",
    "Tailored": "counterfoil.negatives.tailored:Tailored",
    "Then": "counterfoil.objectives.curriculum:Then",
    "TiedHead": "counterfoil.models.blocks.uniter_heads:TiedHead",
    "TimmModel": "counterfoil.models.blocks.timm_model:TimmModel",
    "Together": "counterfoil.negatives.together:Together",
    "UNITER": "counterfoil.models.uniter:UNITER",
    "UniterHeads": "counterfoil.models.blocks.uniter_heads:UniterHeads",
    "VSE": "counterfoil.models.vse:VSE",
    "VSRN": "counterfoil.models.vsrn:VSRN",
    "Vectors": "counterfoil.models.vectors:Vectors",
    "ViLT": "counterfoil.models.vilt:ViLT",
    "VisionModel": "counterfoil.models.blocks.vision:VisionModel",
    "WordDrop": "counterfoil.models.blocks.augment:WordDrop",
    "Words": "counterfoil.objectives.words:Words",
    "WordsAndStates": "counterfoil.models.blocks.parts:WordsAndStates",
    "Written": "counterfoil.negatives.written:Written",
}

# Version 0.1 wrote "counterfoil.MODULE:CLASS". This table is read when a file is opened and never
# changes; modules stand with slashes, so that no tool that moves modules takes them for its own.
_WRITTEN_BY_0_1: Mapping[
    str, str
] = {  # module of 0.1 -> its classes, whose names they keep in files
    "corpus/phrase_file": "Stored",
    "corpus/phrase_rules": "Rules",
    "corpus/phrase_spacy": "Spacy",
    "models/adapted": "Adapted Adapters",
    "models/bfan": "BFAN",
    "models/blip": "BLIP",
    "models/blocks/augment": "RegionDrop WordDrop",
    "models/blocks/bert": "Bert",
    "models/blocks/boxed": "BoxedRegions PieceEmbedding",
    "models/blocks/captioner": "Captioner",
    "models/blocks/external": "External",
    "models/blocks/gpo": "GeneralPool",
    "models/blocks/graph": "BatchGraph",
    "models/blocks/grids": "Grids",
    "models/blocks/gru": "GRU",
    "models/blocks/joint": "JointEncoder JointLayer",
    "models/blocks/mlp": "MLPRegions",
    "models/blocks/parts": "PartsTower PooledParts WordsAndStates",
    "models/blocks/patches": "Patches Residual",
    "models/blocks/regions": "Regions",
    "models/blocks/relation": "Relation",
    "models/blocks/residual": "ResidualPool",
    "models/blocks/selfattention": "Perceptron SelfAttention",
    "models/blocks/slots": "Slots",
    "models/blocks/timm_model": "TimmModel",
    "models/blocks/uniter_heads": "ClassHead TiedHead UniterHeads",
    "models/blocks/vision": "VisionModel",
    "models/chan": "CHAN",
    "models/clip": "DualEncoder",
    "models/dive": "DivE",
    "models/esa": "ESA",
    "models/gpo": "GPO",
    "models/hrem": "HREM",
    "models/open_clip": "OpenClip",
    "models/scan": "SCAN",
    "models/uniter": "UNITER",
    "models/vectors": "Vectors",
    "models/vilt": "ViLT",
    "models/vse": "VSE",
    "models/vsrn": "VSRN",
    "negatives/candidates": "Sieve",
    "negatives/desk": "Desk",
    "negatives/edited": "Edited",
    "negatives/screened": "Screened",
    "negatives/tailored": "Tailored",
    "negatives/together": "Together",
    "negatives/written": "Written",
    "objectives/counterfactual": "SelfAdjusted SelfExplored",
    "objectives/curriculum": "After Ramped Then",
    "objectives/debiased": "Debiased",
    "objectives/distance_weighted": "DistanceWeighted",
    "objectives/infonce": "InfoNCE",
    "objectives/joined": "JoinedInfoNCE",
    "objectives/margins": "HardestRectified MarginDistribution",
    "objectives/mean_triplet": "MeanTriplet",
    "objectives/online_quintuplet": "OnlineQuintuplet",
    "objectives/posterior": "PosteriorTriplet",
    "objectives/quintuplet": "AdaptiveQuintuplet OfflineQuintuplet OfflineTriplet",
    "objectives/selective": "SelectivelyHardest",
    "objectives/self_expanding": "SelfExpanding",
    "objectives/semantic": "SemanticMargin",
    "objectives/sigmoid": "Sigmoid",
    "objectives/term": "Objective",
    "objectives/triplet": "HardestTriplet RankedBelow SemiHard SumTriplet",
    "objectives/words": "Words",
}

_NAMES = {place: name for name, place in PLACES.items()}
_CONVERTED = {
    f"counterfoil.{module.replace('/', '.')}:{name}": name
    for module, names in _WRITTEN_BY_0_1.items()
    for name in names.split()
}


def saved_name(make: Callable[..., Any]) -> str:
    """Name of a class or function in files; ``module:qualname`` of one that has none of its own."""
    place = f"{make.__module__}:{make.__qualname__}"
    return _NAMES.get(place, place)


def short_name(make: Callable[..., Any]) -> str:
    """The same without a module, for digests that do not depend on where code lies."""
    return saved_name(make).rpartition(":")[2]


def place_of(name: str) -> str:
    """``module:qualname`` of what a file names, whether this version wrote it or 0.1.

    A name that is none of ours comes back as it is.
    """
    name = _CONVERTED.get(name, name)
    return PLACES.get(name, name)
