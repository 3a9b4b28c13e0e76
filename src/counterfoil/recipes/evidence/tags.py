"""TAGS and TAGS-DC beside what they are compared with (Tables 1 and 2), at a scale of ours.

One UNITER is pre-trained in the domain, on the training captions alone (see `tags_aligned`), and
every training of every seed starts from it with the same steps, candidates and rate. "TAGS-DC"
goes on from "TAGS" for its second step, as in the paper; "hard negatives, longer" has as many steps
as both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from counterfoil.recipes import tags
from counterfoil.recipes.evidence import aoq
from counterfoil.recipes.evidence.plan import Budget, Experiment, Row, Table
from counterfoil.recipes.pretraining import Pretrain
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Evaluate, Recipe, Stage, Train
from counterfoil.recipes.tags_aligned import before
from counterfoil.recipes.tags_numbers import PAPER, Numbers

HOST, HARD, LONGER = "UNITER", "hard negatives", "hard negatives, longer"
SHORTLIST = "shortlist"  # who ranks what UNITER cannot afford to
DEPTH = 20
SCENES = "scenes:images=1200,dev=50,test=150,features=regions"
WAYS: dict[tags.Way, str] = {
    "tags": "TAGS",
    "wm": "TAGS w/ WM",
    "static": "TAGS w/ SG",
    "released": "TAGS, released",
}
EVERY: tuple[tags.Way, ...] = ("tags", "wm", "static", "released")
BOTH: tuple[tags.Way, ...] = ("tags", "released")  # go on to step 2


@final
@dataclass(frozen=True, kw_only=True)
class Size:
    """What a budget affords; the same for every row.

    Attributes:
        numbers: of the two steps.
        pretrain: how the host is pre-trained, in order.
        seeds: of every training but the pre-training.
        dev_images: on which epochs are compared.
        ways: variants of step 1.
        both: which of them go on to step 2.
        capped: steps of every training at most; 0 for all.
    """

    numbers: tuple[Numbers, Numbers]
    pretrain: tuple[Train | Pretrain, ...]
    seeds: int
    dev_images: int = 50
    ways: tuple[tags.Way, ...] = EVERY
    both: tuple[tags.Way, ...] = BOTH
    capped: int = 0


def sizes(dataset: Dataset) -> dict[Budget, Size]:
    """What each budget affords."""
    main: tuple[tags.Way, ...] = ("tags",)
    every = dataset == "scenes"
    return {
        "cpu": Size(
            numbers=(_few(steps=400, rate=2e-4), _few(steps=150, rate=4e-5, words=1e-3)),
            pretrain=_before(dataset, (4, 20) if every else (2, 1)),
            seeds=3 if every else 1,
            ways=EVERY if every else main,
            both=BOTH if every else main,
        ),
        "gpu": Size(
            numbers=PAPER[dataset], pretrain=_before(dataset, (8, 30)), seeds=3, dev_images=100
        ),
        "smoke": Size(
            numbers=(_few(steps=2, rate=1e-4), _few(steps=2, rate=2e-5, words=1e-3)),
            pretrain=_before(dataset, (1, 1), steps=5),
            seeds=1,
            dev_images=5,
        ),
    }


def _few(*, steps: int, rate: float, words: float = 0.0) -> Numbers:
    """A step of TAGS with few candidates, maskings and refills."""
    return Numbers(
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


def _before(dataset: Dataset, epochs: tuple[int, int], *, steps: int = 0) -> tuple[Train, Pretrain]:
    """Pairs told apart, then UNITER's tasks, for so many epochs each."""
    *_, told = tags.pretrained(dataset)
    assert isinstance(told, Pretrain)
    pairs, told = before(told, epochs=epochs, dev_images=50)
    pairs = replace(pairs, plan=replace(pairs.plan, steps=steps))
    return pairs, replace(told, plan=replace(told.plan, steps=steps))


def tables() -> tuple[Table, ...]:
    """One for each data set."""
    of: tuple[tuple[Dataset, Callable[[Budget], Sequence[Experiment]]], ...]
    of = (("scenes", _of_scenes), ("flickr8k", _of_flickr8k))
    return tuple(
        Table(
            name=f"evidence/tags-{dataset}",
            about="TAGS and TAGS-DC on UNITER, beside hard negatives",
            data=_data(dataset),
            first=HARD,
            experiments=experiments,
        )
        for dataset, experiments in of
    )


def _of_scenes(budget: Budget) -> tuple[Experiment, ...]:
    return _experiments("scenes", budget)


def _of_flickr8k(budget: Budget) -> tuple[Experiment, ...]:
    return _experiments("flickr8k", budget)


def _experiments(dataset: Dataset, budget: Budget) -> tuple[Experiment, ...]:
    """One for each seed."""
    seeds = sizes(dataset)[budget].seeds
    return tuple(_experiment(dataset, seed, budget) for seed in range(seeds))


def _experiment(dataset: Dataset, seed: int, budget: Budget) -> Experiment:
    """Pre-training, then what is compared, those that matter most first."""
    size, rows = sizes(dataset)[budget], []
    stages: list[Stage] = [*size.pretrain]
    if dataset != "scenes":
        stages.append(aoq.train(SHORTLIST, "vsepp", aoq.HARDEST, 0, aoq.SIZES[budget]))
    for method, train in _compared(dataset, size):
        plan = replace(train.plan, seed=seed, dev_images=size.dev_images)
        if size.capped:
            plan = replace(plan, steps=min(plan.steps, size.capped))
        stages.append(replace(train, plan=plan))
        test = _test(dataset, train.name)
        stages.append(test)
        models = (train.name,)
        rows.append(Row(host=HOST, method=method, seed=seed, test=test.name, models=models))
    key = f"uniter-{seed}"
    recipe = Recipe(
        name=f"evidence/tags-{dataset}/{key}", stages=tuple(stages), data=_data(dataset)
    )
    return Experiment(key=key, recipe=recipe, rows=tuple(rows))


def _compared(dataset: Dataset, size: Size) -> list[tuple[str, Train]]:
    """Method and training."""
    one, two = size.numbers
    longer = replace(one, steps=one.steps + two.steps)
    found = [(HARD, tags.hard(dataset, one))]
    for way in size.ways:
        before = f"step-1-{way}"
        found.append((WAYS[way], tags.first(dataset, way, name=before, numbers=one)))
        if way in size.both:
            after = tags.second(dataset, way, name=f"step-2-{way}", start=before, numbers=two)
            found.append((WAYS[way].replace("TAGS", "TAGS-DC"), after))
    found.append((LONGER, replace(tags.hard(dataset, longer), name="longer")))
    return found


def _test(dataset: Dataset, name: str) -> Evaluate:
    """Everything is ranked where it can be afforded, and else what another model shortlists."""
    if dataset == "scenes":
        return Evaluate(name=f"test-{name}", using=(name,))
    protocol = PROFILES[dataset].protocol
    return Evaluate(
        name=f"test-{name}", using=(name,), protocol=protocol, first=(SHORTLIST,), depth=DEPTH
    )


def _data(dataset: Dataset) -> str:
    return SCENES if dataset == "scenes" else tags.data(dataset)
