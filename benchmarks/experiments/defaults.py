"""What counterfoil does by default: on a folder of photos, without regions, and in ``make demo``.

The default for photos is compared with both rounds of AOQ at equal cost, patches of a frozen tower
stand beside region features, and the demo is repeated with other seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.experiments.foils import FOILS
from benchmarks.experiments.table import Budget, Contrast, Experiment, ExperimentBuilder, Table
from counterfoil.models.layers.pretrained import HALF, PictureFormat
from counterfoil.papers.photos import PUBLIC, photo_recipe, with_patches
from counterfoil.papers.training import ModelSetting
from counterfoil.pipelines.pipeline import Mine, Recipe, Train
from counterfoil.recipes.demo import demo_recipe

MODEL, DATA = "MobileNetV2, frozen", "flickr8k"
FIRST, SECOND, PLAIN = "first round", "both rounds", "plain training of equal cost"
SEEDS = tuple(range(10, 20))  # fixed before; seeds below 10 explored


REGIONS, PATCHES = "region features", "patches of a frozen MobileNetV2"
PATCHES_SIZE, PATCHES_SIDE = 192, 6  # pixels of a side; 6 x 6 patches, as many as there are regions
PATCHES_MODELS = {"gpo": "GPO", "chan": "CHAN", "scan-t2i": "SCAN t-i"}  # the fastest first
PATCHES_SEEDS = (2, 3, 4)  # fixed before; rates and epochs are those of the recipes


DEMO_MODEL, ALIKE, HARDEST = "VSE++", "all negatives alike", "hardest of the batch"
DEMO_SEEDS = tuple(range(2, 12))  # 0, the demo's own, and 1 explored


def tables() -> tuple[Table, ...]:
    """The tables of photos and of the demo."""
    return (
        Table(
            name="photos",
            question="Do mined negatives help on a folder of photos?",
            data=DATA,
            base=PLAIN,
            experiments=_photos,
            contrasts=(
                Contrast(
                    claim="Both rounds of AOQ are better than plain training of equal cost.",
                    model=MODEL,
                    method=SECOND,
                    base=PLAIN,
                    seeds=SEEDS,
                ),
                Contrast(
                    claim="A round on mined negatives is better than none.",
                    model=MODEL,
                    method=SECOND,
                    base=FIRST,
                    seeds=SEEDS,
                ),
            ),
        ),
        Table(
            name="patches",
            question="Do patches of a frozen tower do in place of region features?",
            data=DATA,
            base=REGIONS,
            experiments=_patches,
        ),
        Table(
            name="demo",
            question="Does the demo show the same with other seeds?",
            data=demo_recipe().data,
            base=ALIKE,
            experiments=_demo,
            metrics=("RSum", FOILS),
            contrasts=tuple(
                Contrast(
                    claim=f"The hardest negatives of the batch {claim}.",
                    model=DEMO_MODEL,
                    method=HARDEST,
                    base=ALIKE,
                    seeds=DEMO_SEEDS,
                    metric=metric,
                )
                for metric, claim in (
                    ("RSum", "teach retrieval more than all negatives alike"),
                    (FOILS, "teach to tell captions from foils more than all alike"),
                )
            ),
        ),
    )


def _photos(budget: Budget) -> Iterator[Experiment]:
    """The stages of the recipes `mobilenet` and `aoq/mobilenet`, one experiment for each seed."""
    smoke = budget == "smoke"
    first, mining, second = photo_recipe("aoq/mobilenet", None).stages[:3]
    plain = photo_recipe("mobilenet", None).stages[0]
    assert isinstance(mining, Mine)
    for seed in SEEDS[:1] if smoke else SEEDS:
        builder = ExperimentBuilder(MODEL, seed)
        for method, stage in ((PLAIN, plain), (FIRST, first), (SECOND, second)):
            assert isinstance(stage, Train)
            if method == SECOND:
                builder.add(mining)
            plan = stage.plan.of_epochs(stage.plan.epochs)
            plan = replace(plan, seed=seed, keep_last=True, log_every=1000)
            name = "plain" if method == PLAIN else stage.name
            plan = replace(plan, steps=5 if smoke else 0)
            builder.compare(method, replace(stage, name=name, plan=plan))
        yield builder.build("photos", f"seed-{seed}", DATA)


def _patches(budget: Budget) -> Iterator[Experiment]:
    """Models of regions on stored features and on patches; all else is equal."""
    smoke = budget == "smoke"
    form = PictureFormat(PATCHES_SIZE, HALF, HALF, crop=False)
    for seed in PATCHES_SEEDS[:1] if smoke else PATCHES_SEEDS:
        for name, title in PATCHES_MODELS.items():
            builder = ExperimentBuilder(title, seed)
            stage = ModelSetting(name=name, dataset=DATA, seed=seed).setup().stage("regions")
            plan = replace(stage.plan, keep_last=True, log_every=1000, dev_images=100)
            stage = replace(stage, plan=replace(plan, steps=5 if smoke else 0))
            recipe = Recipe(name=name, stages=(replace(stage, name="patches"),), data=DATA)
            (patches,) = with_patches(recipe, PUBLIC, form).stages
            assert isinstance(patches, Train)
            image = patches.model.arguments["image"].replace(grid=PATCHES_SIDE)
            patches = replace(patches, model=patches.model.replace(image=image))
            builder.compare(REGIONS, stage)
            builder.compare(PATCHES, patches)
            yield builder.build("patches", f"{name}-seed-{seed}", DATA)


def _demo(budget: Budget) -> Iterator[Experiment]:
    """Both trainings of the demo, one experiment for each seed."""
    smoke = budget == "smoke"
    recipe = demo_recipe()
    for seed in DEMO_SEEDS[:1] if smoke else DEMO_SEEDS:
        builder = ExperimentBuilder(DEMO_MODEL, seed)
        for method, stage in zip((ALIKE, HARDEST), recipe.stages, strict=False):
            assert isinstance(stage, Train)
            plan = replace(stage.plan, seed=seed, steps=5 if smoke else 0)
            builder.compare(method, replace(stage, plan=plan))
        yield builder.build("demo", f"seed-{seed}", recipe.data)
