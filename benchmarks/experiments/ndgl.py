"""NDGL: a student of two teachers against its own loss at three times the epochs.

The teachers of a student are two trainings of other seeds, which no other student shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

from benchmarks.experiments.aoq import ADAPTERS, FLICKR, Regime, adapter_training, cca_row
from benchmarks.experiments.table import Budget, Contrast, Experiment, ExperimentBuilder, Table
from counterfoil.core.config import from_stage, lazy
from counterfoil.losses.base import Loss, Reduction, weighted_sum
from counterfoil.losses.ndgl import HardNegativeRectificationLoss, MarginDistillationLoss
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.papers.systems import (
    GAMMA,
    HNR_WEIGHT,
    MR_WEIGHT,
    PROFILES,
    SYSTEMS,
    DatasetProfile,
)
from counterfoil.papers.training import ModelSetting
from counterfoil.pipelines.pipeline import ComputeTargets, Train
from counterfoil.recipes.base import MARGIN, Terms
from counterfoil.training.config import CosineLR, OptimizerConfig

OWN, LONGER, ENSEMBLE = "own loss", "own loss, three times the epochs", "ensemble of 2"
NDGL, AVERAGED = "NDGL", "NDGL, MR and HNR averaged over the batch"
LIGHTER, HEAVIER = "NDGL, λ of MR 30", "NDGL, λ of MR 300"
COSINE = "NDGL, margins in units of cosine"
TARGETS = "targets"
SEEDS = tuple(range(2, 10))  # confirm; 0 and 1 explored


@final
@dataclass(frozen=True, kw_only=True)
class NdglSize:
    """Settings of a budget.

    Attributes:
        seeds: of the students.
        adapters: training of the adapters on CCA vectors.
        towers: training of GPO and CHAN on regions.
        profile: widths of GPO and CHAN.
        steps: of each training at most; 0 for all.
    """

    seeds: tuple[int, ...]
    adapters: Regime
    towers: Regime
    profile: DatasetProfile
    steps: int = 0


ADAPTERS_REGIME = Regime(batch=128, rate=3e-4, epochs=8)
SIZES: dict[Budget, NdglSize] = {
    "cpu": NdglSize(
        seeds=SEEDS,
        adapters=ADAPTERS_REGIME,
        towers=Regime(batch=128, rate=1e-3, epochs=10),
        profile=PROFILES[FLICKR],
    ),
    "gpu": NdglSize(
        seeds=SEEDS,
        adapters=ADAPTERS_REGIME,
        towers=Regime(batch=128, rate=5e-4, epochs=15),
        profile=replace(PROFILES[FLICKR], width=1024, word_width=300),
    ),
    "smoke": NdglSize(
        seeds=(2,),
        adapters=Regime(batch=32, rate=1e-3, epochs=1),
        towers=Regime(batch=16, rate=1e-3, epochs=1),
        profile=replace(PROFILES[FLICKR], width=16, word_width=16),
        steps=5,
    ),
}


def tables() -> tuple[Table, ...]:
    """NDGL's tables."""
    made = [
        Table(
            name="ndgl-adapters",
            question="Does a student of two teachers beat its own loss at equal cost?",
            data=FLICKR,
            base=OWN,
            vectors=True,
            experiments=_adapters,
            contrasts=_contrasts(ADAPTERS),
        )
    ]
    for name in ("gpo", "chan"):
        title = SYSTEMS[name].title
        made.append(
            Table(
                name=f"ndgl-{name}",
                question=f"Does NDGL help {title} trained on regions?",
                data=FLICKR,
                base=OWN,
                experiments=lambda budget, name=name: _towers(budget, name),
                contrasts=_contrasts(title),
            )
        )
    return tuple(made)


def _contrasts(model: str) -> tuple[Contrast, ...]:
    declared = (
        ("The student is better than its own loss at three times the epochs.", NDGL, LONGER),
        ("The student is better than its own loss.", NDGL, OWN),
        ("The student with averaged terms is better than its own loss.", AVERAGED, OWN),
    )
    return tuple(
        Contrast(claim=claim, model=model, method=method, base=base, seeds=SEEDS)
        for claim, method, base in declared
    )


