"""NDGL's own comparisons: its parts, its teachers, its batches, other ways to use negatives.

And the readings of Eq. 4, of which the paper says only that it is a Kullback-Leibler divergence of
margins; where tau is not 1 the weight is multiplied by its square, which keeps the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from counterfoil.negatives.edited import Edited
from counterfoil.objectives.counterfactual import SelfAdjusted, SelfExplored
from counterfoil.objectives.margins import HardestRectified, MarginDistribution
from counterfoil.objectives.quintuplet import AdaptiveQuintuplet
from counterfoil.objectives.semantic import SemanticMargin
from counterfoil.objectives.term import Reduction, Term, total
from counterfoil.recipes.aoq import HARDEST
from counterfoil.recipes.bases import Host, Setting, base, margin, reduction, title, trained
from counterfoil.recipes.modern_losses import Terms
from counterfoil.recipes.ndgl import (
    GAMMA,
    HNR_WEIGHT,
    MR_WEIGHT,
    TARGETS,
    compared,
    distribution,
    guided,
    measured,
    rectified,
    student,
    teachers,
)
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Mine, Recipe, Semantics, Stage, Teach, Train
from counterfoil.spec import of, part

LISTS, MEANINGS = "lists", "semantics"
BATCHES = (32, 64, 128, 256, 512)
MOST = 5  # teachers, Table 3
EDIT_MARGIN, UNKNOWN_WORD = 0.1, 3  # CFM's second margin; the id of <unk>


def readings(summed: Reduction = "sum", batch: int = 128) -> dict[str, tuple[float, Term]]:
    """Eq. 4 as it may be meant, weighted beside a loss of this reduction."""
    w = MR_WEIGHT
    return {
        "margins": (w, distribution(summed)),
        "similarities": (w, part(MarginDistribution, operand="similarity", reduction=summed)),
        "with-positive": (w, part(MarginDistribution, include_positive=True, reduction=summed)),
        "teacher-first": (
            w,
            part(MarginDistribution, direction="teacher_student", reduction=summed),
        ),
        "sharp-hard": (
            w / 100,
            part(MarginDistribution, tau=0.1, emphasis="hard", reduction=summed),
        ),
        "sharp-easy": (
            w / 100,
            part(MarginDistribution, tau=0.1, emphasis="easy", reduction=summed),
        ),
        "bernoulli": (w, part(MarginDistribution, form="bernoulli", reduction=summed)),
        "gaussian": (w, part(MarginDistribution, form="gaussian", reduction=summed)),
        "squared": (w, part(MarginDistribution, form="mse", reduction=summed)),
        "flat": (w * batch, part(MarginDistribution, form="flat_softmax", reduction=summed)),
        "batch-mean": (w, part(MarginDistribution, reduction="mean")),
    }


def parts(name: Host, dataset: Dataset) -> Recipe:
    """Table 4: MR, HNR, and SR in place of MR."""
    host = base(Setting(host=name, dataset=dataset))
    sr = part(MarginDistribution, operand="similarity", reduction=host.reduction)
    mr, hnr = (MR_WEIGHT, distribution(host.reduction)), (HNR_WEIGHT, rectified(host.reduction))
    variants: dict[str, Terms] = {
        "mr": {"mr": mr},
        "mr-hnr": {"mr": mr, "hnr": hnr},
        "sr-hnr": {"sr": (MR_WEIGHT, sr), "hnr": hnr},
        "hnr": {"hnr": hnr},
    }
    trainings = [trained("own", host), *(guided(n, host, more) for n, more in variants.items())]
    return _compared("parts", name, dataset, trainings, "its parts (Table 4)")


def read(name: Host, dataset: Dataset) -> Recipe:
    """Every reading of Eq. 4, without HNR."""
    host = base(Setting(host=name, dataset=dataset))
    found = readings(host.reduction, host.plan.batch)
    trainings = [trained("own", host), *(guided(n, host, {"mr": t}) for n, t in found.items())]
    return _compared("readings", name, dataset, trainings, "readings of Eq. 4")


def counts(name: Host, dataset: Dataset) -> Recipe:
    """Table 3: one to five teachers."""
    taught, host = teachers(name, dataset, MOST), base(Setting(host=name, dataset=dataset))
    stages: list[Stage] = list(taught)
    for many in range(1, MOST + 1):
        using = tuple(one.name for one in taught[:many])
        stages.append(Teach(name=f"targets-{many}", using=using))
        stages.append(student(f"student-of-{many}", host, targets=f"targets-{many}"))
    students = [f"student-of-{many}" for many in range(1, MOST + 1)]
    ensembles = [tuple(t.name for t in taught[:many]) for many in range(2, MOST + 1)]
    tests = measured(["teacher-1", *students], dataset, ensembles=ensembles)
    stages += [*tests, compared(tests)]
    return _recipe("teachers", name, dataset, stages, "one to five teachers (Table 3)")


def batches(name: Host, dataset: Dataset) -> Recipe:
    """Fig. 4: batches of 32 to 512, of the host's own loss and of NDGL with the same teachers."""
    trainings: list[Train] = []
    for size in BATCHES:
        sized = base(Setting(host=name, dataset=dataset, batch=size))
        trainings += [trained(f"own-{size}", sized), student(f"ndgl-{size}", sized)]
    return _compared("batches", name, dataset, trainings, "batches of 32 to 512 (Fig. 4)")


