"""NDGL's comparison on Flickr8k: its hosts with their own loss, with baselines, and with NDGL.

A student of seed s learns from the two models that its host's own loss makes of the next two seeds;
the row "ensemble of 2" of seed s is those two. AdapOffQuin and LSEH take the place of the host's
triplet on the plain grid; lists are those of the first seed. Widths, epochs and rates are the same
for every row of a budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from counterfoil.recipes import ndgl
from counterfoil.recipes import ndgl_variants as variants
from counterfoil.recipes.bases import Base, Host, Setting, base, reduction, title, trained
from counterfoil.recipes.evidence.plan import Budget, Experiment, Row, Table
from counterfoil.recipes.modern_losses import Terms
from counterfoil.recipes.ndgl_variants import LISTS, MEANINGS
from counterfoil.recipes.profiles import PROFILES, Dataset, Profile
from counterfoil.recipes.recipe import (
    Evaluate,
    Mine,
    Protocol,
    Recipe,
    Semantics,
    Stage,
    Teach,
    Train,
)
from counterfoil.train.optimise import Optimiser
from counterfoil.train.schedule import Cosine

NAME = "evidence/ndgl-flickr8k"
DATA: Dataset = "flickr8k"
TEST: Protocol = "flickr-1k"
OWN, ENSEMBLE, GUIDED = "own loss", "ensemble of 2", "NDGL, K = 2"
AVERAGED = "NDGL, K = 2, averaged"  # MR and HNR over the batch, beside a summed triplet
LSEH, AOQ, CFM = "LSEH", "AdapOffQuin", "CFM"
SEEDS = 3  # of a host's own loss: two teach the third


@final
@dataclass(frozen=True, kw_only=True)
class Size:
    """What a budget affords; the same for every row.

    Attributes:
        profile: widths.
        epochs: of each training.
        rate: of the optimiser, falling along a half cosine.
        texts: length of an image's list; a text's is a fifth of it.
        seeds: by host, of everything but its own loss.
        edited: hosts that CFM is tried on.
        steps: of each training at most; 0 for all epochs.
    """

    profile: Profile
    epochs: int
    rate: float
    texts: int
    seeds: dict[Host, int]
    edited: tuple[Host, ...] = ()
    steps: int = 0


_HERE = PROFILES[DATA]
SIZES: dict[Budget, Size] = {
    "cpu": Size(
        profile=_HERE,
        epochs=5,
        rate=3e-3,
        texts=100,
        seeds={"gpo": 3, "chan": 3, "esa": 1, "hrem": 1, "dive": 1, "vsrn": 1},
    ),
    "gpu": Size(
        profile=replace(_HERE, width=1024, word_width=300),
        epochs=10,
        rate=5e-4,
        texts=100,
        seeds={"chan": 3, "gpo": 3, "esa": 3, "hrem": 3, "dive": 3, "vsrn": 3},
        edited=("chan", "gpo", "esa", "hrem", "dive", "vsrn"),
    ),
    "smoke": Size(
        profile=replace(_HERE, width=16, word_width=16),
        epochs=1,
        rate=1e-3,
        texts=20,
        seeds={"gpo": 1, "chan": 1, "esa": 1, "hrem": 1, "dive": 1, "vsrn": 1},
        edited=("gpo",),
        steps=20,
    ),
}


def table() -> Table:
    """The table."""
    return Table(
        name=NAME,
        about="NDGL and other ways to use negatives, on six hosts",
        data=DATA,
        first=OWN,
        experiments=experiments,
    )


def experiments(budget: Budget) -> tuple[Experiment, ...]:
    """One for each host."""
    size = SIZES[budget]
    return tuple(_experiment(host, count, size) for host, count in size.seeds.items())


def planned(stage: Train, size: Size) -> Train:
    """A training as long as the budget affords."""
    plan = replace(
        stage.plan,
        epochs=size.epochs,
        steps=size.steps,
        optimiser=Optimiser(rate=size.rate),
        schedule=Cosine(warmup=50),
    )
    return replace(stage, plan=plan)


def setting(name: Host, seed: int, size: Size) -> Setting:
    """A host at the width that the budget affords."""
    return Setting(host=name, dataset=DATA, seed=seed, profile=size.profile)


def own(name: Host, seed: int, size: Size) -> Train:
    """A training with the host's own loss."""
    return planned(trained(f"own-{seed}", base(setting(name, seed, size))), size)


