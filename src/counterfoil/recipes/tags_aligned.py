"""What takes the place of a long pre-training where data and time are small.

Not in the paper. From random weights UNITER's own tasks need far more pairs than the small sets
have before words find their regions; telling each pair from the batch's others finds them in
minutes, and hidden words and matches are learned from there.
"""

from __future__ import annotations

from counterfoil.corpus.lens import LensPlan
from counterfoil.matcher import Matcher
from counterfoil.objectives.infonce import InfoNCE
from counterfoil.objectives.term import total
from counterfoil.recipes.pretraining import ADAMW
from counterfoil.recipes.recipe import Train
from counterfoil.spec import Spec, part
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Linear

ALIGNED = "aligned"
RATE, CLIP, WARMUP = 1e-3, 2.0, 0.1


def aligned(model: Spec[Matcher], lens: LensPlan, *, epochs: int, dev_images: int = 0) -> Train:
    """A training that tells pairs apart, from random weights.

    Args:
        model: what is pre-trained after it, with all its heads.
        lens: what it sees.
        epochs: passes over the training captions.
        dev_images: on which epochs are compared; 0 for all.
    """
    return Train(
        name=ALIGNED,
        model=model.but(score="logit"),
        objective=total(pairs=part(InfoNCE, temperature=1.0)),
        lens=lens,
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
