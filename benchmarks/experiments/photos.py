"""The default for a folder of photos: both rounds of AOQ against plain training of equal cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.experiments.table import Budget, Contrast, Experiment, ExperimentBuilder, Table
from counterfoil.pipelines.pipeline import Mine, Train
from counterfoil.recipes.photos import photo_recipe

NAME, MODEL, DATA = "photos", "MobileNetV2, frozen", "flickr8k"
FIRST, SECOND, PLAIN = "first round", "both rounds", "plain training of equal cost"
SEEDS = tuple(range(10, 20))  # fixed before; seeds below 10 explored


def tables() -> tuple[Table, ...]:
    """The table of photos."""
    return (
        Table(
            name=NAME,
            question="Do mined negatives help on a folder of photos?",
            data=DATA,
            base=PLAIN,
            experiments=_experiments,
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
    )


def _experiments(budget: Budget) -> Iterator[Experiment]:
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
            plan = replace(stage.plan, seed=seed, keep_last=True, log_every=1000)
            name = "plain" if method == PLAIN else stage.name
            plan = replace(plan, steps=5 if smoke else 0)
            builder.compare(method, replace(stage, name=name, plan=plan))
        yield builder.build(NAME, f"seed-{seed}", DATA)
