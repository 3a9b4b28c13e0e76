"""Image-text retrieval models, trained on the negatives that matter.

Every public name is imported when it is first used, so ``import counterfoil`` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterfoil import losses
    from counterfoil.core.config import Config, config, from_data, from_stage, lazy
    from counterfoil.data.concatenate import concatenate_datasets
    from counterfoil.data.dataset import ImageTextDataset
    from counterfoil.data.processor import Processor, ProcessorConfig
    from counterfoil.data.readers import load_dataset
    from counterfoil.evaluation.evaluate import EvaluationResult, evaluate
    from counterfoil.evaluation.explain import explain
    from counterfoil.export.mteb import as_mteb
    from counterfoil.losses.base import Loss, WeightedSum
    from counterfoil.model import Model, load_model
    from counterfoil.models.base import RetrievalModel
    from counterfoil.negatives.mining import mine_hard_negatives
    from counterfoil.negatives.momentum import MomentumQueue
    from counterfoil.negatives.online import TopScoringMiner
    from counterfoil.negatives.sources import NegativeSource
    from counterfoil.negatives.store import NegativeStore
    from counterfoil.negatives.teachers import Mask, Teachers
    from counterfoil.pipelines.pipeline import Recipe
    from counterfoil.pipelines.stages.compare import Compare
    from counterfoil.pipelines.stages.evaluate import Evaluate
    from counterfoil.pipelines.stages.mine import Mine
    from counterfoil.pipelines.stages.teach import ComputeTargets
    from counterfoil.pipelines.stages.train import Train
    from counterfoil.recipes.run import run
    from counterfoil.search.index import SearchIndex, build_index, open_index
    from counterfoil.search.rerank import Reranker
    from counterfoil.training.config import TrainConfig
    from counterfoil.training.mined import Mined, MinedBatches, MinedNeighbours
    from counterfoil.training.trainer import Trainer

__version__ = "0.1.0"

_MODULES = {
    # one function or class per task
    "load_dataset": "data.readers",
    "concatenate_datasets": "data.concatenate",
    "load_model": "model",
    "evaluate": "evaluation.evaluate",
    "mine_hard_negatives": "negatives.mining",
    "Trainer": "training.trainer",
    "build_index": "search.index",
    "open_index": "search.index",
    "explain": "evaluation.explain",
    "as_mteb": "export.mteb",
    "run": "recipes.run",
    # sources of negatives for a Trainer
    "Mined": "training.mined",
    "MinedBatches": "training.mined",
    "MinedNeighbours": "training.mined",
    "TopScoringMiner": "negatives.online",
    "MomentumQueue": "negatives.momentum",
    "Teachers": "negatives.teachers",
    "Mask": "negatives.teachers",
    # what they take and return
    "ImageTextDataset": "data.dataset",
    "Model": "model",
    "EvaluationResult": "evaluation.evaluate",
    "NegativeStore": "negatives.store",
    "TrainConfig": "training.config",
    "SearchIndex": "search.index",
    "Reranker": "search.rerank",
    # extending: models, losses, processors, recipes
    "RetrievalModel": "models.base",
    "Loss": "losses.base",
    "NegativeSource": "negatives.sources",
    "WeightedSum": "losses.base",
    "Processor": "data.processor",
    "ProcessorConfig": "data.processor",
    "Config": "core.config",
    "config": "core.config",
    "lazy": "core.config",
    "from_data": "core.config",
    "from_stage": "core.config",
    "Recipe": "pipelines.pipeline",
    "Train": "pipelines.stages.train",
    "Mine": "pipelines.stages.mine",
    "ComputeTargets": "pipelines.stages.teach",
    "Evaluate": "pipelines.stages.evaluate",
    "Compare": "pipelines.stages.compare",
}

__all__ = [
    "Compare",
    "ComputeTargets",
    "Config",
    "Evaluate",
    "EvaluationResult",
    "ImageTextDataset",
    "Loss",
    "Mask",
    "Mine",
    "Mined",
    "MinedBatches",
    "MinedNeighbours",
    "Model",
    "MomentumQueue",
    "NegativeSource",
    "NegativeStore",
    "Processor",
    "ProcessorConfig",
    "Recipe",
    "Reranker",
    "RetrievalModel",
    "SearchIndex",
    "Teachers",
    "TopScoringMiner",
    "Train",
    "TrainConfig",
    "Trainer",
    "WeightedSum",
    "__version__",
    "as_mteb",
    "build_index",
    "concatenate_datasets",
    "config",
    "evaluate",
    "explain",
    "from_data",
    "from_stage",
    "lazy",
    "load_dataset",
    "load_model",
    "losses",
    "mine_hard_negatives",
    "open_index",
    "run",
]


def __getattr__(name: str) -> object:
    if name == "losses":
        return import_module("counterfoil.losses")
    if name not in _MODULES:
        near = [known for known in __all__ if name and name in known]
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module 'counterfoil' has no attribute {name!r}{hint}")
    return getattr(import_module(f"counterfoil.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
