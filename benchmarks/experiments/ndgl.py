"""NDGL on Flickr8k: its models with their own loss, with baselines, and with NDGL.

A student of seed s learns from the two models that its own loss makes of the next two seeds;
the row "ensemble of 2" of seed s is those two. AdapOffQuin and LSEH take the place of the model's
triplet on the plain grid; lists are those of the first seed. Widths, epochs and rates are the same
for every row of a budget. Further tables: readings of Eq. 4 and the parts of NDGL (Table 4), and
the number of teachers and the batch (Table 3, Fig. 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from benchmarks.experiments.table import Budget, Experiment, ExperimentBuilder, Table
from counterfoil.pipelines.pipeline import CaptionSpaceStage, ComputeTargets, Evaluate, Mine, Train
from counterfoil.recipes import ndgl
from counterfoil.recipes.models import PROFILES, Dataset, DatasetProfile
from counterfoil.recipes.ndgl import LISTS, MEANINGS
from counterfoil.recipes.ndgl_models import (
    BaseModel,
    BaseRecipe,
    BaseSetting,
    Terms,
    base_of,
    base_reduction,
    base_title,
    trained_base,
)
from counterfoil.training.config import CosineLR, OptimizerConfig

DATA: Dataset = "flickr8k"
TEST = Evaluate(name="test", using=(), protocol="flickr-1k")
OWN = "own loss"
SEEDS = 3  # of a model's own loss: two teach the third
MOST_TEACHERS: dict[Budget, int] = {"cpu": 3, "gpu": 5, "smoke": 2}
BATCHES: dict[Budget, tuple[int, ...]] = {
    "cpu": (32, 128, 512),
    "gpu": (32, 64, 128, 256, 512),
    "smoke": (16, 32),
}


@final
@dataclass(frozen=True, kw_only=True)
class NdglSize:
    """Settings of a budget, the same for every row.

    Attributes:
        profile: widths.
        epochs: of each training.
        rate: of the optimiser, falling along a half cosine.
        seeds: by model, of everything but its own loss.
        edited: models that CFM is tried on.
        texts: length of an image's list; a text's is a fifth of it.
        steps: of each training at most; 0 for all epochs.
    """

    profile: DatasetProfile
    epochs: int
    rate: float
    seeds: dict[BaseModel, int]
    edited: tuple[BaseModel, ...] = ()
    texts: int = 100
    steps: int = 0


_HERE = PROFILES[DATA]
_ALL: tuple[BaseModel, ...] = ("chan", "gpo", "esa", "hrem", "dive", "vsrn")
SIZES: dict[Budget, NdglSize] = {
    "cpu": NdglSize(
        profile=_HERE,
        epochs=5,
        rate=3e-3,
        seeds={"gpo": 3, "chan": 3, "esa": 1, "hrem": 1, "dive": 1, "vsrn": 1},
    ),
    "gpu": NdglSize(
        profile=replace(_HERE, width=1024, word_width=300),
        epochs=10,
        rate=5e-4,
        seeds=dict.fromkeys(_ALL, 3),
        edited=_ALL,
    ),
    "smoke": NdglSize(
        profile=replace(_HERE, width=16, word_width=16),
        epochs=1,
        rate=1e-3,
        seeds={"gpo": 1, "chan": 1, "esa": 1, "hrem": 1, "dive": 1, "vsrn": 1},
        edited=("gpo",),
        texts=20,
        steps=20,
    ),
}


def tables() -> tuple[Table, ...]:
    """NDGL's three tables."""
    return (
        Table(
            name="evidence/ndgl-flickr8k",
            about="NDGL and other ways to use negatives, on six hosts",
            data=DATA,
            first=OWN,
            experiments=_methods,
        ),
        Table(
            name="evidence/ndgl-readings-flickr8k",
            about="NDGL: readings of its Eq. 4, its parts, and mined negatives inside it",
            data=DATA,
            first=OWN,
            experiments=_readings,
        ),
        Table(
            name="evidence/ndgl-curves-flickr8k",
            about="NDGL by the number of teachers and by the batch",
            data=DATA,
            first=OWN,
            experiments=_curves,
        ),
    )


def _methods(budget: Budget) -> Iterator[Experiment]:
    """One for each model: own losses first, since others need them; then each seed."""
    size = SIZES[budget]
    for host, count in size.seeds.items():
        name, builder = base_title(host), ExperimentBuilder(TEST)
        own = [_own(host, seed, size) for seed in range(SEEDS)]
        builder.add(*own, _lists("own-0", size), CaptionSpaceStage(name=MEANINGS))
        for stage in own:
            builder.compare(name, OWN, stage)
        for seed in range(count):
            teachers = _teachers(seed)
            builder.measure(name, "ensemble of 2", teachers, f"ensemble-{seed}", seed)
            builder.add(ComputeTargets(name=f"targets-{seed}", using=teachers))
            for method, stage in _compared_methods(host, seed, size):
                builder.compare(name, method, _shortened(stage, size))
        yield builder.build("evidence/ndgl-flickr8k", host, DATA)


def _compared_methods(host: BaseModel, seed: int, size: NdglSize) -> Iterator[tuple[str, Train]]:
    """Method and training, the most important first."""
    at = _setting(host, seed, size)
    student = ndgl.student_stage(f"ndgl-{seed}", base_of(at), targets=f"targets-{seed}")
    yield "NDGL, K = 2", student
    yield "AdapOffQuin", ndgl.offline_recipe(f"aoq-{seed}", at)
    yield "LSEH", ndgl.lseh_recipe(f"lseh-{seed}", at)
    if base_reduction(host) == "sum":  # MR and HNR over the batch, beside a summed triplet
        yield "NDGL, K = 2, averaged", _averaged(seed, base_of(at))
    if host in size.edited:
        yield "CFM", ndgl.cfm_recipe(f"cfm-{seed}", at)