def mining(name: Host, dataset: Dataset) -> Recipe:
    """Table 5, and what the paper did not try: mined negatives inside what teachers judge.

    CFM edits regions, so it is left out where pixels are seen.
    """
    (texts, images), at = HARDEST[dataset], Setting(host=name, dataset=dataset)
    taught, own = teachers(name, dataset), trained("own", base(at))
    trainings = [
        offline("adapoffquin", at),
        semantic("lseh", at),
        *([edited("cfm", at)] if PROFILES[dataset].sees == "features" else []),
        student("ndgl", base(at)),
        both("ndgl-adapoffquin", at),
        rectified_offline("ndgl-hnr-offline", at),
    ]
    stages: list[Stage] = [
        own,
        Mine(name=LISTS, using=("own",), texts=texts, images=images),
        Semantics(name=MEANINGS),
        *taught,
        Teach(name=TARGETS, using=tuple(one.name for one in taught)),
        *trainings,
    ]
    tests = measured(["own", *(one.name for one in trainings)], dataset)
    stages += [*tests, compared(tests)]
    return _recipe("mining", name, dataset, stages, "ways to use negatives (Table 5)")


def offline(name: str, at: Setting) -> Train:
    """AdapOffQuin in place of the host's triplet."""
    return replace(trained(name, base(at, _quintuplet(at))), negatives=LISTS)


def semantic(name: str, at: Setting) -> Train:
    """LSEH in place of the host's triplet; its margin is its own."""
    term = part(SemanticMargin, reduction=reduction(at.host))
    return replace(trained(name, base(at, term)), guide=MEANINGS)


def edited(name: str, at: Setting) -> Train:
    """CFM beside the host's own loss: two hinges on edited items, unweighted."""
    host, summed = base(at), reduction(at.host)
    more: Terms = {
        "adjusted": (1.0, part(SelfAdjusted, margin=EDIT_MARGIN, reduction=summed)),
        "explored": (1.0, part(SelfExplored, margin=EDIT_MARGIN, reduction=summed)),
    }
    hidden = UNKNOWN_WORD if at.host == "vsrn" else None  # other hosts have a word that hides
    proposer = of(Edited, margin=margin(at.host), mask=hidden)
    stage = trained(name, host)
    return replace(stage, objective=total(**host.terms, **more), proposer=proposer)


def both(name: str, at: Setting, *, targets: str = TARGETS) -> Train:
    """AdapOffQuin, whose drawn pairs are among the negatives that the teachers judge."""
    summed = reduction(at.host)
    more: Terms = {
        "mr": (MR_WEIGHT, part(MarginDistribution, offline=True, reduction=summed)),
        "hnr": (HNR_WEIGHT, rectified(summed)),
    }
    stage = guided(name, base(at, _quintuplet(at)), more, targets=targets)
    return replace(stage, negatives=LISTS)


def rectified_offline(name: str, at: Setting, *, targets: str = TARGETS) -> Train:
    """NDGL whose HNR compares drawn pairs, where gamma is no longer inert."""
    summed = reduction(at.host)
    hnr = part(HardestRectified, gamma=GAMMA, candidates="offline", reduction=summed)
    more: Terms = {"mr": (MR_WEIGHT, distribution(summed)), "hnr": (HNR_WEIGHT, hnr)}
    return replace(guided(name, base(at), more, targets=targets), negatives=LISTS)


def _quintuplet(at: Setting) -> Term:
    """AdapOffQuin with the host's margin."""
    return part(AdaptiveQuintuplet, online=margin(at.host), reduction=reduction(at.host))


def _compared(
    kind: str, name: Host, dataset: Dataset, trainings: Sequence[Train], about: str
) -> Recipe:
    """Trainings that the same two teachers guide, or nobody, side by side."""
    taught = teachers(name, dataset)
    targets = Teach(name=TARGETS, using=tuple(one.name for one in taught))
    tests = measured([one.name for one in trainings], dataset)
    report = compared(tests)
    return _recipe(kind, name, dataset, [*taught, targets, *trainings, *tests, report], about)


def _recipe(kind: str, name: Host, dataset: Dataset, stages: Sequence[Stage], about: str) -> Recipe:
    return Recipe(
        name=f"ndgl/{kind}/{name}-{dataset}",
        stages=tuple(stages),
        data=PROFILES[dataset].data,
        about=f"{title(name)}; {about}",
    )


_BY_HOST: tuple[Host, ...] = ("gpo", "gpo-bert", "chan", "chan-bert")

VARIANTS: dict[str, tuple[Callable[[Host, Dataset], Recipe], tuple[Host, ...]]] = {
    "parts": (parts, _BY_HOST),
    "readings": (read, _BY_HOST),
    "teachers": (counts, _BY_HOST),
    "batches": (batches, _BY_HOST),
    "mining": (mining, (*_BY_HOST, "vsrn")),
}
