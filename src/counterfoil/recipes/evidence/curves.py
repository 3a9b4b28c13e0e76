"""NDGL by the number of teachers (Table 3) and by the batch (Fig. 4), on Flickr8k."""

from __future__ import annotations

from dataclasses import replace

from counterfoil.recipes import ndgl
from counterfoil.recipes.bases import Host, base, trained
from counterfoil.recipes.evidence.ndgl import DATA, OWN, SIZES, Size, planned, setting, tested
from counterfoil.recipes.evidence.plan import Budget, Experiment, Table
from counterfoil.recipes.recipe import Recipe, Stage, Teach, Train

NAME = "evidence/ndgl-curves-flickr8k"
TEACHERS: dict[Budget, int] = {"cpu": 3, "gpu": 5, "smoke": 2}
BATCHES: dict[Budget, tuple[int, ...]] = {
    "cpu": (32, 128, 512),
    "gpu": (32, 64, 128, 256, 512),
    "smoke": (16, 32),
}


def table() -> Table:
    """The table."""
    return Table(
        name=NAME,
        about="NDGL by the number of teachers and by the batch",
        data=DATA,
        first=OWN,
        experiments=experiments,
    )


def experiments(budget: Budget) -> tuple[Experiment, ...]:
    """CHAN as in the paper, or GPO where little can be afforded; one seed there, else three."""
    host: Host = "chan" if budget == "gpu" else "gpo"
    return tuple(_experiment(host, seed, budget) for seed in range(3 if budget == "gpu" else 1))


def _experiment(host: Host, seed: int, budget: Budget) -> Experiment:
    size, most = SIZES[budget], TEACHERS[budget]
    taught = tuple(_own(host, seed + k, size, f"teacher-{k}") for k in range(1, most + 1))
    stages: list[Stage] = list(taught)
    found: list[tuple[str, Train]] = [(OWN, _own(host, seed, size, "own"))]
    for many in range(1, most + 1):
        using = tuple(one.name for one in taught[:many])
        stages.append(Teach(name=f"targets-{many}", using=using))
        found.append((f"NDGL, K = {many}", _student(host, seed, size, many)))
    two = min(2, most)
    for batch in BATCHES[budget]:
        own = _own(host, seed, size, f"own-{batch}", batch)
        student = _student(host, seed, size, two, f"ndgl-{batch}", batch)
        found += [(f"{OWN}, batch {batch}", own), (f"NDGL, K = 2, batch {batch}", student)]
    tests, rows = tested(host, seed, found, stages)
    key = f"{host}-{seed}"
    recipe = Recipe(name=f"{NAME}/{key}", stages=tests, data=DATA)
    return Experiment(key=key, recipe=recipe, rows=rows)


def _own(host: Host, seed: int, size: Size, name: str, batch: int | None = None) -> Train:
    at = replace(setting(host, seed, size), batch=batch)
    return planned(trained(name, base(at)), size)


def _student(
    host: Host, seed: int, size: Size, many: int, name: str = "", batch: int | None = None
) -> Train:
    at = base(replace(setting(host, seed, size), batch=batch))
    student = ndgl.student(name or f"student-of-{many}", at, targets=f"targets-{many}")
    return planned(student, size)
