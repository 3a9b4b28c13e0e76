"""TAGS and TAGS-DC beside hard negatives (Tables 1 and 2), and other models on what TAGS wrote.

One UNITER is pre-trained in the domain, on the training captions alone (see `tags_aligned`), and
every training of every seed starts from it with the same steps, candidates and rate. "TAGS-DC"
goes on from "TAGS" for its second step, as in the paper; "hard negatives, longer" has as many steps
as both.

The third table trains models that cannot generate: on generated captions alone, with AOQ and with
NDGL. The generator is step 1 of "TAGS", from the same pre-training and with the same numbers, and
the models see the regions that it sees. Every training is as long as any other; own losses and the
hinge beside them come first for every seed, the combinations after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from benchmarks.experiments import aoq
from benchmarks.experiments.table import Budget, Experiment, ExperimentBuilder, Table
from counterfoil.pipelines.pipeline import ComputeTargets, Evaluate, Mine, Pretrain, Train
from counterfoil.recipes import ndgl, tags
from counterfoil.recipes.models import PROFILES
from counterfoil.recipes.ndgl import LISTS
from counterfoil.recipes.ndgl_models import BaseSetting, TrainingSetup
from counterfoil.recipes.tags import OTHER_MODELS, PAPER, TagsNumbers, Way

HOST, HARD = "UNITER", "hard negatives"
SHORTLIST = "shortlist"  # ranks what UNITER cannot afford to
DEPTH = 20
SCENES = "scenes:images=1200,dev=50,test=150,features=regions"
WAYS: dict[Way, str] = {
    "tags": "TAGS",
    "wm": "TAGS w/ WM",
    "static": "TAGS w/ SG",
    "released": "TAGS, released rules",
}

# Of the models that train on generated captions.
MODELS_TABLE = "evidence/tags-hosts-scenes"
OWN = "own loss"
REGIONS = replace(PROFILES["scenes"], processor=tags.tags_processor("scenes"))
SEEDS = 3  # two teach the third
COMBINED: tuple[str, ...] = ("vsepp", "gpo")
TEXTS, IMAGES = 500, 100  # of 5,000 and 1,000: of the very hardest many are true
EPOCHS: dict[Budget, int] = {"cpu": 12, "gpu": 30, "smoke": 1}


@final
@dataclass(frozen=True, kw_only=True)
class TagsSize:
    """Settings of a budget, the same for every row.

    Attributes:
        numbers: of the two steps.
        pretrain: pre-training of the model, in order.
        seeds: of every training but the pre-training.
        dev_images: on which epochs are compared.
        ways: variants of step 1.
        both: variants that go on to step 2.
    """

    numbers: tuple[TagsNumbers, TagsNumbers]
    pretrain: tuple[Train | Pretrain, ...]
    seeds: int
    dev_images: int = 50
    ways: tuple[Way, ...] = ("tags", "wm", "static", "released")
    both: tuple[Way, ...] = ("tags", "released")


def tables() -> tuple[Table, ...]:
    """The table of TAGS on two data sets, and that of other models."""
    datasets: tuple[str, ...] = ("scenes", "flickr8k")
    return (
        *(
            Table(
                name=f"evidence/tags-{dataset}",
                about="TAGS and TAGS-DC on UNITER, beside hard negatives",
                data=_data(dataset),
                first=HARD,
                experiments=partial(_variants, dataset),
            )
            for dataset in datasets
        ),
        Table(
            name=MODELS_TABLE,
            about="hosts that train on captions that TAGS has written",
            data=SCENES,
            first=OWN,
            experiments=_models,
        ),
    )


def tags_size(dataset: str, budget: Budget) -> TagsSize:
    """The settings of a budget."""

    def few(*, steps: int, rate: float, words: float = 0.0) -> TagsNumbers:
        """A step of TAGS with few candidates, maskings and refills."""
        return TagsNumbers(
            steps=steps,
            batch=8,
            rate=rate,
            masked=0.1,
            written=1e-3,
            words=words,
            offered=19,
            keep=5,
            masks=4,
            refills=4,
        )

    scenes = dataset == "scenes"
    if budget == "gpu":
        return TagsSize(
            numbers=PAPER[dataset],
            pretrain=_pretraining(dataset, (8, 30)),
            seeds=3,
            dev_images=100,
        )
    if budget == "smoke":
        return TagsSize(
            numbers=(few(steps=2, rate=1e-4), few(steps=2, rate=2e-5, words=1e-3)),
            pretrain=_pretraining(dataset, (1, 1), steps=5),
            seeds=1,
            dev_images=5,
        )
    size = TagsSize(
        numbers=(few(steps=400, rate=2e-4), few(steps=150, rate=4e-5, words=1e-3)),
        pretrain=_pretraining(dataset, (4, 20) if scenes else (2, 1)),
        seeds=3 if scenes else 1,
    )
    return size if scenes else replace(size, ways=("tags",), both=("tags",))


def _pretraining(
    dataset: str, epochs: tuple[int, int], *, steps: int = 0
) -> tuple[Train | Pretrain, ...]:
    """Training on pairs, then UNITER's tasks, for so many epochs each."""
    stages = tags.pretraining_stages(dataset, epochs=epochs, dev_images=50)
    return tuple(replace(stage, plan=replace(stage.plan, steps=steps)) for stage in stages)


