"""The recipe of ``counterfoil demo``."""

from __future__ import annotations

from dataclasses import replace

from counterfoil.core.config import config, from_data, lazy
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.pipelines.pipeline import Compare, Evaluate, Mine, Recipe, Train
from counterfoil.recipes.base import MARGIN
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig

WIDTH = 128


def demo_recipe() -> Recipe:
    """The recipe of ``make demo``: VSE++ on all negatives alike, and on the hardest of each batch.

    Everything else is equal. Both are measured by the captions of a picture, and by every pair
    that is true, as these pictures are known whole. The second model's hardest negatives of the
    whole training set are mined for the report. Seed, data and sizes were fixed beforehand.
    """
    alike = Train(
        name="alike",
        model=config(
            VSEPP,
            image=lazy(Regions, features=from_data("features"), width=WIDTH),
            text=lazy(
                GRU, words=from_data("words"), width=WIDTH, word_width=WIDTH, bidirectional=True
            ),
            image_pool="mean+max",
            text_pool="mean+max",
        ),
        objective=weighted_sum(triplet=lazy(SumTripletLoss, margin=MARGIN)),
        plan=TrainConfig(
            epochs=5,
            batch=32,
            optimiser=OptimizerConfig(rate=1e-3),
            schedule=CosineLR(warmup=50),
            keep_last=True,
        ),
    )
    triplet = weighted_sum(triplet=lazy(HardestTripletLoss, margin=MARGIN))
    hardest = replace(alike, name="hardest", objective=triplet)
    return Recipe(
        name="demo",
        stages=(
            alike,
            hardest,
            Mine(name="lists", using=("hardest",), texts=100, images=20),
            *(
                Evaluate(name=f"test-{training.name}", using=(training.name,))
                for training in (alike, hardest)
            ),
            *(
                Evaluate(name=f"true-{training.name}", using=(training.name,), truth="complete")
                for training in (alike, hardest)
            ),
            Compare(
                name="report",
                results=("test-alike", "test-hardest"),
                several=("true-alike", "true-hardest"),
                negatives="lists",
                foils=300,
                called=("trained on all negatives", "trained on the hardest"),
            ),
        ),
        data="scenes:images=1500,features=regions",
        about="two models learn to score true captions of rendered pictures above wrong ones, the "
        "negatives: one from all in a batch alike, one from the hardest, which it confuses most",
    )
