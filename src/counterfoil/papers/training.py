"""Trainings of the systems of the table, and the stages and recipes that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, final

from counterfoil.core.config import Config, config, lazy
from counterfoil.core.types import INFERENCE
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.queue import MomentumQueueLoss, UTOLoss
from counterfoil.losses.schedules import LinearRamp, StartAt, SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, MeanTripletLoss, SumTripletLoss
from counterfoil.negatives.momentum import MomentumQueue
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.negatives.sampling import CandidateConfig
from counterfoil.negatives.sources import NegativeSource
from counterfoil.papers.compared.losses import (
    CircleLoss,
    DistanceWeightedTripletLoss,
    SelfExpandingLoss,
)
from counterfoil.papers.models.cgmn import MATCHING
from counterfoil.papers.models.configs import model_config, processor_config
from counterfoil.papers.systems import (
    FURTHEST,
    GRAPH_AFTER,
    IN_BATCH,
    LARGE,
    MATCHED,
    PROFILES,
    QUEUE,
    SINGLES,
    WRONG,
    DatasetProfile,
    EnsembleMember,
    System,
    ensemble_members,
    find_system,
    training_config,
)
from counterfoil.pipelines.pipeline import Evaluate, Mine, Recipe, Stage, Train
from counterfoil.recipes.base import MARGIN, Terms, TrainingSetup, reported, with_warmup
from counterfoil.training.config import TrainConfig

# Losses: a model's own, or another in place of its triplet.
#
# HREM also judges three enhanced score matrices, whatever the loss of the plain one is.

ENHANCED = ("images enhanced", "texts enhanced", "both enhanced")


def loss_terms(
    name: str, dataset: str, instead: Loss | None = None, *, longer: float = 1.0
) -> Terms:
    """Weighted terms of a newer model's loss by name.

    Another loss may stand in place of its triplet; steps before later terms are `longer` times as
    many, as for smaller batches.
    """
    system = find_system(name)
    if system.paper == "user":
        loss = instead or lazy(UTOLoss)
        return {
            "batch": (IN_BATCH[dataset], loss),
            "queue": (1.0, lazy(MomentumQueueLoss)),
        }
    if system.paper == "ernievil":
        roles = {"texts": "hard text", "images": "hard image"}
        circles = {n: lazy(CircleLoss, role=r, reduction="mean") for n, r in roles.items()}
        return {name: (0.5, circle) for name, circle in circles.items()}
    if system.paper == "lightningdot":
        pairs: Loss = instead or lazy(InfoNCELoss, temperature=1.0, reduction="mean")
        return {"pairs": (1.0, pairs)}
    first: Loss
    if instead is None and system.paper == "esa":
        first = lazy(
            SelfExpandingLoss, against="all" if dataset in LARGE else "mean", margin=MARGIN
        )
    else:
        first = lazy(all_negatives_loss(dataset), margin=system.margin, reduction=system.reduction)
    steps = round(longer * warmup_steps(name, dataset))
    triplet = switch_after(first, instead or _own_loss(name, dataset), steps)
    if system.grid:  # the backbone is unfrozen after the warm-up, and the loss rises for an epoch
        triplet = lazy(LinearRamp, term=triplet, steps=steps, start=steps)
    terms: Terms = {"triplet": (1.0, triplet)}
    if system.paper == "cgmn":
        terms["matching"] = (MATCHED, lazy(SumTripletLoss, margin=MARGIN, view=MATCHING))
    if system.paper == "hrem":  # once the plain embeddings have been learnt for a while
        steps = round(longer * GRAPH_AFTER[dataset])
        for grid in ENHANCED:
            late = lazy(StartAt, term=_distance_weighted(dataset, grid), steps=steps)
            terms[grid.replace(" ", "_")] = (1.0, late)
    return terms


def warmup_steps(name: str, dataset: str) -> int:
    """Steps against all negatives that a model needs first."""
    return find_system(name).warmup[dataset]


def switch_after(first: Loss, then: Loss, steps: int) -> Loss:
    """A loss that follows some steps with another; for 0 steps the loss alone."""
    return lazy(SwitchAfter, first=first, second=then, steps=steps) if steps else then


def all_negatives_loss(dataset: str) -> type[SumTripletLoss] | type[MeanTripletLoss]:
    """Loss of the warm-up: the sum of hinges as authors have it, on our own small sets the mean.

    To Adam both are alike, but in a long warm-up a sum would outweigh the other terms.
    """
    return SumTripletLoss if dataset in LARGE else MeanTripletLoss


def _own_loss(name: str, dataset: str) -> Loss:
    system = find_system(name)
    match system.paper:
        case "esa":
            return lazy(SelfExpandingLoss, margin=MARGIN)
        case "hrem":
            return _distance_weighted(dataset)
        case "dive":
            return lazy(HardestTripletLoss, margin=MARGIN, reduction="mean")
    return lazy(HardestTripletLoss, margin=system.margin)


def _distance_weighted(dataset: str, grid: str = INFERENCE) -> Loss:
    furthest = FURTHEST[dataset]
    return lazy(DistanceWeightedTripletLoss, margin=MARGIN, furthest=furthest, view=grid)


def momentum_queue(dataset: str) -> Config[NegativeSource]:
    """USER's queue, which scores the anchors of any model with items of earlier batches."""
    return config(MomentumQueue, size=QUEUE[dataset])