def _data(dataset: str) -> str:
    return SCENES if dataset == "scenes" else tags.tags_data(dataset)


def _variants(dataset: str, budget: Budget) -> Iterator[Experiment]:
    """One for each seed: pre-training, then the variants, the most important first."""
    size = tags_size(dataset, budget)
    test = Evaluate(name="test", using=())
    if dataset != "scenes":  # where not everything can be ranked, another model shortlists
        protocol = PROFILES[dataset].protocol
        test = replace(test, protocol=protocol, first=(SHORTLIST,), depth=DEPTH)
    for seed in range(size.seeds):
        builder = ExperimentBuilder(test)
        builder.add(*size.pretrain)
        if dataset != "scenes":
            builder.add(aoq.train(SHORTLIST, "vsepp", aoq.HARDEST, 0, aoq.SIZES[budget]))
        for method, train in _steps(dataset, size):
            plan = replace(train.plan, seed=seed, dev_images=size.dev_images)
            builder.compare(HOST, method, replace(train, plan=plan))
        yield builder.build(f"evidence/tags-{dataset}", f"uniter-{seed}", _data(dataset))


def _steps(dataset: str, size: TagsSize) -> Iterator[tuple[str, Train]]:
    """Method and training."""
    one, two = size.numbers
    yield HARD, tags.tags_stage(0, dataset, numbers=one)
    for way in size.ways:
        name = f"step-1-{way}"
        yield WAYS[way], tags.tags_stage(1, dataset, way, name=name, numbers=one)
        if way in size.both:
            step = tags.tags_stage(2, dataset, way, name=f"step-2-{way}", start=name, numbers=two)
            yield WAYS[way].replace("TAGS", "TAGS-DC"), step
    longer = replace(one, steps=one.steps + two.steps)
    yield f"{HARD}, longer", tags.tags_stage(0, dataset, name="longer", numbers=longer)


def _models(budget: Budget) -> Iterator[Experiment]:
    """One experiment, since all models and seeds share the generator."""
    size = tags_size("scenes", budget)
    generator = "step-1-tags"
    step = tags.tags_stage(1, "scenes", name=generator, numbers=size.numbers[0])
    step = replace(step, plan=replace(step.plan, seed=0, dev_images=size.dev_images))
    builder = ExperimentBuilder(Evaluate(name="test", using=()))
    builder.add(*size.pretrain, step, tags.generate_stage(generator, size.numbers[0]))

    def compare(host: str, method: str, train: Train) -> None:
        """A training, and the same with the hinge of generated captions."""
        taught = tags.other_with_generated(train, host)
        for name, stage in ((method, train), (f"{method} + TAGS", taught)):
            steps = 2 if budget == "smoke" else 0
            plan = replace(stage.plan, epochs=EPOCHS[budget], steps=steps)
            builder.compare(OTHER_MODELS[host], name, replace(stage, plan=plan))

    for seed in range(SEEDS):
        for host in OTHER_MODELS:
            compare(host, OWN, _base(host, seed).stage(f"{host}-own-{seed}"))
    for seed in range(1 if budget == "smoke" else SEEDS):
        for host in COMBINED:
            lists, train = _offline(host, seed)
            builder.add(lists)
            compare(host, "AdapOffQuin", train)
            targets, train = _guided(host, seed)
            builder.add(targets)
            compare(host, "NDGL, K = 2", train)
    yield builder.build(MODELS_TABLE, "hosts", SCENES)


def _base(host: str, seed: int) -> TrainingSetup:
    """A model that sees regions."""
    name = tags.OTHER_NAMES[host]
    setup = BaseSetting(name=name, dataset="scenes", seed=seed, profile=REGIONS).setup()
    return replace(setup, processor=REGIONS.processor)


def _offline(host: str, seed: int) -> tuple[Mine, Train]:
    """AdapOffQuin on the lists that this seed's own loss mines."""
    own, base = f"{host}-own-{seed}", _base(host, seed)
    lists = Mine(name=f"{host}-{LISTS}-{seed}", using=(own,), texts=TEXTS, images=IMAGES)
    train = tags.other_adaptive_stage(host, "scenes", seed)
    name = f"{host}-aoq-{seed}"
    return lists, replace(
        train, name=name, negatives=lists.name, model=base.model, processor=base.processor
    )


def _guided(host: str, seed: int) -> tuple[ComputeTargets, Train]:
    """The student of the other seeds' models."""
    using = tuple(f"{host}-own-{(seed + k) % SEEDS}" for k in range(1, SEEDS))
    targets = ComputeTargets(name=f"{host}-targets-{seed}", using=using)
    return targets, ndgl.student_stage(
        f"{host}-ndgl-{seed}", _base(host, seed), targets=targets.name
    )
