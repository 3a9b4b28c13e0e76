"""AOQ (Chen et al., ECCV 2020): train, mine the whole training set, train again on what was mined.

Section 4.2: h = 300 texts and 60 images, alpha 0.3, beta 1.5, online margin 0.2, offline margin 0;
the second round starts from scratch. Rates and epochs are in `counterfoil.recipes.rounds`. The
paper mines with VSRN for every host; here each host mines for itself, and `with_vsrn_lists` is the
paper's way.
"""

from __future__ import annotations

from dataclasses import replace

from counterfoil.negatives.mined import MinedPlan
from counterfoil.objectives.quintuplet import AdaptiveQuintuplet
from counterfoil.objectives.term import Objective
from counterfoil.recipes import rounds
from counterfoil.recipes.members import Host, Member, Name, members, said
from counterfoil.recipes.online import MARGIN, WARMUP, evaluations, host, online, warmed, warmup
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Compare, Mine, Recipe, Stage, Train
from counterfoil.spec import Spec, part
from counterfoil.train.plan import TrainPlan

__all__ = [
    "ALPHA", "BETA", "HARDEST", "IMAGES", "OFFLINE_MARGIN", "OFFLINE_WARMUP", "TEXTS",
    "adaptive", "offline_warmup", "recipe", "second", "second_round", "self_mined",
    "with_vsrn_lists",
]  # fmt: skip

TEXTS, IMAGES = 300, 60
ALPHA, BETA = 0.3, 1.5
OFFLINE_MARGIN = 0.0

HARDEST: dict[Dataset, tuple[int, int]] = {
    "scenes": (1000, 200),  # of the very hardest, 6 % of texts and 15 % of images are true
    "flickr8k": (100, 20),
    "flickr30k": (TEXTS, IMAGES),
    "coco": (TEXTS, IMAGES),
}

# beta = 1.5 pulls harder than the online triplet: the scores must have spread further by then
OFFLINE_WARMUP: dict[Dataset, int] = {**WARMUP, "scenes": 470}


def adaptive(warmup: int) -> Spec[Objective]:
    """The adaptive offline quintuplet loss with the paper's numbers (Eq. 5).

    Args:
        warmup: steps with the sum of hinges first, where the host needs them; the paper has none.
    """
    quintuplet = part(
        AdaptiveQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN, alpha=ALPHA, beta=BETA
    )
    return warmed(quintuplet, warmup, "quintuplet")


def offline_warmup(name: Host, dataset: Dataset) -> int:
    """Steps with the hinges of all negatives of the batch before mined ones are met."""
    return max(OFFLINE_WARMUP[dataset], warmup(name, dataset))


def second_round(name: Host, dataset: Dataset) -> TrainPlan:
    """Rates and epochs of the second round."""
    return rounds.second(name, dataset)


def self_mined(
    one: Member, dataset: Dataset, *, texts: int = 0, images: int = 0
) -> tuple[Train, Mine]:
    """Round one of a model and the lists it mines for itself; 0 for the data set's own length."""
    hardest = HARDEST[dataset]
    return (
        online(one.host, dataset, member=one),
        Mine(
            name=one.stage("lists"),
            using=(one.stage("online"),),
            texts=texts or hardest[0],
            images=images or hardest[1],
        ),
    )


def second(
    one: Member,
    dataset: Dataset,
    objective: Spec[Objective],
    *,
    kind: str = "adaptive",
    lists: str = "",
    draw: MinedPlan | None = None,
) -> Train:
    """Round two of a model.

    Args:
        one: the model.
        dataset: what it is trained on.
        objective: its loss.
        kind: what the stage is called, before the model's part.
        lists: the mining stage it draws from; by default its own.
        draw: how to draw; by default from all that is listed.
    """
    return Train(
        name=one.stage(kind),
        model=host(one.host, dataset),
        objective=objective,
        lens=PROFILES[dataset].lens,
        plan=rounds.second(one.host, dataset, seed=one.seed),
        negatives=lists or one.stage("lists"),
        draw=draw or MinedPlan(),
    )


def recipe(name: Name, dataset: Dataset) -> Recipe:
    """Both rounds of every model, measured by the same protocol and set side by side."""
    models = members(name)
    trained: list[Stage] = []
    for one in models:
        loss = adaptive(offline_warmup(one.host, dataset))
        trained += [*self_mined(one, dataset), second(one, dataset, loss)]
    measured = (*evaluations("online", name, dataset), *evaluations("adaptive", name, dataset))
    report = Compare(
        name="report", results=("test-online", "test-adaptive"), negatives=models[0].stage("lists")
    )
    return Recipe(
        name=f"aoq/{name}-{dataset}",
        stages=(*trained, *measured, report),
        data=PROFILES[dataset].data,
        about=f"{said(name)}; online triplet, mining, AdapOffQuin",
    )


def with_vsrn_lists(name: Name, dataset: Dataset) -> Recipe:
    """Round two on the lists of one VSRN: how the paper trains SCAN and BFAN, without round one."""
    teacher = Member("vsrn-single")
    first, lists = self_mined(teacher, dataset)
    trained: list[Stage] = [replace(first, name="teacher"), replace(lists, using=("teacher",))]
    for one in members(name):
        loss = adaptive(offline_warmup(one.host, dataset))
        trained.append(second(one, dataset, loss, lists="lists"))
    teachers = evaluations("teacher", "vsrn-single", dataset)
    report = Compare(name="report", results=("test-teacher", "test-adaptive"), negatives="lists")
    return Recipe(
        name=f"aoq/{name}-{dataset}-vsrn-lists",
        stages=(*trained, *teachers, *evaluations("adaptive", name, dataset), report),
        data=PROFILES[dataset].data,
        about=f"{said(name)}; mined by one VSRN, AdapOffQuin",
    )
