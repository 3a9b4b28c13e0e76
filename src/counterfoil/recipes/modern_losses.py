"""What NDGL's hosts are trained with: their own loss, or one in place of its triplet.

HREM judges three enhanced grids beside the plain one, whatever the loss of the plain one is. The
warm-up with all negatives is an epoch, as the authors have it, but for HREM and DivE; on our own
small sets it is longer, and for all.
"""

from __future__ import annotations

from counterfoil.objectives.curriculum import After, Then
from counterfoil.objectives.distance_weighted import DistanceWeighted
from counterfoil.objectives.mean_triplet import MeanTriplet
from counterfoil.objectives.self_expanding import SelfExpanding
from counterfoil.objectives.term import Objective, Reduction, Term, total
from counterfoil.objectives.triplet import HardestTriplet, SumTriplet
from counterfoil.recipes.modern import Host, paper, reads_bert
from counterfoil.recipes.profiles import LARGE, Dataset
from counterfoil.records import INFERENCE
from counterfoil.spec import Spec, part

MARGIN, CHAN_MARGIN = 0.2, 0.05
SMALL_STEPS: dict[Dataset, int] = {"scenes": 628, "flickr8k": 705}  # with fewer GPO collapses
STEPS: dict[Dataset, int] = {"flickr30k": 1132, "coco": 4425}  # of 128 captions in an epoch
WIDE_STEPS: dict[Dataset, int] = {"flickr30k": 377, "coco": 1475}  # of 384
GRAPH_AFTER: dict[Dataset, int] = {
    "scenes": 628,
    "flickr8k": 705,
    "flickr30k": 8000,
    "coco": 8000,
}
FURTHEST: dict[Dataset, float] = {"coco": 1.9}  # of the distance, HREM's sampler
ENHANCED = ("images enhanced", "texts enhanced", "both enhanced")

Terms = dict[str, tuple[float, Term]]


def objective(name: Host, dataset: Dataset) -> Spec[Objective]:
    """The host's own loss."""
    return total(**terms(name, dataset))


def terms(
    name: Host, dataset: Dataset, instead: Term | None = None, *, longer: float = 1.0
) -> Terms:
    """Weighted terms by name.

    Args:
        name: the host.
        dataset: what it is trained on.
        instead: what judges the plain grid in place of the host's own triplet.
        longer: how many times as many steps come before what begins later, as in smaller batches.
    """
    plain = instead or _own(name, dataset)
    steps = round(longer * warmup(name, dataset))
    expanded = instead is None and paper(name) == "esa"
    whole = begun_with(_first(name, dataset, expanded=expanded), plain, steps)
    return {"triplet": (1.0, whole), **_enhanced(name, dataset, longer)}


def begun_with(first: Term, then: Term, steps: int) -> Term:
    """A term after some steps with another; no steps, no other."""
    return part(Then, first=first, second=then, steps=steps) if steps else then


def against_all(dataset: Dataset) -> type[SumTriplet] | type[MeanTriplet]:
    """What a warm-up is with: the sum of hinges as authors have it, on our own small sets the mean.

    To Adam both are alike, but for a long warm-up a sum would drown what else is learnt.
    """
    return SumTriplet if dataset in LARGE else MeanTriplet


def reduction(name: Host) -> Reduction:
    """How the host's losses are summed over a batch."""
    return "mean" if paper(name) == "dive" else "sum"


def margin(name: Host) -> float:
    """Of the host's triplet."""
    return CHAN_MARGIN if paper(name) == "chan" else MARGIN


def warmup(name: Host, dataset: Dataset) -> int:
    """Steps against all negatives first."""
    if dataset not in LARGE:
        return SMALL_STEPS[dataset]
    if paper(name) in ("hrem", "dive"):
        return 0
    wide = paper(name) == "chan" and not reads_bert(name)
    return (WIDE_STEPS if wide else STEPS)[dataset]


def _first(name: Host, dataset: Dataset, *, expanded: bool) -> Term:
    """What the warm-up of a host is with."""
    if expanded:
        return part(SelfExpanding, against="all" if dataset in LARGE else "mean", margin=MARGIN)
    return part(against_all(dataset), margin=margin(name), reduction=reduction(name))


def _own(name: Host, dataset: Dataset) -> Term:
    match paper(name):
        case "gpo" | "chan":
            return part(HardestTriplet, margin=margin(name))
        case "esa":
            return part(SelfExpanding, margin=MARGIN)
        case "hrem":
            return _by_distance(dataset)
        case "dive":
            return part(HardestTriplet, margin=MARGIN, reduction="mean")


def _by_distance(dataset: Dataset, grid: str = INFERENCE) -> Term:
    furthest = FURTHEST.get(dataset, 1.7)
    return part(DistanceWeighted, margin=MARGIN, furthest=furthest, grid=grid)


def _enhanced(name: Host, dataset: Dataset, longer: float) -> Terms:
    """HREM's other grids, once the plain embeddings have been learnt for a while."""
    if paper(name) != "hrem":
        return {}
    steps = round(longer * GRAPH_AFTER[dataset])
    return {
        grid.replace(" ", "_"): (1.0, part(After, term=_by_distance(dataset, grid), steps=steps))
        for grid in ENHANCED
    }