def sources_of(name: str, dataset: str) -> tuple[Config[NegativeSource], ...]:
    """The sources of further negatives that a newer model's loss needs."""
    match find_system(name).paper:
        case "user":
            return (momentum_queue(dataset),)
        case "ernievil":  # all that are drawn are trained on
            drawn = lazy(CandidateConfig, texts=WRONG, images=WRONG)
            return (config(TopScoringMiner, keep=WRONG, candidates=drawn),)
    return ()


def hardest_triplet(warmup: int) -> Config[WeightedSum]:
    """The hardest negative of the batch, after so many steps with all of them."""
    return with_warmup(lazy(HardestTripletLoss, margin=MARGIN), warmup)


# A model with everything of its training.


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSetting:
    """A model on a data set.

    Attributes:
        name: of the model, in `counterfoil.papers.systems.SYSTEMS`.
        dataset: the data set.
        seed: of its training.
        profile: widths, where they are not the data set's.
        batch: anchors in a batch, where they are not the model's; warm-ups see as many anchors
            then.
    """

    name: str
    dataset: str
    seed: int = 0
    profile: DatasetProfile | None = None
    batch: int | None = None

    @property
    def system(self) -> System:
        """The model's row of the table."""
        return find_system(self.name)

    def setup(self, instead: Loss | None = None) -> TrainingSetup:
        """The model as its paper trains it, or with another loss in place of its own triplet."""
        plan = training_config(self.name, self.dataset, seed=self.seed)
        plan, longer = self._with_batch(plan)
        if self.name == "vsrn" or self.name in SINGLES:
            return self._classic_setup(plan, longer, instead)
        copies = 2 if instead is None else 1
        return TrainingSetup(
            model=model_config(self.name, self.dataset, copies=copies, profile=self.profile),
            terms=loss_terms(self.name, self.dataset, instead, longer=longer),
            processor=processor_config(self.name, self.dataset),
            plan=plan,
            reduction=self.system.reduction,
            sources=sources_of(self.name, self.dataset),
        )

    def _classic_setup(
        self, plan: TrainConfig, longer: float, instead: Loss | None
    ) -> TrainingSetup:
        loss = instead or lazy(HardestTripletLoss, margin=MARGIN)
        every = all_negatives_loss(self.dataset) if self.name == "vsrn" else SumTripletLoss
        steps = round(longer * warmup_steps(self.name, self.dataset))
        return TrainingSetup(
            model=model_config(self.name, self.dataset, profile=self.profile),
            terms={"triplet": (1.0, switch_after(lazy(every, margin=MARGIN), loss, steps))},
            processor=PROFILES[self.dataset].processor,
            plan=plan,
        )

    def _with_batch(self, plan: TrainConfig) -> tuple[TrainConfig, float]:
        """The plan with batches of this size, and the factor by which an epoch gets longer."""
        if self.batch is None:
            return plan, 1.0
        return replace(plan, batch=self.batch), plan.batch / self.batch


# Stages and recipes


def online_stage(name: str, dataset: str, *, member: EnsembleMember | None = None) -> Train:
    """The training stage, named "online", or "online-<part>" for a member of an ensemble."""
    member = member or EnsembleMember(name)
    return Train(
        name=member.stage("online"),
        model=model_config(name, dataset),
        objective=hardest_triplet(warmup_steps(name, dataset)),
        processor=PROFILES[dataset].processor,
        plan=training_config(name, dataset, seed=member.seed),
    )


def evaluation_stages(kind: str, name: str, dataset: str, test: str = "") -> tuple[Evaluate, ...]:
    """Evaluations of the trainings of a kind: of the ensemble, and of each model in it alone.

    On MS-COCO also over all 5,000 test images, "<test>-5k".
    """
    test, members = test or f"test-{kind}", ensemble_members(name)
    using: dict[str, tuple[str, ...]]
    using = {member.stage(test): (member.stage(kind),) for member in members if member.part}
    using[test] = tuple(member.stage(kind) for member in members)
    stages = [
        Evaluate(name=each, using=models, protocol=PROFILES[dataset].protocol)
        for each, models in using.items()
    ]
    if dataset == "coco":
        stages.append(Evaluate(name=f"{test}-5k", using=using[test], protocol="coco-5k"))
    return tuple(stages)


def dataset_recipe(
    name: str,
    dataset: str,
    stages: Iterable[Stage],
    about: str,
    *,
    results: Iterable[str] = (),
    negatives: str | None = None,
    selection: str | None = None,
    data: str = "",
) -> Recipe:
    """A recipe on a data set; where it names `results`, a report at its end compares these."""
    return reported(
        name,
        stages,
        about,
        results=results,
        negatives=negatives,
        selection=selection,
        data=data or PROFILES[dataset].data,
    )


def as_published(make: Callable[..., Recipe]) -> Callable[..., Recipe]:
    """A recipe with the papers' negatives: captions that say the same are wrong, too."""

    def by_id(stage: Train | Mine) -> Train | Mine:
        return replace(stage, positives="id") if stage.positives == "text" else stage

    @wraps(make)
    def made(**arguments: Any) -> Recipe:
        return make(**arguments).with_changed(Train, by_id).with_changed(Mine, by_id)

    return made


def check_numbers(model: str, like: str, datasets: tuple[str, ...]) -> None:
    """Refuse a data set for which a model has no numbers.

    Raises:
        ValueError: it is not among `datasets`.
    """
    if like not in datasets:
        raise ValueError(
            f"{model} has no numbers for {like}; it is trained like {' or '.join(datasets)}"
        )
