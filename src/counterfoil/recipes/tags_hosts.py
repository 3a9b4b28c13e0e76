"""Captions that TAGS has written, for hosts that cannot write: by themselves, with AOQ, with NDGL.

A UNITER is pre-trained in the domain and trained by step 1 of TAGS, as in `counterfoil.recipes.
tags`; then it writes foils of every training caption, once. A host trains on them beside its own
loss, by the hinge of Eq. 7, once the warm-up of its own loss is over; all else is as without them.
Not in the paper, which trains the model that writes alone; weights and numbers are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

from counterfoil.negatives.written import Written
from counterfoil.objectives.curriculum import After, Then
from counterfoil.objectives.term import Objective, Reduction, Term
from counterfoil.objectives.triplet import RankedBelow
from counterfoil.recipes import aoq, bases, ndgl, ndgl_variants, online, tags
from counterfoil.recipes.bases import Base, Setting, trained
from counterfoil.recipes.members import Host as Single
from counterfoil.recipes.members import Member
from counterfoil.recipes.profiles import Dataset, Profile
from counterfoil.recipes.recipe import Mine, Recipe, Stage, Teach, Train
from counterfoil.recipes.tags_numbers import PAPER, Numbers
from counterfoil.recipes.writes import Write
from counterfoil.spec import Spec, late, of, part

__all__ = [
    "FOILS", "HOSTS", "TITLES", "VARIANTS", "Host", "adaptive", "base", "beside", "foils", "hosts",
    "taught", "with_aoq", "with_ndgl", "writer",
]  # fmt: skip

Host = Literal["vsepp", "gpo", "scan"]
HOSTS: tuple[Host, ...] = get_args(Host)
SINGLE: dict[Host, Single] = {"vsepp": "vsepp", "scan": "scan-t2i"}
TITLES: dict[Host, str] = {"vsepp": "VSE++", "gpo": "GPO", "scan": "SCAN t-i"}

FOILS, OWN = "written", "own"
STORED = 10  # foils of a caption, at most
COUNT = 5  # of them, drawn at each visit
WEIGHT = 1.0


def writer(dataset: Dataset) -> tuple[Stage, ...]:
    """A UNITER that has learnt to write, and what it writes of the training captions."""
    written = foils(tags.STEP_1, PAPER[dataset][0])
    return *tags.pretrained(dataset), tags.first(dataset), written


def foils(using: str, numbers: Numbers) -> Write:
    """What a model writes of the training captions, with the maskings and refills of its step."""
    return Write(
        name=FOILS,
        using=using,
        masks=numbers.masks,
        refills=numbers.refills,
        keep=min(numbers.keep, STORED),
        temperature=numbers.temperature,
    )


def taught(stage: Train, name: str, *, margin: float, reduction: Reduction = "sum") -> Train:
    """A training that also ranks stored foils below its captions, after its own warm-up.

    Args:
        stage: any training without a proposer.
        name: of the new one.
        margin: of the hinge, in units of the host's scores.
        reduction: how the host's losses are summed over a batch.
    """
    assert stage.proposer is None
    terms = stage.objective.arguments["terms"]
    below: Term = part(RankedBelow, role="written", margin=margin, reduction=reduction)
    steps = _warmup(stage.objective)
    late_below = part(After, term=below, steps=steps) if steps else below
    return replace(
        stage,
        name=name,
        objective=stage.objective.but(terms={**terms, "written": (WEIGHT, late_below)}),
        proposer=of(Written, folder=late("written"), lens=late("lens"), count=COUNT),
        written=FOILS,
    )


def hosts(name: Host, dataset: Dataset) -> Recipe:
    """A host's own loss, and that beside the hinge of written captions."""
    own = trained(OWN, base(name, dataset))
    return _recipe("hosts", name, dataset, (), (own, beside(own, name)), "foils of TAGS")


def with_aoq(name: Host, dataset: Dataset) -> Recipe:
    """AdapOffQuin on mined lists, alone and beside the hinge of written captions."""
    own = trained(OWN, base(name, dataset))
    texts, images = aoq.HARDEST[dataset]
    lists = Mine(name=ndgl_variants.LISTS, using=(OWN,), texts=texts, images=images)
    mined = adaptive(name, dataset)
    about = "AdapOffQuin and foils of TAGS"
    trainings = mined, beside(mined, name)
    return _recipe("with-aoq", name, dataset, (own, lists), trainings, about)


def with_ndgl(name: Host, dataset: Dataset) -> Recipe:
    """NDGL's student, alone and beside the hinge of written captions."""
    teachers = tuple(
        trained(f"teacher-{seed}", base(name, dataset, seed)) for seed in range(1, ndgl.K + 1)
    )
    targets = Teach(name=ndgl.TARGETS, using=tuple(one.name for one in teachers))
    student = ndgl.student("student", base(name, dataset))
    trainings = student, beside(student, name)
    return _recipe("with-ndgl", name, dataset, (*teachers, targets), trainings, "NDGL and foils")


VARIANTS: dict[str, tuple[Callable[[Host, Dataset], Recipe], tuple[Host, ...]]] = {
    "tags/hosts": (hosts, HOSTS),
    "tags/with-aoq": (with_aoq, ("vsepp", "gpo")),
    "tags/with-ndgl": (with_ndgl, ("vsepp", "gpo")),
}


def base(name: Host, dataset: Dataset, seed: int = 0, *, profile: Profile | None = None) -> Base:
    """A host as its own paper trains it, at the width of the data set or of another profile."""
    if name == "gpo":
        return bases.base(Setting(host=name, dataset=dataset, seed=seed, profile=profile))
    one = SINGLE[name]
    stage = online.online(one, dataset, member=Member(one, seed=seed))
    model = online.host(one, dataset, profile=profile)
    return Base(model, stage.objective.arguments["terms"], stage.lens, stage.plan, "sum")


def adaptive(name: Host, dataset: Dataset, seed: int = 0) -> Train:
    """A host trained with AdapOffQuin on the lists of the stage "lists"."""
    if name == "gpo":
        return ndgl_variants.offline("adaptive", Setting(host=name, dataset=dataset, seed=seed))
    one = SINGLE[name]
    loss = aoq.adaptive(aoq.offline_warmup(one, dataset))
    return aoq.second(Member(one, seed=seed), dataset, loss)


def beside(stage: Train, name: Host) -> Train:
    """A training of a host, and the hinge of written captions beside its loss."""
    title = f"{stage.name}-{FOILS}"
    if name == "gpo":
        return taught(stage, title, margin=bases.margin(name), reduction=bases.reduction(name))
    return taught(stage, title, margin=online.MARGIN)


def _warmup(objective: Spec[Objective]) -> int:
    """Steps until the host's own triplet is what it is to be."""
    terms = [term for _, term in objective.arguments["terms"].values()]
    return max((term.arguments["steps"] for term in terms if term.make is Then), default=0)


def _recipe(
    kind: str,
    name: Host,
    dataset: Dataset,
    before: tuple[Stage, ...],
    trainings: tuple[Train, Train],
    about: str,
) -> Recipe:
    """The writer, what stands before the trainings, these, a test of each, and a report."""
    tests = ndgl.measured([one.name for one in trainings], dataset)
    stages = (*writer(dataset), *before, *trainings, *tests, ndgl.compared(tests))
    return Recipe(
        name=f"tags/{kind}/{name}-{dataset}",
        stages=stages,
        data=tags.data(dataset),
        about=f"{TITLES[name]}; {about}",
    )