def student_terms(own: Reduction) -> dict[str, Terms]:
    """MR and HNR with their weights by row, beside an own loss of this reduction."""

    def terms(mr: float = MR_WEIGHT, *, reduction: Reduction = own, **units: str) -> Terms:
        return {
            "mr": (mr, lazy(MarginDistillationLoss, reduction=reduction, **units)),
            "hnr": (
                HNR_WEIGHT,
                lazy(HardNegativeRectificationLoss, gamma=GAMMA, reduction=reduction, **units),
            ),
        }

    rows = {NDGL: terms(), LIGHTER: terms(0.3 * MR_WEIGHT), HEAVIER: terms(3 * MR_WEIGHT)}
    return rows | ({AVERAGED: terms(reduction="mean")} if own == "sum" else {})


def teacher_seeds(seed: int) -> tuple[int, int]:
    """Seeds of a student's two teachers; no other student has them."""
    return 1000 + 2 * seed, 1001 + 2 * seed


def _adapters(budget: Budget) -> Iterator[Experiment]:
    size = SIZES[budget]
    own: Loss = lazy(HardestTripletLoss, margin=MARGIN, reduction="sum")

    def train(name: str, seed: int, times: int, more: Terms) -> Train:
        regime = replace(size.adapters, epochs=times * size.adapters.epochs)
        stage = adapter_training(name, own, seed, regime, size.steps)
        return replace(stage, objective=weighted_sum(own=own, **more))

    for seed in size.seeds:
        builder = ExperimentBuilder(ADAPTERS, seed)
        if seed == size.seeds[0]:
            cca_row(builder, "")
        _compare(builder, train, student_terms("sum"))
        yield builder.build("ndgl-adapters", f"seed-{seed}", FLICKR)


def _towers(budget: Budget, name: str) -> Iterator[Experiment]:
    size, preset = SIZES[budget], SYSTEMS[name]

    def train(stage: str, seed: int, times: int, more: Terms) -> Train:
        setup = ModelSetting(name=name, dataset=FLICKR, seed=seed, profile=size.profile).setup()
        made = setup.stage(stage, more)
        regime = size.towers
        plan = replace(
            made.plan,
            epochs=times * regime.epochs,
            batch=regime.batch,
            steps=size.steps,
            optimiser=OptimizerConfig(rate=regime.rate),
            schedule=CosineLR(warmup=50),
            keep_last=True,
            log_every=1000,
        )
        return replace(made, plan=plan)

    rows = student_terms(preset.reduction)
    if name == "chan":  # its scores are ten times a cosine
        rows[COSINE] = {
            key: (weight, lazy(loss.make, **{**loss.arguments, "units": "cosine"}))
            for key, (weight, loss) in rows[NDGL].items()
        }
    for seed in size.seeds:
        builder = ExperimentBuilder(preset.title, seed)
        _compare(builder, train, rows)
        yield builder.build(f"ndgl-{name}", f"seed-{seed}", FLICKR)


def _compare(
    builder: ExperimentBuilder,
    train: Callable[[str, int, int, Terms], Train],
    rows: dict[str, Terms],
) -> None:
    """The own loss, two teachers and their ensemble, the students, the own loss for longer."""
    seed = builder.seed
    builder.compare(OWN, train("own", seed, 1, {}))
    teachers = [train(f"teacher-{one}", one, 1, {}) for one in teacher_seeds(seed)]
    builder.compare(ENSEMBLE, *teachers)
    names = tuple(teacher.name for teacher in teachers)
    builder.add(ComputeTargets(name=TARGETS, using=names))
    builder.compare(NDGL, train("student", seed, 1, rows[NDGL]).with_sources(from_stage(TARGETS)))
    builder.compare(LONGER, train("longer", seed, 3, {}))
    for place, method in enumerate(row for row in rows if row != NDGL):
        stage = train(f"student-{place}", seed, 1, rows[method])
        builder.compare(method, stage.with_sources(from_stage(TARGETS)))
