"""Image-text retrieval models, trained on the negatives that matter.

The public names; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterfoil.corpus.corpus import Corpus
    from counterfoil.corpus.lens import Lens, LensPlan
    from counterfoil.corpus.reading import open_corpus
    from counterfoil.evaluation.explain import explain
    from counterfoil.matcher import Matcher
    from counterfoil.models.scan import SCAN
    from counterfoil.models.vse import VSE
    from counterfoil.negatives.edited import Edited
    from counterfoil.negatives.offers import CandidatePlan
    from counterfoil.negatives.screened import Screened
    from counterfoil.negatives.store import NegativeStore
    from counterfoil.negatives.together import Together
    from counterfoil.objectives.counterfactual import SelfAdjusted, SelfExplored
    from counterfoil.objectives.infonce import InfoNCE
    from counterfoil.objectives.margins import HardestRectified, MarginDistribution
    from counterfoil.objectives.online_quintuplet import OnlineQuintuplet
    from counterfoil.objectives.quintuplet import (
        AdaptiveQuintuplet,
        OfflineQuintuplet,
        OfflineTriplet,
    )
    from counterfoil.objectives.semantic import SemanticMargin
    from counterfoil.objectives.sigmoid import Sigmoid
    from counterfoil.objectives.term import Objective, Term, total
    from counterfoil.objectives.triplet import HardestTriplet, RankedBelow, SemiHard, SumTriplet
    from counterfoil.objectives.words import Words
    from counterfoil.recipes.guides import Semantics, Teach
    from counterfoil.recipes.measures import Compare, Evaluate
    from counterfoil.recipes.mines import Mine
    from counterfoil.recipes.model import Model, open_model
    from counterfoil.recipes.pretraining import Pretrain, pretrain_plan
    from counterfoil.recipes.recipe import Recipe, Train
    from counterfoil.recipes.run import execute
    from counterfoil.recipes.writes import Write
    from counterfoil.search.index import IndexConfig, SearchIndex, build_index, open_index
    from counterfoil.search.rerank import Reranker
    from counterfoil.spec import Spec, late, of, part
    from counterfoil.train.plan import TrainPlan
    from counterfoil.train.pretrain_batches import Tasks

__version__ = "0.1.0"

_WHERE = {
    "Corpus": "corpus.corpus",
    "open_corpus": "corpus.reading",
    "Lens": "corpus.lens",
    "LensPlan": "corpus.lens",
    "Matcher": "matcher",
    "VSE": "models.vse",
    "SCAN": "models.scan",
    "Term": "objectives.term",
    "Objective": "objectives.term",
    "total": "objectives.term",
    "SumTriplet": "objectives.triplet",
    "HardestTriplet": "objectives.triplet",
    "SemiHard": "objectives.triplet",
    "InfoNCE": "objectives.infonce",
    "Sigmoid": "objectives.sigmoid",
    "OfflineTriplet": "objectives.quintuplet",
    "OfflineQuintuplet": "objectives.quintuplet",
    "AdaptiveQuintuplet": "objectives.quintuplet",
    "OnlineQuintuplet": "objectives.online_quintuplet",
    "MarginDistribution": "objectives.margins",
    "HardestRectified": "objectives.margins",
    "SemanticMargin": "objectives.semantic",
    "SelfAdjusted": "objectives.counterfactual",
    "SelfExplored": "objectives.counterfactual",
    "RankedBelow": "objectives.triplet",
    "Words": "objectives.words",
    "Edited": "negatives.edited",
    "CandidatePlan": "negatives.offers",
    "Screened": "negatives.screened",
    "Together": "negatives.together",
    "NegativeStore": "negatives.store",
    "explain": "evaluation.explain",
    "Model": "recipes.model",
    "open_model": "recipes.model",
    "SearchIndex": "search.index",
    "open_index": "search.index",
    "IndexConfig": "search.index",
    "build_index": "search.index",
    "Reranker": "search.rerank",
    "Recipe": "recipes.recipe",
    "Train": "recipes.recipe",
    "Pretrain": "recipes.pretraining",
    "pretrain_plan": "recipes.pretraining",
    "Mine": "recipes.mines",
    "Write": "recipes.writes",
    "Teach": "recipes.guides",
    "Semantics": "recipes.guides",
    "Evaluate": "recipes.measures",
    "Compare": "recipes.measures",
    "execute": "recipes.run",
    "TrainPlan": "train.plan",
    "Tasks": "train.pretrain_batches",
    "Spec": "spec",
    "of": "spec",
    "part": "spec",
    "late": "spec",
}

__all__ = [
    "SCAN",
    "VSE",
    "AdaptiveQuintuplet",
    "CandidatePlan",
    "Compare",
    "Corpus",
    "Edited",
    "Evaluate",
    "HardestRectified",
    "HardestTriplet",
    "IndexConfig",
    "InfoNCE",
    "Lens",
    "LensPlan",
    "MarginDistribution",
    "Matcher",
    "Mine",
    "Model",
    "NegativeStore",
    "Objective",
    "OfflineQuintuplet",
    "OfflineTriplet",
    "OnlineQuintuplet",
    "Pretrain",
    "RankedBelow",
    "Recipe",
    "Reranker",
    "Screened",
    "SearchIndex",
    "SelfAdjusted",
    "SelfExplored",
    "SemanticMargin",
    "Semantics",
    "SemiHard",
    "Sigmoid",
    "Spec",
    "SumTriplet",
    "Tasks",
    "Teach",
    "Term",
    "Together",
    "Train",
    "TrainPlan",
    "Words",
    "Write",
    "__version__",
    "build_index",
    "execute",
    "explain",
    "late",
    "of",
    "open_corpus",
    "open_index",
    "open_model",
    "part",
    "pretrain_plan",
    "total",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'counterfoil' has no attribute {name!r}")
    return getattr(import_module(f"counterfoil.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