def _averaged(seed: int, host: BaseRecipe) -> Train:
    """A student whose guided losses are means over the batch."""
    losses: Terms = {
        "mr": (ndgl.MR_WEIGHT, ndgl.margin_distillation("mean")),
        "hnr": (ndgl.HNR_WEIGHT, ndgl.hard_negative_rectification("mean")),
    }
    return ndgl.guided_loss(f"ndgl-mean-{seed}", host, losses, targets=f"targets-{seed}")


def _readings(budget: Budget) -> Iterator[Experiment]:
    """The meanings that Eq. 4 may have, NDGL's parts, and what its authors did not try."""
    size = SIZES[budget]
    for host, seed in _one_model(budget):
        builder, teachers = ExperimentBuilder(TEST), _teachers(seed)
        own = [_own(host, one, size) for one in (seed, *_teacher_seeds(seed))]
        targets = ComputeTargets(name=ndgl.TARGETS, using=teachers)
        builder.add(*own, _lists(own[0].name, size), targets)
        builder.compare(base_title(host), OWN, own[0])
        for method, stage in _compared_readings(host, seed, size):
            builder.compare(base_title(host), method, _shortened(stage, size))
        yield builder.build("evidence/ndgl-readings-flickr8k", f"{host}-{seed}", DATA)


def _compared_readings(host: BaseModel, seed: int, size: NdglSize) -> Iterator[tuple[str, Train]]:
    """Method and training, the most important first."""
    at, summed = _setting(host, seed, size), base_reduction(host)
    alone = base_of(at)
    yield "MR + HNR", ndgl.student_stage("ndgl", alone)
    for name, loss in ndgl.reading_recipes(summed, alone.plan.batch).items():
        yield f"MR, {name}", ndgl.guided_loss(f"mr-{name}", alone, {"mr": loss})
    hnr: Terms = {"hnr": (ndgl.HNR_WEIGHT, ndgl.hard_negative_rectification(summed))}
    yield "HNR", ndgl.guided_loss("hnr", alone, hnr)
    yield "MR (with mined) + HNR + AdapOffQuin", ndgl.combined_recipe("ndgl-aoq", at)
    yield "MR + HNR of mined", ndgl.rectified_offline_recipe("hnr-offline", at)
    yield "AdapOffQuin", ndgl.offline_recipe("aoq", at)


def _curves(budget: Budget) -> Iterator[Experiment]:
    """By the number of teachers, then by the batch with two of them."""
    size, most = SIZES[budget], MOST_TEACHERS[budget]
    for host, seed in _one_model(budget):
        builder = ExperimentBuilder(TEST)

        def own(name: str, at: int, batch: int | None = None, host: BaseModel = host) -> Train:
            return _shortened(trained_base(name, base_of(_setting(host, at, size, batch))), size)

        def student(
            name: str, many: int, batch: int | None = None, host: BaseModel = host, seed: int = seed
        ) -> Train:
            at = base_of(_setting(host, seed, size, batch))
            return _shortened(ndgl.student_stage(name, at, targets=f"targets-{many}"), size)

        teachers = [own(f"teacher-{k}", seed + k) for k in range(1, most + 1)]
        builder.add(*teachers)
        names = tuple(one.name for one in teachers)
        builder.add(
            *(ComputeTargets(name=f"targets-{k}", using=names[:k]) for k in range(1, most + 1))
        )
        builder.compare(base_title(host), OWN, own("own", seed))
        for many in range(1, most + 1):
            stage = student(f"student-of-{many}", many)
            builder.compare(base_title(host), f"NDGL, K = {many}", stage)
        for batch in BATCHES[budget]:
            alone = own(f"own-{batch}", seed, batch)
            taught = student(f"ndgl-{batch}", min(2, most), batch)
            builder.compare(base_title(host), f"{OWN}, batch {batch}", alone)
            builder.compare(base_title(host), f"NDGL, K = 2, batch {batch}", taught)
        yield builder.build("evidence/ndgl-curves-flickr8k", f"{host}-{seed}", DATA)


def _one_model(budget: Budget) -> Iterator[tuple[BaseModel, int]]:
    """Three seeds of CHAN, as in the paper, where they can be afforded, else one of GPO."""
    for seed in range(3 if budget == "gpu" else 1):
        yield "chan" if budget == "gpu" else "gpo", seed


def _setting(host: BaseModel, seed: int, size: NdglSize, batch: int | None = None) -> BaseSetting:
    """A model at the width that the budget affords."""
    return BaseSetting(host=host, dataset=DATA, seed=seed, profile=size.profile, batch=batch)


def _own(host: BaseModel, seed: int, size: NdglSize) -> Train:
    """A training with the model's own loss."""
    return _shortened(trained_base(f"own-{seed}", base_of(_setting(host, seed, size))), size)


def _shortened(stage: Train, size: NdglSize) -> Train:
    """A training as long as the budget affords."""
    plan = replace(
        stage.plan,
        epochs=size.epochs,
        steps=size.steps,
        optimiser=OptimizerConfig(rate=size.rate),
        schedule=CosineLR(warmup=50),
    )
    return replace(stage, plan=plan)


def _lists(using: str, size: NdglSize) -> Mine:
    return Mine(name=LISTS, using=(using,), texts=size.texts, images=max(1, size.texts // 5))


def _teacher_seeds(seed: int) -> tuple[int, ...]:
    return tuple((seed + k) % SEEDS for k in range(1, SEEDS))


def _teachers(seed: int) -> tuple[str, ...]:
    """The trainings that teach the student of a seed."""
    return tuple(f"own-{one}" for one in _teacher_seeds(seed))
