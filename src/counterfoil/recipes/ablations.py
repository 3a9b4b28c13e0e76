"""AOQ's other losses and its ablations (Tables 1 and 3), for any host and data set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final, get_args

from counterfoil.negatives.mined import MinedPlan
from counterfoil.objectives.online_quintuplet import OnlineQuintuplet
from counterfoil.objectives.quintuplet import AdaptiveQuintuplet, OfflineQuintuplet, OfflineTriplet
from counterfoil.objectives.term import Objective, Term
from counterfoil.recipes import aoq, rounds
from counterfoil.recipes.aoq import ALPHA, BETA, HARDEST, OFFLINE_MARGIN
from counterfoil.recipes.members import PAPERS, Host, Member, Name, members, said
from counterfoil.recipes.online import MARGIN, evaluations, warmed
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Compare, Recipe, Stage, Train
from counterfoil.spec import Spec, part

Loss = Literal[
    "offtri",
    "offquin",
    "adapoffquin",
    "only-offline",
    "fine-tune",
    "online-quin",
    "positive-adaptive",
    "squared",
    "h200",
    "h300",
    "h500",
    "h1000",
    "released-code",
]
LOSSES: tuple[Loss, ...] = get_args(Loss)


@final
@dataclass(frozen=True, slots=True)
class Variant:
    """How round two differs from the method as it stands.

    Attributes:
        about: in a few words.
        term: the loss, written down.
        texts: hardest texts of an image that are drawn from, images a fifth; 0 for the usual.
        cold: whether it begins without the sum of hinges, where the data set has such a warm-up.
        fine_tune: whether it begins from round one instead of from scratch.
        released: whether draws, positives, rates and VSRN's batch statistics are those of the
            authors' code.
    """

    about: str
    term: Term
    texts: int = 0
    cold: bool = False
    fine_tune: bool = False
    released: bool = False


_FINAL = part(AdaptiveQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN, alpha=ALPHA, beta=BETA)
_QUINTUPLET = part(OfflineQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN)

VARIANTS: dict[Loss, Variant] = {
    "offtri": Variant("OffTri, Eq. 3", part(OfflineTriplet, online=MARGIN, offline=OFFLINE_MARGIN)),
    "offquin": Variant("OffQuin, Eq. 4", _QUINTUPLET),
    "adapoffquin": Variant("AdapOffQuin, Eq. 5", _FINAL),
    "only-offline": Variant(
        "Eq. 4 without its online hinges",
        part(OfflineQuintuplet, online=None, offline=OFFLINE_MARGIN),
        cold=True,
    ),
    "fine-tune": Variant("Eq. 5 from the weights of round one", _FINAL, cold=True, fine_tune=True),
    "online-quin": Variant(
        "Eq. 4, derived pairs from online negatives",
        part(OnlineQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN),
    ),
    "positive-adaptive": Variant(
        "w/o OfflineAdap: Eq. 5 weighed by the positive's score",
        part(
            AdaptiveQuintuplet,
            online=MARGIN,
            offline=OFFLINE_MARGIN,
            alpha=ALPHA,
            beta=BETA,
            reference="positive",
        ),
    ),
    "squared": Variant(
        "Eq. 4 with squared hinges, section 3.3",
        part(OfflineQuintuplet, online=MARGIN, offline=OFFLINE_MARGIN, squared=True),
    ),
    "h200": Variant("Eq. 5, h = 200", _FINAL, texts=200),
    "h300": Variant("Eq. 5, h = 300", _FINAL, texts=300),
    "h500": Variant("Eq. 5, h = 500", _FINAL, texts=500),
    "h1000": Variant("Eq. 5, h = 1000", _FINAL, texts=1000),
    "released-code": Variant("Eq. 5 as the authors' code has it", _FINAL, released=True),
}


def objective(loss: Loss, host: Host, dataset: Dataset) -> Spec[Objective]:
    """The loss of a variant, with the warm-up that host and data set need."""
    found = VARIANTS[loss]
    return warmed(found.term, 0 if found.cold else aoq.offline_warmup(host, dataset), "quintuplet")


def listed(loss: Loss, dataset: Dataset) -> tuple[int, int]:
    """How many of the hardest texts and images a variant draws from: h and h / 5."""
    texts = VARIANTS[loss].texts
    return (texts, texts // 5) if texts else HARDEST[dataset]


def drawn(loss: Loss, dataset: Dataset) -> MinedPlan:
    """How a variant draws."""
    texts, images = listed(loss, dataset)
    released = VARIANTS[loss].released
    return MinedPlan(texts=texts, images=images, tied_rank=released, resample=not released)


def variant(loss: Loss, name: Name, dataset: Dataset) -> Recipe:
    """Round one, its lists, and round two with one loss; compared with round one."""
    found = _recipe((loss,), name, dataset, first="online")
    about = f"{said(name)}; {VARIANTS[loss].about}"
    return replace(found, name=f"aoq/ablations/{loss}/{name}-{dataset}", about=about)


def table(name: Name, dataset: Dataset) -> Recipe:
    """Round one, its lists, and round two with every loss; compared with the method as it stands.

    Table 3 has the differences in parentheses; here they stand in the report.
    """
    found = _recipe(LOSSES, name, dataset, first="adapoffquin")
    about = f"{said(name)}; all of AOQ's Tables 1 and 3"
    return replace(found, name=f"aoq/ablations/{name}-{dataset}", about=about)


def second(loss: Loss, one: Member, dataset: Dataset) -> Train:
    """Round two of one model with one loss."""
    found = VARIANTS[loss]
    stage = aoq.second(
        one, dataset, objective(loss, one.host, dataset), kind=loss, draw=drawn(loss, dataset)
    )
    if found.fine_tune:
        stage = replace(stage, start=one.stage("online"))
    return _released(stage, one, dataset) if found.released else stage


def _released(stage: Train, one: Member, dataset: Dataset) -> Train:
    plan = rounds.released(one.host, dataset, seed=one.seed)
    apart = PAPERS[one.host] == "vsrn"
    model = stage.model.but(bn_passes="separate") if apart else stage.model
    return replace(stage, plan=plan, positives="diagonal", model=model)


def _recipe(losses: tuple[Loss, ...], name: Name, dataset: Dataset, *, first: str) -> Recipe:
    texts, images = (max(lengths) for lengths in zip(*(listed(loss, dataset) for loss in losses)))
    stages: list[Stage] = []
    for one in members(name):
        stages += aoq.self_mined(one, dataset, texts=texts, images=images)
        stages += [second(loss, one, dataset) for loss in losses]
    for kind in ("online", *losses):
        stages += evaluations(kind, name, dataset)
    others = [f"test-{kind}" for kind in ("online", *losses) if kind != first]
    lists = members(name)[0].stage("lists")
    report = Compare(name="report", results=(f"test-{first}", *others), negatives=lists)
    return Recipe(name=f"{name}-{dataset}", stages=(*stages, report), data=PROFILES[dataset].data)
