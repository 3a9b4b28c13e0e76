"""What TAGS is trained with: Table 5 of the paper, and what the authors' scripts set instead.

The paper names no batch; 128 pairs a step are UNITER's. Those of `scenes` and Flickr8k are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from counterfoil.negatives.offers import CandidatePlan
from counterfoil.recipes.pretraining import ADAMW
from counterfoil.recipes.profiles import LARGE, Dataset
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Linear

CLIP = 2.0
WARMUP = 0.1  # of all steps
AT_ONCE = 8  # pairs of which a batch of the large sets is made
CAPTIONS: dict[Dataset, int] = {
    "scenes": 10_000,
    "flickr8k": 30_000,
    "flickr30k": 145_000,
    "coco": 566_435,
}


@final
@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a step of TAGS is trained with.

    Attributes:
        steps: of the optimiser.
        batch: pairs of a step.
        rate: learning rate.
        temperature: of the draw of words.
        masked: weight of the guesses of hidden words.
        written: weight of the written captions' hinge.
        words: weight of doubting and of correcting words, each.
        offered: wrong texts, and images, that are screened for a pair.
        keep: how many of them, and of the written captions, are trained on.
        masks: maskings of a caption.
        refills: of each masking.
    """

    steps: int
    batch: int = 128
    rate: float
    temperature: float = 1.5
    masked: float
    written: float
    words: float = 0.0
    offered: int = 399
    keep: int = 31
    masks: int = 20
    refills: int = 20

    @property
    def candidates(self) -> CandidatePlan:
        """What is screened."""
        return CandidatePlan(texts=self.offered, images=self.offered)


def _small(*, steps: int, rate: float, words: float = 0.0) -> Numbers:
    return Numbers(
        steps=steps,
        batch=16,
        rate=rate,
        masked=0.1,
        written=1e-3,
        words=words,
        offered=39,
        keep=7,
        masks=5,
        refills=5,
    )


PAPER: dict[Dataset, tuple[Numbers, Numbers]] = {
    "scenes": (_small(steps=1000, rate=1e-4), _small(steps=300, rate=2e-5, words=1e-3)),
    "flickr8k": (_small(steps=2000, rate=1e-4), _small(steps=600, rate=2e-5, words=1e-3)),
    "flickr30k": (
        Numbers(steps=5000, rate=5e-5, masked=0.1, written=1e-3),
        Numbers(steps=1500, rate=1e-5, masked=0.1, written=1e-3, words=1e-3),
    ),
    "coco": (
        Numbers(steps=5000, rate=5e-5, masked=0.05, written=1e-4),
        Numbers(steps=1500, rate=1e-5, masked=0.05, written=1e-4, words=5e-4),
    ),
}

RELEASED: dict[Dataset, tuple[Numbers, Numbers]] = {
    "scenes": PAPER["scenes"],
    "flickr8k": PAPER["flickr8k"],
    "flickr30k": (
        Numbers(steps=5000, rate=5e-5, temperature=2.0, masked=0.05, written=5e-4),
        Numbers(steps=1500, batch=256, rate=1e-5, masked=0.1, written=5e-4, words=5e-4),
    ),
    "coco": (
        Numbers(steps=5000, batch=256, rate=5e-5, masked=0.01, written=5e-5),
        Numbers(steps=1500, batch=256, rate=1e-5, masked=0.05, written=1e-4, words=5e-4),
    ),
}


LARGE_PAPER: dict[Dataset, tuple[Numbers, Numbers]] = {  # Table 5, L
    "flickr30k": (
        Numbers(steps=5000, rate=4e-5, masked=0.1, written=5e-4, keep=23),
        Numbers(steps=1500, rate=1e-5, masked=0.1, written=5e-4, words=5e-4, keep=23),
    ),
    "coco": (
        Numbers(steps=5000, rate=4e-5, masked=0.05, written=5e-4, keep=23),
        Numbers(steps=1500, rate=1e-5, masked=0.05, written=5e-4, words=5e-4, keep=23),
    ),
}

LARGE_RELEASED: dict[Dataset, tuple[Numbers, Numbers]] = {
    "flickr30k": (
        Numbers(
            steps=5000, batch=256, rate=5e-5, temperature=2.0, masked=0.05, written=1e-3, keep=23
        ),
        Numbers(steps=5000, batch=256, rate=1e-5, masked=0.05, written=5e-4, words=5e-4, keep=23),
    ),
    "coco": (
        Numbers(steps=5000, batch=256, rate=4e-5, masked=0.05, written=1e-3, keep=23),
        Numbers(steps=1500, batch=256, rate=1e-5, masked=0.05, written=1e-4, words=5e-4),
    ),
}


def plan(numbers: Numbers, dataset: Dataset) -> TrainPlan:
    """The training written down: AdamW, a warm-up, then a straight line to 0."""
    batch = AT_ONCE if dataset in LARGE else numbers.batch
    return TrainPlan(
        epochs=-(-numbers.steps * numbers.batch // CAPTIONS[dataset]),
        steps=numbers.steps,
        batch=batch,
        accumulate=numbers.batch // batch,
        optimiser=Optimiser(
            rule=ADAMW.rule,
            rate=numbers.rate,
            decay=ADAMW.decay,
            betas=ADAMW.betas,
            epsilon=ADAMW.epsilon,
            clip=CLIP,
        ),
        schedule=Linear(warmup=WARMUP),
    )
