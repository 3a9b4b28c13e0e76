"""Image-text retrieval models, trained on the negatives that matter.

The public names; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterfoil.core.config import Config, config, from_data, lazy
    from counterfoil.data.dataset import ImageTextDataset
    from counterfoil.data.processor import Processor, ProcessorConfig
    from counterfoil.data.readers import load_dataset
    from counterfoil.evaluation.explain import explain
    from counterfoil.losses.aoq import (
        AdaptiveQuintuplet,
        OfflineQuintuplet,
        OfflineTriplet,
        OnlineQuintuplet,
    )
    from counterfoil.losses.base import Loss, WeightedSum, weighted_sum
    from counterfoil.losses.baselines import LSEHLoss, SelfAdjustedCFMLoss, SelfExploredCFMLoss
    from counterfoil.losses.contrastive import InfoNCELoss, SigmoidLoss
    from counterfoil.losses.ndgl import HardNegativeRectificationLoss, MarginDistillationLoss
    from counterfoil.losses.tags import WordLoss
    from counterfoil.losses.triplet import (
        HardestTripletLoss,
        MarginRankingLoss,
        SemiHardTripletLoss,
        SumTripletLoss,
    )
    from counterfoil.model import Model, load_model
    from counterfoil.models.base import RetrievalModel
    from counterfoil.models.scan import SCAN
    from counterfoil.models.vsepp import VSEPP
    from counterfoil.negatives.counterfactual import CounterfactualSampler
    from counterfoil.negatives.online import MinerChain, TopScoringMiner
    from counterfoil.negatives.sampling import CandidateConfig
    from counterfoil.negatives.store import NegativeStore
    from counterfoil.pipelines.pipeline import (
        CaptionSpaceStage,
        Compare,
        ComputeTargets,
        Evaluate,
        Generate,
        Mine,
        Pretrain,
        Recipe,
        Train,
        pretrain_config,
    )
    from counterfoil.pipelines.run import run_pipeline
    from counterfoil.search.index import IndexConfig, SearchIndex, build_index, open_index
    from counterfoil.search.rerank import Reranker
    from counterfoil.training.config import TrainConfig
    from counterfoil.training.pretrain import PretrainTasks

__version__ = "0.1.0"

_WHERE = {
    "ImageTextDataset": "data.dataset",
    "load_dataset": "data.readers",
    "Processor": "data.processor",
    "ProcessorConfig": "data.processor",
    "RetrievalModel": "models.base",
    "VSEPP": "models.vsepp",
    "SCAN": "models.scan",
    "Loss": "losses.base",
    "WeightedSum": "losses.base",
    "weighted_sum": "losses.base",
    "SumTripletLoss": "losses.triplet",
    "HardestTripletLoss": "losses.triplet",
    "SemiHardTripletLoss": "losses.triplet",
    "InfoNCELoss": "losses.contrastive",
    "SigmoidLoss": "losses.contrastive",
    "OfflineTriplet": "losses.aoq",
    "OfflineQuintuplet": "losses.aoq",
    "AdaptiveQuintuplet": "losses.aoq",
    "OnlineQuintuplet": "losses.aoq",
    "MarginDistillationLoss": "losses.ndgl",
    "HardNegativeRectificationLoss": "losses.ndgl",
    "LSEHLoss": "losses.baselines",
    "SelfAdjustedCFMLoss": "losses.baselines",
    "SelfExploredCFMLoss": "losses.baselines",
    "MarginRankingLoss": "losses.triplet",
    "WordLoss": "losses.tags",
    "CounterfactualSampler": "negatives.counterfactual",
    "CandidateConfig": "negatives.sampling",
    "TopScoringMiner": "negatives.online",
    "MinerChain": "negatives.online",
    "NegativeStore": "negatives.store",
    "explain": "evaluation.explain",
    "Model": "model",
    "load_model": "model",
    "SearchIndex": "search.index",
    "open_index": "search.index",
    "IndexConfig": "search.index",
    "build_index": "search.index",
    "Reranker": "search.rerank",
    "Recipe": "pipelines.pipeline",
    "Train": "pipelines.pipeline",
    "Pretrain": "pipelines.pipeline",
    "pretrain_config": "pipelines.pipeline",
    "Mine": "pipelines.pipeline",
    "Generate": "pipelines.pipeline",
    "ComputeTargets": "pipelines.pipeline",
    "CaptionSpaceStage": "pipelines.pipeline",
    "Evaluate": "pipelines.pipeline",
    "Compare": "pipelines.pipeline",
    "run_pipeline": "pipelines.run",
    "TrainConfig": "training.config",
    "PretrainTasks": "training.pretrain",
    "Config": "core.config",
    "config": "core.config",
    "lazy": "core.config",
    "from_data": "core.config",
}

__all__ = [
    "SCAN",
    "VSEPP",
    "AdaptiveQuintuplet",
    "CandidateConfig",
    "CaptionSpaceStage",
    "Compare",
    "ComputeTargets",
    "Config",
    "CounterfactualSampler",
    "Evaluate",
    "Generate",
    "HardNegativeRectificationLoss",
    "HardestTripletLoss",
    "ImageTextDataset",
    "IndexConfig",
    "InfoNCELoss",
    "LSEHLoss",
    "Loss",
    "MarginDistillationLoss",
    "MarginRankingLoss",
    "Mine",
    "MinerChain",
    "Model",
    "NegativeStore",
    "OfflineQuintuplet",
    "OfflineTriplet",
    "OnlineQuintuplet",
    "Pretrain",
    "PretrainTasks",
    "Processor",
    "ProcessorConfig",
    "Recipe",
    "Reranker",
    "RetrievalModel",
    "SearchIndex",
    "SelfAdjustedCFMLoss",
    "SelfExploredCFMLoss",
    "SemiHardTripletLoss",
    "SigmoidLoss",
    "SumTripletLoss",
    "TopScoringMiner",
    "Train",
    "TrainConfig",
    "WeightedSum",
    "WordLoss",
    "__version__",
    "build_index",
    "config",
    "explain",
    "from_data",
    "lazy",
    "load_dataset",
    "load_model",
    "open_index",
    "pretrain_config",
    "run_pipeline",
    "weighted_sum",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'counterfoil' has no attribute {name!r}")
    return getattr(import_module(f"counterfoil.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
