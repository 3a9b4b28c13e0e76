"""NDGL (Zhou et al., AAAI 2025): K models with the hardest negatives teach one all of them.

K = 2 teachers differ in their seed, MR (Eq. 4) weighs 100, HNR (Eq. 5) 0.5, gamma is 0.01 and all
else is the host's own. Eq. 4 leaves open which distributions are compared; here it is a softmax
over each anchor's negatives, summed as the host sums its triplet, see `MarginDistribution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from counterfoil.objectives.margins import HardestRectified, MarginDistribution
from counterfoil.objectives.term import Reduction, Term, total
from counterfoil.recipes.bases import HOSTS, Base, Host, Setting, base, sets, title, trained
from counterfoil.recipes.modern_losses import Terms
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Compare, Evaluate, Recipe, Stage, Teach, Train
from counterfoil.spec import part

__all__ = [
    "GAMMA",
    "HNR_WEIGHT",
    "HOSTS",
    "MR_WEIGHT",
    "TARGETS",
    "Host",
    "K",
    "distribution",
    "guided",
    "measured",
    "recipe",
    "rectified",
    "sets",
    "student",
    "teachers",
]  # fmt: skip

K = 2
MR_WEIGHT, HNR_WEIGHT, GAMMA = 100.0, 0.5, 0.01
TARGETS = "targets"


def distribution(reduction: Reduction = "sum") -> Term:
    """MR, in the reading that is taken here."""
    return part(MarginDistribution, reduction=reduction)


def rectified(reduction: Reduction = "sum") -> Term:
    """HNR."""
    return part(HardestRectified, gamma=GAMMA, reduction=reduction)


def guided(name: str, host: Base, more: Terms, *, targets: str = TARGETS) -> Train:
    """A host trained with its own loss and with terms that read a guide."""
    stage = trained(name, host)
    return replace(stage, objective=total(**host.terms, **more), guide=targets)


def student(name: str, host: Base, *, targets: str = TARGETS) -> Train:
    """A host trained with MR and HNR beside its own loss (Eq. 6)."""
    more: Terms = {
        "mr": (MR_WEIGHT, distribution(host.reduction)),
        "hnr": (HNR_WEIGHT, rectified(host.reduction)),
    }
    return guided(name, host, more, targets=targets)


def teachers(name: Host, dataset: Dataset, count: int = K) -> tuple[Train, ...]:
    """The host from seeds 1 to `count`; the student's is 0."""
    return tuple(
        trained(f"teacher-{seed}", base(Setting(host=name, dataset=dataset, seed=seed)))
        for seed in range(1, count + 1)
    )


def measured(
    trainings: Sequence[str], dataset: Dataset, *, ensembles: Sequence[tuple[str, ...]] = ()
) -> tuple[Evaluate, ...]:
    """A test of every training alone, and of ensembles of the first few.

    On MS-COCO also over all 5,000 test images, "<test>-5k".
    """
    using: dict[str, tuple[str, ...]] = {f"test-{one}": (one,) for one in trainings}
    using |= {f"test-ensemble-of-{len(them)}": them for them in ensembles}
    usual = tuple(
        Evaluate(name=name, using=them, protocol=PROFILES[dataset].protocol)
        for name, them in using.items()
    )
    if dataset != "coco":
        return usual
    whole = (
        Evaluate(name=f"{name}-5k", using=them, protocol="coco-5k") for name, them in using.items()
    )
    return (*usual, *whole)


def compared(tests: Sequence[Evaluate]) -> Compare:
    """A report of tests under the data set's usual protocol."""
    names = tuple(test.name for test in tests if not test.name.endswith("-5k"))
    return Compare(name="report", results=names)


def recipe(name: Host, dataset: Dataset, *, saved: tuple[str, ...] = ()) -> Recipe:
    """K teachers, what they think of the training split, the student; all measured (Fig. 3a).

    Args:
        name: the host.
        dataset: what it is trained on.
        saved: models that teach instead, of which none is trained or measured.
    """
    if saved:
        return _taught_by(saved, name, dataset)
    taught = teachers(name, dataset)
    names = tuple(one.name for one in taught)
    tests = measured((*names, "student"), dataset, ensembles=[names])
    stages: tuple[Stage, ...] = (
        *taught,
        Teach(name=TARGETS, using=names),
        student("student", base(Setting(host=name, dataset=dataset))),
        *tests,
        Compare(name="report", results=("test-teacher-1", f"test-ensemble-of-{K}", "test-student")),
    )
    return Recipe(
        name=f"ndgl/{name}-{dataset}",
        stages=stages,
        data=PROFILES[dataset].data,
        about=f"{title(name)}; {K} teachers, their ensemble, the student",
    )


def _taught_by(saved: tuple[str, ...], name: Host, dataset: Dataset) -> Recipe:
    stages: tuple[Stage, ...] = (
        Teach(name=TARGETS, models=saved),
        student("student", base(Setting(host=name, dataset=dataset))),
        *measured(("student",), dataset),
    )
    return Recipe(
        name=f"ndgl/{name}-{dataset}",
        stages=stages,
        data=PROFILES[dataset].data,
        about=f"{title(name)}; the student of {len(saved)} saved model{'s' * (len(saved) > 1)}",
    )
