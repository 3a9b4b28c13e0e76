"""Hosts as their papers train them: the hardest negative of the batch.

Margin 0.2 on every host. The sum-of-hinges warm-up is VSE-infinity's: without it the maximum may
collapse from a cold start. Rates and epochs are in `counterfoil.recipes.rounds`.
"""

from __future__ import annotations

from counterfoil.matcher import Matcher
from counterfoil.objectives.curriculum import Then
from counterfoil.objectives.term import Objective, Term, total
from counterfoil.objectives.triplet import HardestTriplet, SumTriplet
from counterfoil.recipes import rounds
from counterfoil.recipes.hosts import bfan, scan, vsepp, vsrn
from counterfoil.recipes.members import HOSTS, PAPERS, Host, Member, Name, Paper, members, said
from counterfoil.recipes.profiles import PROFILES, Dataset, Profile
from counterfoil.recipes.recipe import Evaluate, Recipe, Stage, Train
from counterfoil.recipes.rounds import BATCH
from counterfoil.spec import Spec, part
from counterfoil.train.plan import TrainPlan

__all__ = [
    "BATCH", "HOSTS", "MARGIN", "WARMUP", "Host", "evaluations", "hardest", "host",
    "online", "own", "plan", "recipe", "warmed", "warmup",
]  # fmt: skip

MARGIN = 0.2
WARMUP: dict[Dataset, int] = {"scenes": 320, "flickr8k": 235, "flickr30k": 0, "coco": 0}
LONGER: dict[tuple[Paper, Dataset], int] = {  # with the others' these collapse
    ("bfan", "scenes"): 628,
    ("vsrn", "scenes"): 628,
    ("vsrn", "flickr8k"): 705,
}


def host(name: Host, dataset: Dataset, *, profile: Profile | None = None) -> Spec[Matcher]:
    """The matcher of a paper at the width of a data set, or of another profile."""
    told = profile or PROFILES[dataset]
    found, dropout = _host(name, dataset, told), told.dropout
    if not dropout:
        return found
    return found.but(text=found.arguments["text"].but(dropout=dropout))


def _host(name: Host, dataset: Dataset, profile: Profile) -> Spec[Matcher]:
    width, sees = profile.width, profile.sees
    match name:
        case "vsepp":
            return _vsepp(dataset, profile)
        case "scan-t2i":
            return scan(width=width, sees=sees)
        case "scan-t2i-avg":
            return scan(aggregate="Mean", width=width, sees=sees)
        case "scan-i2t":
            lambda_lse = 20.0 if dataset == "coco" else 5.0
            return scan(direction="i2t", lambda_lse=lambda_lse, width=width, sees=sees)
        case "bfan-equal":
            return bfan(focus="equal", width=width, sees=sees)
        case "bfan-prob":
            return bfan(focus="prob", width=width, sees=sees)
        case "vsrn-single":
            return _vsrn(dataset, profile)


def _vsepp(dataset: Dataset, profile: Profile) -> Spec[Matcher]:
    if dataset in ("flickr30k", "coco"):
        return vsepp(width=profile.width, sees=profile.sees)
    return vsepp(
        width=profile.width,
        word_width=profile.word_width,
        sees=profile.sees,
        image_pool="mean+max",
        two_way=True,
    )


def _vsrn(dataset: Dataset, profile: Profile) -> Spec[Matcher]:
    """Twice as wide as the other hosts where the papers' sizes hold: 2048."""
    if dataset in ("flickr30k", "coco"):
        return vsrn(width=2 * profile.width, variant="coco" if dataset == "coco" else "f30k")
    return vsrn(width=profile.width, word_width=profile.word_width, sees=profile.sees)


def warmed(term: Term, warmup: int, name: str = "triplet") -> Spec[Objective]:
    """A loss, after so many steps with the hinges of all negatives of the batch.

    Args:
        term: the written loss.
        warmup: steps before it; 0 for none.
        name: of the loss in the logs.
    """
    first = part(SumTriplet, margin=MARGIN)
    whole = part(Then, first=first, second=term, steps=warmup) if warmup else term
    terms: dict[str, Term] = {name: whole}
    return total(**terms)


def hardest(warmup: int) -> Spec[Objective]:
    """The hardest negative of the batch, after so many steps with all of them."""
    return warmed(part(HardestTriplet, margin=MARGIN), warmup)


def warmup(name: Host, dataset: Dataset) -> int:
    """Steps with the hinges of all negatives that a host needs first."""
    return LONGER.get((PAPERS[name], dataset), WARMUP[dataset])


def plan(name: Host, dataset: Dataset) -> TrainPlan:
    """Rates and epochs of the first round."""
    return rounds.first(name, dataset)


def online(name: Host, dataset: Dataset, *, member: Member | None = None) -> Train:
    """The training stage, named "online", for one of an ensemble "online-<part>"."""
    one = member or Member(name)
    return Train(
        name=one.stage("online"),
        model=host(name, dataset),
        objective=hardest(warmup(one.host, dataset)),
        lens=PROFILES[dataset].lens,
        plan=rounds.first(name, dataset, seed=one.seed),
    )


def evaluations(kind: str, name: Name, dataset: Dataset, test: str = "") -> tuple[Evaluate, ...]:
    """Evaluations of the trainings of a kind: of the ensemble, and of each model in it alone.

    On MS-COCO also over all 5,000 test images, "<test>-5k".

    Args:
        kind: of the trainings, as in "online".
        name: whose models.
        dataset: by whose protocol.
        test: name of the evaluation; by default "test-<kind>".
    """
    protocol, stage, models = PROFILES[dataset].protocol, test or f"test-{kind}", members(name)
    using = tuple(one.stage(kind) for one in models)
    singles = (
        Evaluate(name=one.stage(stage), using=(one.stage(kind),), protocol=protocol)
        for one in models
        if one.part
    )
    whole = Evaluate(name=stage, using=using, protocol=protocol)
    if dataset != "coco":
        return (*singles, whole)
    return (*singles, whole, Evaluate(name=f"{stage}-5k", using=using, protocol="coco-5k"))


def recipe(name: Name, dataset: Dataset) -> Recipe:
    """Train and measure."""
    trained: tuple[Stage, ...] = tuple(
        online(one.host, dataset, member=one) for one in members(name)
    )
    return Recipe(
        name=f"{name}-{dataset}",
        stages=(*trained, *evaluations("online", name, dataset, "test")),
        data=PROFILES[dataset].data,
        about=f"{said(name)}; online hardest triplet",
    )


def own(name: Host, *, pixels: bool) -> Recipe:
    """The same on a user's own data: pixels where there are no features."""
    like: Dataset = "scenes" if pixels else "flickr8k"
    return Recipe(
        name=f"{name}-own",
        stages=(online(name, like), Evaluate(name="test", using=("online",))),
        about="online hardest triplet, own data",
    )
