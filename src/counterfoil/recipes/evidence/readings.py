"""What Eq. 4 may mean, what NDGL consists of, and what its authors did not try, on Flickr8k."""

from __future__ import annotations

from counterfoil.recipes import ndgl
from counterfoil.recipes import ndgl_variants as variants
from counterfoil.recipes.bases import Host, base, reduction
from counterfoil.recipes.evidence.ndgl import (
    DATA,
    OWN,
    SIZES,
    Size,
    own,
    planned,
    setting,
    taught_by,
    tested,
)
from counterfoil.recipes.evidence.plan import Budget, Experiment, Table
from counterfoil.recipes.ndgl_variants import LISTS
from counterfoil.recipes.recipe import Mine, Recipe, Stage, Teach, Train

NAME = "evidence/ndgl-readings-flickr8k"
TARGETS = ndgl.TARGETS


def table() -> Table:
    """The table."""
    return Table(
        name=NAME,
        about="NDGL: readings of its Eq. 4, its parts, and mined negatives inside it",
        data=DATA,
        first=OWN,
        experiments=experiments,
    )


def experiments(budget: Budget) -> tuple[Experiment, ...]:
    """GPO where little can be afforded, and else CHAN, as in the paper."""
    host: Host = "chan" if budget == "gpu" else "gpo"
    return tuple(_experiment(host, seed, budget) for seed in range(3 if budget == "gpu" else 1))


def _experiment(host: Host, seed: int, budget: Budget) -> Experiment:
    size, teachers = SIZES[budget], taught_by(seed)
    alone = [own(host, int(name.removeprefix("own-")), size) for name in (f"own-{seed}", *teachers)]
    lists = Mine(
        name=LISTS, using=(f"own-{seed}",), texts=size.texts, images=max(1, size.texts // 5)
    )
    compared = [(OWN, alone[0]), *_compared(host, seed, size)]
    before: tuple[Stage, ...] = (*alone, lists, Teach(name=TARGETS, using=teachers))
    stages, rows = tested(host, seed, compared, before)
    key = f"{host}-{seed}"
    recipe = Recipe(name=f"{NAME}/{key}", stages=stages, data=DATA)
    return Experiment(key=key, recipe=recipe, rows=rows)


def _compared(host: Host, seed: int, size: Size) -> list[tuple[str, Train]]:
    """Method and training, those that matter most first."""
    at, summed = setting(host, seed, size), reduction(host)
    alone = base(at)
    hnr = {"hnr": (ndgl.HNR_WEIGHT, ndgl.rectified(summed))}
    found = [
        ("MR + HNR", ndgl.student("ndgl", alone)),
        *(
            (f"MR, {name}", ndgl.guided(f"mr-{name}", alone, {"mr": term}))
            for name, term in variants.readings(summed, alone.plan.batch).items()
        ),
        ("HNR", ndgl.guided("hnr", alone, hnr)),
        ("MR (with mined) + HNR + AdapOffQuin", variants.both("ndgl-aoq", at)),
        ("MR + HNR of mined", variants.rectified_offline("hnr-offline", at)),
        ("AdapOffQuin", variants.offline("aoq", at)),
    ]
    return [(method, planned(stage, size)) for method, stage in found]
