"""What recipes are made of: losses with their weights, trainings, a report at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from counterfoil.core.config import Config, FromStage, config, from_stage, lazy
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.aoq import AdaptiveQuintuplet
from counterfoil.losses.base import Loss, Reduction, WeightedSum, weighted_sum
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.losses.triplet import SumTripletLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.negatives.sources import NegativeSource
from counterfoil.pipelines.pipeline import Compare, Recipe, Stage, Train
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig
from counterfoil.training.mined import Mined

WeightedLoss = tuple[float, Loss]
Terms = dict[str, WeightedLoss]

WHOLE_LISTS = SamplingConfig()
RERANKER = "reranker"  # name of its training
MARGIN = 0.2  # of triplets, on every model
HARDEST = (100, 20)  # texts of an image and images of a text that are mined, on own data
ALPHA, BETA = 0.3, 1.5  # of AOQ, section 4.2
OFFLINE_MARGIN = 0.0  # of mined negatives in AOQ's second round, whose online one is MARGIN
# the loss of AOQ's second round, in its recipe and wherever AOQ is an option (fine-tuning, TAGS)
ADAPTIVE = lazy(AdaptiveQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN, alpha=ALPHA, beta=BETA)


def with_warmup(term: Loss, warmup: int, name: str = "triplet") -> Config[WeightedSum]:
    """A loss that follows some steps with the hinges of all negatives of the batch."""
    first = lazy(SumTripletLoss, margin=MARGIN)
    scheduled = lazy(SwitchAfter, first=first, second=term, steps=warmup) if warmup else term
    terms: dict[str, Loss] = {name: scheduled}
    return weighted_sum(**terms)


def adaptive_quintuplet(warmup: int) -> Config[WeightedSum]:
    """The adaptive offline quintuplet loss with AOQ's numbers (Eq. 5).

    Some models need steps with the sum of hinges first; the paper has none.
    """
    return with_warmup(ADAPTIVE, warmup, "quintuplet")


def adamw_plan(*, epochs: int, batch: int, rate: float, least: int = 0) -> TrainConfig:
    """AdamW with a short warm-up and half a cosine, for at least so many steps."""
    plan = TrainConfig(
        epochs=epochs,
        batch=batch,
        optimiser=OptimizerConfig(rule="adamw", rate=rate, decay=0.01),
        schedule=CosineLR(warmup=50),
    )
    return plan.everyday(least)


@final
@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """A model with its loss, processor and training.

    Attributes:
        model: the model.
        terms: of its own loss.
        processor: of its inputs.
        plan: its training.
        reduction: how its loss is summed over a batch.
        sources: of further negatives that its loss needs.
        start: folder of a model to begin from, see `ModelStage`; None for what the model says.
    """

    model: Config[RetrievalModel]
    terms: Terms
    processor: ProcessorConfig
    plan: TrainConfig
    reduction: Reduction = "sum"
    sources: tuple[Config[NegativeSource] | FromStage, ...] = ()
    start: str | None = None

    def stage(self, name: str, more: Terms | None = None) -> Train:
        """A training with the model's own loss, and with further terms."""
        return Train(
            name=name,
            model=self.model,
            objective=weighted_sum(**self.terms, **(more or {})),
            processor=self.processor,
            plan=self.plan,
            sources=self.sources,
            start=self.start,
        )


def mined(lists: str, sampling: SamplingConfig = WHOLE_LISTS) -> Config[NegativeSource]:
    """Negatives drawn from the lists of a stage."""
    return config(Mined, negatives=from_stage(lists), sampling=sampling)


def reported(
    name: str,
    stages: Iterable[Stage],
    about: str,
    *,
    results: Iterable[str] = (),
    negatives: str | None = None,
    selection: str | None = None,
    data: str = "scenes",
) -> Recipe:
    """A recipe; where it names `results`, a report at its end compares these."""
    report = Compare(
        name="report", results=tuple(results), negatives=negatives, selection=selection
    )
    return Recipe(
        name=name,
        stages=(*stages, report) if report.results else tuple(stages),
        data=data,
        about=about,
    )