def taught_by(seed: int) -> tuple[str, ...]:
    """The trainings that teach the student of a seed."""
    return tuple(f"own-{(seed + k) % SEEDS}" for k in range(1, SEEDS))


def _experiment(name: Host, count: int, size: Size) -> Experiment:
    """Own losses first, since others need them; then each seed with all that is compared."""
    alone = [own(name, seed, size) for seed in range(SEEDS)]
    lists = Mine(name=LISTS, using=("own-0",), texts=size.texts, images=max(1, size.texts // 5))
    stages: tuple[Stage, ...] = (*alone, lists, Semantics(name=MEANINGS))
    rows: list[Row] = []
    for seed, train in enumerate(alone):
        stages, tests = tested(name, seed, [(OWN, train)], stages)
        rows += tests
    for seed in range(count):
        together, row = _ensemble(name, seed)
        targets = Teach(name=f"targets-{seed}", using=taught_by(seed))
        before = (*stages, together, targets)
        stages, tests = tested(name, seed, _methods(name, seed, size), before)
        rows += [row, *tests]
    recipe = Recipe(name=f"{NAME}/{name}", stages=stages, data=DATA)
    return Experiment(key=name, recipe=recipe, rows=tuple(rows))


def _ensemble(name: Host, seed: int) -> tuple[Evaluate, Row]:
    """The teachers of a seed, measured together."""
    test, models = f"test-ensemble-{seed}", taught_by(seed)
    row = Row(host=title(name), method=ENSEMBLE, seed=seed, test=test, models=models)
    return Evaluate(name=test, using=models, protocol=TEST), row


def tested(
    host: Host, seed: int, found: Sequence[tuple[str, Train]], before: Sequence[Stage]
) -> tuple[tuple[Stage, ...], tuple[Row, ...]]:
    """Stages with a test behind each training, and the rows that the tests fill.

    Args:
        host: the matcher of all.
        seed: of all.
        found: method and training.
        before: stages that come first; trainings among them are not repeated.
    """
    stages, rows = list(before), []
    for method, train in found:
        if train not in stages:
            stages.append(train)
        test, models = f"test-{train.name}", (train.name,)
        stages.append(Evaluate(name=test, using=models, protocol=TEST))
        mined = title(host) if train.negatives else ""
        rows.append(
            Row(host=title(host), method=method, lists=mined, seed=seed, test=test, models=models)
        )
    return tuple(stages), tuple(rows)


def _methods(name: Host, seed: int, size: Size) -> list[tuple[str, Train]]:
    """What is compared, those that matter most first."""
    at = setting(name, seed, size)
    found = [
        (GUIDED, ndgl.student(f"ndgl-{seed}", base(at), targets=f"targets-{seed}")),
        (AOQ, variants.offline(f"aoq-{seed}", at)),
        (LSEH, variants.semantic(f"lseh-{seed}", at)),
    ]
    if reduction(name) == "sum":
        found.append((AVERAGED, _averaged(seed, base(at))))
    if name in size.edited:
        found.append((CFM, variants.edited(f"cfm-{seed}", at)))
    return [(method, planned(stage, size)) for method, stage in found]


def _averaged(seed: int, host: Base) -> Train:
    """A student whose guided losses are means over the batch."""
    more: Terms = {
        "mr": (ndgl.MR_WEIGHT, ndgl.distribution("mean")),
        "hnr": (ndgl.HNR_WEIGHT, ndgl.rectified("mean")),
    }
    return ndgl.guided(f"ndgl-mean-{seed}", host, more, targets=f"targets-{seed}")
