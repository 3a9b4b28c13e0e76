"""The hosts that NDGL is tried on, each trained by itself: five modern ones and VSRN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final, get_args

from counterfoil.corpus.lens import LensPlan
from counterfoil.matcher import Matcher
from counterfoil.objectives.term import Reduction, Term, total
from counterfoil.objectives.triplet import HardestTriplet
from counterfoil.recipes import modern, modern_losses, modern_rounds, online, rounds
from counterfoil.recipes.modern_losses import Terms
from counterfoil.recipes.profiles import PROFILES, Dataset, Profile
from counterfoil.recipes.recipe import Evaluate, Recipe, Train
from counterfoil.spec import Spec, part
from counterfoil.train.plan import TrainPlan

Host = modern.Host | Literal["vsrn"]
HOSTS: tuple[Host, ...] = (*modern.HOSTS, "vsrn")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A host on a data set.

    Attributes:
        host: which matcher.
        dataset: what it is trained on.
        seed: of its training.
        profile: widths, where they are not the data set's.
        batch: anchors in a batch, where they are not the host's; warm-ups see as many anchors then.
    """

    host: Host
    dataset: Dataset
    seed: int = 0
    profile: Profile | None = None
    batch: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Base:
    """A host as its own paper trains it.

    Attributes:
        model: the matcher.
        terms: its own loss.
        lens: what it sees.
        plan: its training.
        reduction: how its loss is summed over a batch.
    """

    model: Spec[Matcher]
    terms: Terms
    lens: LensPlan
    plan: TrainPlan
    reduction: Reduction


def base(at: Setting, instead: Term | None = None) -> Base:
    """A host as its paper trains it.

    Args:
        at: which host, and on what.
        instead: what judges the plain grid in place of its own triplet.
    """
    if at.host == "vsrn":
        return _vsrn(at, instead or part(HardestTriplet, margin=online.MARGIN))
    plan, longer = _batched(modern_rounds.plan(at.host, at.dataset, seed=at.seed), at.batch)
    copies = 2 if instead is None else 1
    return Base(
        model=modern.host(at.host, at.dataset, copies=copies, profile=at.profile),
        terms=modern_losses.terms(at.host, at.dataset, instead, longer=longer),
        lens=modern.lens(at.host, at.dataset),
        plan=plan,
        reduction=modern_losses.reduction(at.host),
    )


def _vsrn(at: Setting, term: Term) -> Base:
    plan, longer = _batched(rounds.first("vsrn-single", at.dataset, seed=at.seed), at.batch)
    first = part(modern_losses.against_all(at.dataset), margin=online.MARGIN)
    steps = round(longer * online.warmup("vsrn-single", at.dataset))
    whole = modern_losses.begun_with(first, term, steps)
    return Base(
        model=online.host("vsrn-single", at.dataset, profile=at.profile),
        terms={"triplet": (1.0, whole)},
        lens=PROFILES[at.dataset].lens,
        plan=plan,
        reduction="sum",
    )


def _batched(plan: TrainPlan, batch: int | None) -> tuple[TrainPlan, float]:
    """A plan with batches of another size, and how many times as many there are in an epoch."""
    if batch is None:
        return plan, 1.0
    return replace(plan, batch=batch), plan.batch / batch


def reduction(host: Host) -> Reduction:
    """How the host's losses are summed over a batch."""
    return "sum" if host == "vsrn" else modern_losses.reduction(host)


def margin(name: Host) -> float:
    """Of the host's own triplet."""
    return online.MARGIN if name == "vsrn" else modern_losses.margin(name)


def title(name: Host) -> str:
    """As tables call it."""
    return "VSRN" if name == "vsrn" else modern.title(name)


def sets(name: Host) -> tuple[Dataset, ...]:
    """The data sets that it has recipes for."""
    return get_args(Dataset) if name == "vsrn" else modern.sets(name)


def trained(name: str, host: Base) -> Train:
    """A host trained with its own loss."""
    return Train(
        name=name, model=host.model, objective=total(**host.terms), lens=host.lens, plan=host.plan
    )


def recipe(name: modern.Host, dataset: Dataset) -> Recipe:
    """Train and measure."""
    protocol = PROFILES[dataset].protocol
    tests = [Evaluate(name="test", using=("online",), protocol=protocol)]
    if dataset == "coco":
        tests.append(Evaluate(name="test-5k", using=("online",), protocol="coco-5k"))
    return Recipe(
        name=f"{name}-{dataset}",
        stages=(trained("online", base(Setting(host=name, dataset=dataset))), *tests),
        data=PROFILES[dataset].data,
        about=f"{title(name)}; single model, its own loss",
    )
