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
from counterfoil.recipes.models import PROFILES, DatasetProfile
from counterfoil.recipes.ndgl import LISTS, SEMANTICS
from counterfoil.recipes.ndgl_models import MODELS, ModelSetting, Terms
from counterfoil.training.config import CosineLR, OptimizerConfig

DATA = "flickr8k"
TEST = Evaluate(name="test", using=(), protocol="flickr-1k")
OWN = "own loss"
SEEDS = 3  # of a model's own loss: two teach the third


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
        most_teachers: of the students in the curves.
        batches: sizes in the curves.
        curves: model and seeds of the readings and curves.
    """

    profile: DatasetProfile
    epochs: int
    rate: float
    seeds: dict[str, int]
    edited: tuple[str, ...] = ()
    texts: int = 100
    steps: int = 0
    most_teachers: int
    batches: tuple[int, ...]
    curves: tuple[str, int] = ("gpo", 1)

    def setting(self, name: str, seed: int, batch: int | None = None) -> ModelSetting:
        """A model at the width of the budget."""
        return ModelSetting(name=name, dataset=DATA, seed=seed, profile=self.profile, batch=batch)

    def shorten(self, stage: Train) -> Train:
        """A training with the epochs and the rate of the budget."""
        plan = replace(
            stage.plan,
            epochs=self.epochs,
            steps=self.steps,
            optimiser=OptimizerConfig(rate=self.rate),
            schedule=CosineLR(warmup=50),
        )
        return replace(stage, plan=plan)

    def own(self, title: str, name: str, seed: int, batch: int | None = None) -> Train:
        """A training with the model's own loss."""
        return self.shorten(self.setting(name, seed, batch).setup().stage(title))

    def lists(self, using: str) -> Mine:
        """Mining by a training."""
        return Mine(name=LISTS, using=(using,), texts=self.texts, images=self.texts // 5)


_HERE = PROFILES[DATA]
_ALL = ("chan", "gpo", "esa", "hrem", "dive", "vsrn")
_ONCE = {"gpo": 1, "chan": 1, "esa": 1, "hrem": 1, "dive": 1, "vsrn": 1}
SIZES: dict[Budget, NdglSize] = {
    "cpu": NdglSize(
        profile=_HERE,
        epochs=5,
        rate=3e-3,
        seeds={**_ONCE, "gpo": 3, "chan": 3},
        most_teachers=3,
        batches=(32, 128, 512),
    ),
    "gpu": NdglSize(
        profile=replace(_HERE, width=1024, word_width=300),
        epochs=10,
        rate=5e-4,
        seeds=dict.fromkeys(_ALL, 3),
        edited=_ALL,
        most_teachers=5,
        batches=(32, 64, 128, 256, 512),
        curves=("chan", 3),  # as in the paper
    ),
    "smoke": NdglSize(
        profile=replace(_HERE, width=16, word_width=16),
        epochs=1,
        rate=1e-3,
        seeds=_ONCE,
        edited=("gpo",),
        texts=20,
        steps=20,
        most_teachers=2,
        batches=(16, 32),
    ),
}


def tables() -> tuple[Table, ...]:
    """NDGL's three tables."""
    rows = (
        ("", "NDGL and other ways to use negatives, on six models", _methods),
        (
            "-readings",
            "NDGL: readings of its Eq. 4, its parts, and mined negatives inside it",
            _readings,
        ),
        ("-curves", "NDGL by the number of teachers and by the batch", _curves),
    )
    return tuple(
        Table(
            name=f"evidence/ndgl{kind}-flickr8k",
            about=about,
            data=DATA,
            first=OWN,
            experiments=experiments,
        )
        for kind, about, experiments in rows
    )


def _methods(budget: Budget) -> Iterator[Experiment]:
    """One for each model: own losses first, since others need them; then each seed."""
    size = SIZES[budget]
    for name, count in size.seeds.items():
        title, builder = MODELS[name].title, ExperimentBuilder(TEST)
        own = [size.own(f"own-{seed}", name, seed) for seed in range(SEEDS)]
        builder.add(*own, size.lists("own-0"), CaptionSpaceStage(name=SEMANTICS))
        for stage in own:
            builder.compare(title, OWN, stage)
        for seed in range(count):
            teachers = _teachers(seed)
            builder.measure(title, "ensemble of 2", teachers, f"ensemble-{seed}", seed)
            builder.add(ComputeTargets(name=f"targets-{seed}", using=teachers))
            for method, stage in _compared_methods(name, seed, size):
                builder.compare(title, method, size.shorten(stage))
        yield builder.build("evidence/ndgl-flickr8k", name, DATA)


def _compared_methods(name: str, seed: int, size: NdglSize) -> Iterator[tuple[str, Train]]:
    """Method and training, the most important first."""
    setting, targets = size.setting(name, seed), f"targets-{seed}"
    yield "NDGL, K = 2", ndgl.student_stage(f"ndgl-{seed}", setting.setup(), targets=targets)
    yield "AdapOffQuin", ndgl.offline_stage(f"aoq-{seed}", setting)
    yield "LSEH", ndgl.lseh_stage(f"lseh-{seed}", setting)
    if MODELS[name].reduction == "sum":  # MR and HNR over the batch, beside a summed triplet
        losses: Terms = {
            "mr": (ndgl.MR_WEIGHT, ndgl.margin_distillation("mean")),
            "hnr": (ndgl.HNR_WEIGHT, ndgl.hard_negative_rectification("mean")),
        }
        stage = ndgl.guided_stage(f"ndgl-mean-{seed}", setting.setup(), losses, targets=targets)
        yield "NDGL, K = 2, averaged", stage
    if name in size.edited:
        yield "CFM", ndgl.cfm_stage(f"cfm-{seed}", setting)


def _readings(budget: Budget) -> Iterator[Experiment]:
    """Readings of Eq. 4, NDGL's parts, and combinations that its authors did not try."""
    size = SIZES[budget]
    name, seeds = size.curves
    for seed in range(seeds):
        builder, others = ExperimentBuilder(TEST), _teacher_seeds(seed)
        own = [size.own(f"own-{one}", name, one) for one in (seed, *others)]
        targets = ComputeTargets(name=ndgl.TARGETS, using=_teachers(seed))
        builder.add(*own, size.lists(own[0].name), targets)
        builder.compare(MODELS[name].title, OWN, own[0])
        for method, stage in _compared_readings(size.setting(name, seed)):
            builder.compare(MODELS[name].title, method, size.shorten(stage))
        yield builder.build("evidence/ndgl-readings-flickr8k", f"{name}-{seed}", DATA)


def _compared_readings(setting: ModelSetting) -> Iterator[tuple[str, Train]]:
    """Method and training, the most important first."""
    setup, reduction = setting.setup(), setting.preset.reduction
    yield "MR + HNR", ndgl.student_stage("ndgl", setup)
    for name, loss in ndgl.distillation_readings(reduction, setup.plan.batch).items():
        yield f"MR, {name}", ndgl.guided_stage(f"mr-{name}", setup, {"mr": loss})
    hnr: Terms = {"hnr": (ndgl.HNR_WEIGHT, ndgl.hard_negative_rectification(reduction))}
    yield "HNR", ndgl.guided_stage("hnr", setup, hnr)
    yield "MR (with mined) + HNR + AdapOffQuin", ndgl.offline_student_stage("ndgl-aoq", setting)
    yield "MR + HNR of mined", ndgl.offline_hnr_stage("hnr-offline", setting)
    yield "AdapOffQuin", ndgl.offline_stage("aoq", setting)


def _curves(budget: Budget) -> Iterator[Experiment]:
    """By the number of teachers, then by the batch with two of them."""
    size = SIZES[budget]
    (name, seeds), most = size.curves, size.most_teachers
    for seed in range(seeds):
        builder, title = ExperimentBuilder(TEST), MODELS[name].title
        teachers = [size.own(f"teacher-{k}", name, seed + k) for k in range(1, most + 1)]
        names = tuple(one.name for one in teachers)
        targets = [ComputeTargets(name=f"targets-{k}", using=names[:k]) for k in range(1, most + 1)]
        builder.add(*teachers, *targets)
        builder.compare(title, OWN, size.own("own", name, seed))
        for k in range(1, most + 1):
            setup = size.setting(name, seed).setup()
            student = ndgl.student_stage(f"student-of-{k}", setup, targets=f"targets-{k}")
            builder.compare(title, f"NDGL, K = {k}", size.shorten(student))
        for batch in size.batches:
            own = size.own(f"own-{batch}", name, seed, batch)
            setup = size.setting(name, seed, batch).setup()
            student = ndgl.student_stage(f"ndgl-{batch}", setup, targets=f"targets-{min(2, most)}")
            builder.compare(title, f"{OWN}, batch {batch}", own)
            builder.compare(title, f"NDGL, K = 2, batch {batch}", size.shorten(student))
        yield builder.build("evidence/ndgl-curves-flickr8k", f"{name}-{seed}", DATA)


def _teacher_seeds(seed: int) -> tuple[int, ...]:
    return tuple((seed + k) % SEEDS for k in range(1, SEEDS))


def _teachers(seed: int) -> tuple[str, ...]:
    """The trainings that teach the student of a seed."""
    return tuple(f"own-{one}" for one in _teacher_seeds(seed))
