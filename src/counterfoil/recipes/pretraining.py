"""Pre-training in the domain, as a record: what a training may start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from counterfoil.corpus.lens import LensPlan
from counterfoil.matcher import Matcher
from counterfoil.spec import Spec
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.pretrain import ACCURACY
from counterfoil.train.pretrain_batches import Tasks
from counterfoil.train.schedule import Linear

# UNITER, in-domain: config/pretrain-indomain-base-8gpu.json of its repository
ADAMW = Optimiser(rule="adamw", rate=5e-5, decay=0.01, betas=(0.9, 0.98), epsilon=1e-6, clip=5.0)
WARMUP = 0.05  # 10,000 of 200,000 steps


def pretrain_plan(
    *, epochs: int, batch: int, rate: float = ADAMW.rate, accumulate: int = 1, seed: int = 0
) -> TrainPlan:
    """A plan with UNITER's optimiser: AdamW, a warm-up, then a straight line to 0.

    Args:
        epochs: passes over the training captions; the best one on dev is kept.
        batch: pairs of a batch, over all processes.
        rate: learning rate.
        accumulate: batches of one task whose gradients are averaged.
        seed: of the tasks, what they hide, and the dropout.
    """
    return TrainPlan(
        epochs=epochs,
        batch=batch,
        seed=seed,
        optimiser=Optimiser(
            rule=ADAMW.rule,
            rate=rate,
            decay=ADAMW.decay,
            betas=ADAMW.betas,
            epsilon=ADAMW.epsilon,
            clip=ADAMW.clip,
        ),
        schedule=Linear(warmup=WARMUP),
        accumulate=accumulate,
        select=ACCURACY,
    )


@final
@dataclass(frozen=True, kw_only=True)
class Pretrain:
    """Pre-train a model on the training split; the best epoch on dev is kept.

    Writes a model folder; a training starts from it by its name, ``Train(start="pretrained")``.

    Attributes:
        name: of the stage and of its folder.
        model: a matcher that can be pre-trained, with the heads that the tasks ask;
            ``late("words")``, ``late("features")``, ``late("classes")`` and ``late("mask")`` become
            what the data say.
        plan: batches, epochs, optimiser, schedule, seed; it selects by "accuracy", "mlm" or "itm".
        tasks: what the model is asked, and how often; where the features come without
            ``classes.npy``, "mrc" and "mrckl" are left out, and the run says so.
        lens: what the matcher sees: stored features, or pixels where no regions are hidden, and
            words or wordpieces.
        start: stage whose weights and lens to begin from, instead of random ones.

    Raises:
        ValueError: regions are hidden and the matcher is to see pixels, or it is to read vectors.
    """

    kind: ClassVar[str] = "pretrain"
    name: str
    model: Spec[Matcher]
    plan: TrainPlan
    tasks: Tasks = Tasks()
    lens: LensPlan = LensPlan()
    start: str | None = None

    def __post_init__(self) -> None:
        blind = self.tasks.sighted and self.lens.images != "features"
        if blind or self.lens.texts == "vectors":
            hides = "regions and words" if self.tasks.sighted else "words"
            raise ValueError(
                f"{self.name!r} hides {hides}, but its lens shows {self.lens.images} and "
                f"{self.lens.texts}; set images to 'features' (or mrfr, mrc and mrckl to 0), and "
                "texts to 'words' or a tokenizer"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Stages whose results this one needs."""
        return (self.start,) if self.start else ()

    @property
    def wants(self) -> tuple[tuple[str, str], ...]:
        """Stages whose results this one needs, and of which kind they have to be."""
        return tuple((name, "train") for name in self.reads)
