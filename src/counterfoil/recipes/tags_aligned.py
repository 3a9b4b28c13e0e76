"""What takes the place of a long pre-training where data and time are small.

Not in the paper. From random weights UNITER's own tasks need far more pairs than the small sets
have before words find their regions; telling each pair from the batch's others finds them in
minutes, and hidden words and matches are learned from there.
"""

from __future__ import annotations

from dataclasses import replace

from counterfoil.objectives.infonce import InfoNCE
from counterfoil.objectives.term import total
from counterfoil.recipes.pretraining import ADAMW, Pretrain, pretrain_plan
from counterfoil.recipes.recipe import Train
from counterfoil.spec import part
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Linear

ALIGNED = "aligned"
RATE, CLIP, WARMUP = 1e-3, 2.0, 0.1


def before(
    told: Pretrain, *, epochs: tuple[int, int] = (4, 12), dev_images: int = 0
) -> tuple[Train, Pretrain]:
    """Pairs told apart, then the tasks of a pre-training.

    Args:
        told: the pre-training; its plan and how often its tasks are drawn are replaced.
        epochs: passes over the training captions of each.
        dev_images: on which the first's epochs are compared; 0 for all.
    """
    return aligned(told, epochs=epochs[0], dev_images=dev_images), replace(
        told,
        start=ALIGNED,
        plan=pretrain_plan(epochs=epochs[1], batch=32, rate=RATE),
        tasks=replace(told.tasks, transport=0.0, words=0.3),
    )


def aligned(told: Pretrain, *, epochs: int, dev_images: int = 0) -> Train:
    """A training that tells pairs apart, from random weights, of what is then pre-trained."""
    return Train(
        name=ALIGNED,
        model=told.model.but(score="logit"),
        objective=total(pairs=part(InfoNCE, temperature=1.0)),
        lens=told.lens,
        plan=TrainPlan(
            epochs=epochs,
            batch=16,
            optimiser=Optimiser(
                rule=ADAMW.rule, rate=RATE, decay=ADAMW.decay, betas=ADAMW.betas, clip=CLIP
            ),
            schedule=Linear(warmup=WARMUP),
            dev_images=dev_images,
        ),
    )
