"""A recipe of own parts: train the model, mine with it, evaluate it."""

from __future__ import annotations

from counterfoil.core.config import config, from_data, lazy
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import weighted_sum
from counterfoil.models.layers.towers import GRU, PatchTower
from counterfoil.pipelines.pipeline import Evaluate, Mine, Recipe, Train
from counterfoil.training.config import TrainConfig
from own_parts.loss import SoftplusLoss
from own_parts.model import MeanOfParts
from own_parts.source import NextTexts

WIDTH = 16


def own_recipe() -> Recipe:
    """``counterfoil run own-parts --data FOLDER``."""
    return Recipe(
        name="own-parts",
        stages=(
            Train(
                name="trained",
                model=config(
                    MeanOfParts,
                    image=lazy(PatchTower, size=from_data("size"), width=WIDTH),
                    text=lazy(GRU, words=from_data("words"), width=WIDTH, word_width=WIDTH),
                ),
                objective=weighted_sum(soft=lazy(SoftplusLoss)),
                sources=(config(NextTexts),),
                processor=ProcessorConfig(images="pixels", size=32),
                plan=TrainConfig(epochs=2, batch=16),
            ),
            Mine(name="lists", using=("trained",), texts=5, images=3),
            Evaluate(name="test", using=("trained",)),
        ),
        about="own model, loss and source of negatives",
    )
