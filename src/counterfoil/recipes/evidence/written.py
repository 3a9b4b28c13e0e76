"""Captions that TAGS has written, for hosts that cannot write: alone, with AOQ and with NDGL.

The writer is step 1 of "TAGS" in `counterfoil.recipes.evidence.tags`, from the same pre-training
and with the same numbers. Hosts see the regions that the writer sees. Every training is as long as
any other; own losses and the hinge beside them come first for every seed, the combinations after
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from counterfoil.recipes import ndgl, tags, tags_hosts
from counterfoil.recipes.bases import Base, trained
from counterfoil.recipes.evidence.plan import Budget, Experiment, Row, Table
from counterfoil.recipes.evidence.tags import SCENES, sizes
from counterfoil.recipes.ndgl_variants import LISTS
from counterfoil.recipes.profiles import PROFILES
from counterfoil.recipes.recipe import Evaluate, Mine, Recipe, Stage, Teach, Train
from counterfoil.recipes.tags_hosts import HOSTS, TITLES, Host

NAME = "evidence/tags-hosts-scenes"
KEY = "hosts"
WRITER = "step-1-tags"
OWN, AOQ, NDGL = "own loss", "AdapOffQuin", "NDGL, K = 2"
WITH = " + TAGS"
REGIONS = replace(PROFILES["scenes"], lens=tags.lens("scenes"))
SEEDS = 3  # two teach the third
COMBINED: tuple[Host, ...] = ("vsepp", "gpo")
TEXTS, IMAGES = 500, 100  # of 5,000 and 1,000: of the very hardest many are true


@final
@dataclass(frozen=True, kw_only=True)
class Size:
    """What a budget affords; the same for every row.

    Attributes:
        epochs: of each training.
        combined: seeds of the combinations.
        steps: of each training at most; 0 for all epochs.
    """

    epochs: int
    combined: int = SEEDS
    steps: int = 0


SIZES: dict[Budget, Size] = {
    "cpu": Size(epochs=12),
    "gpu": Size(epochs=30),
    "smoke": Size(epochs=1, combined=1, steps=2),
}


def table() -> Table:
    """The table."""
    return Table(
        name=NAME,
        about="hosts that train on captions that TAGS has written",
        data=SCENES,
        first=OWN,
        experiments=experiments,
    )


def experiments(budget: Budget) -> tuple[Experiment, ...]:
    """One, since all hosts and seeds share the writer."""
    size, rows = SIZES[budget], []
    stages: list[Stage] = list(_writer(budget))
    for host, seed, before, trainings in _planned(size):
        stages += before
        for method, train in trainings:
            train = replace(train, plan=replace(train.plan, epochs=size.epochs, steps=size.steps))
            test, models = f"test-{train.name}", (train.name,)
            stages += [train, Evaluate(name=test, using=models)]
            title, lists = TITLES[host], TITLES[host] if train.negatives else ""
            rows.append(
                Row(host=title, method=method, lists=lists, seed=seed, test=test, models=models)
            )
    recipe = Recipe(name=f"{NAME}/{KEY}", stages=tuple(stages), data=SCENES)
    return (Experiment(key=KEY, recipe=recipe, rows=tuple(rows)),)


def _writer(budget: Budget) -> tuple[Stage, ...]:
    """Pre-training, step 1, and what it writes once."""
    size = sizes("scenes")[budget]
    numbers = size.numbers[0]
    step = tags.first("scenes", name=WRITER, numbers=numbers)
    step = replace(step, plan=replace(step.plan, seed=0, dev_images=size.dev_images))
    return *size.pretrain, step, tags_hosts.foils(WRITER, numbers)


Compared = tuple[Host, int, tuple[Stage, ...], tuple[tuple[str, Train], ...]]


def _planned(size: Size) -> Iterator[Compared]:
    """Host, seed, what its trainings need, and these with their methods."""
    for seed in range(SEEDS):
        for host in HOSTS:
            yield host, seed, (), _pair(OWN, _own(host, seed), host)
    for seed in range(size.combined):
        for host in COMBINED:
            yield host, seed, *_offline(host, seed)
            yield host, seed, *_guided(host, seed)


def _base(host: Host, seed: int) -> Base:
    """A host that sees regions."""
    found = tags_hosts.base(host, "scenes", seed, profile=REGIONS)
    return replace(found, lens=REGIONS.lens)


def _own(host: Host, seed: int) -> Train:
    return trained(f"{host}-own-{seed}", _base(host, seed))


def _offline(host: Host, seed: int) -> tuple[tuple[Stage, ...], tuple[tuple[str, Train], ...]]:
    """AdapOffQuin on the lists that this seed's own loss mines."""
    lists = Mine(
        name=f"{host}-{LISTS}-{seed}", using=(f"{host}-own-{seed}",), texts=TEXTS, images=IMAGES
    )
    train = tags_hosts.adaptive(host, "scenes", seed)
    base = _base(host, seed)
    train = replace(
        train,
        name=f"{host}-aoq-{seed}",
        negatives=lists.name,
        model=base.model,
        lens=base.lens,
    )
    return (lists,), _pair(AOQ, train, host)


def _guided(host: Host, seed: int) -> tuple[tuple[Stage, ...], tuple[tuple[str, Train], ...]]:
    """The student of the other seeds' models."""
    using = tuple(f"{host}-own-{(seed + k) % SEEDS}" for k in range(1, SEEDS))
    targets = Teach(name=f"{host}-targets-{seed}", using=using)
    train = ndgl.student(f"{host}-ndgl-{seed}", _base(host, seed), targets=targets.name)
    return (targets,), _pair(NDGL, train, host)


def _pair(method: str, train: Train, host: Host) -> tuple[tuple[str, Train], ...]:
    """A training, and the same with the hinge of written captions."""
    return (method, train), (method + WITH, tags_hosts.beside(train, host))
