"""VSE++ and SCAN as their papers train them: the hardest negative of the batch.

VSE++ (Faghri et al., BMVC 2018, section 4.1): Adam at 2e-4, a tenth of it from epoch 15, 30 epochs.
SCAN (Lee et al., ECCV 2018, section 4.3): the same on Flickr30K; 5e-4, a tenth from epoch 10, 20
epochs on MS-COCO. Batches of 128, margin 0.2, gradients clipped at 2. The sum-of-hinges warm-up is
VSE-infinity's: without it the maximum may collapse from a cold start.
"""

from __future__ import annotations

from typing import Literal

from counterfoil.matcher import Matcher
from counterfoil.objectives.curriculum import Then
from counterfoil.objectives.term import Objective, total
from counterfoil.objectives.triplet import HardestTriplet, SumTriplet
from counterfoil.recipes.hosts import scan, vsepp
from counterfoil.recipes.profiles import PROFILES, Dataset, Profile
from counterfoil.recipes.published import Published
from counterfoil.recipes.recipe import Evaluate, Recipe, Train
from counterfoil.spec import Spec, part
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Cosine, StepDecay

Host = Literal["vsepp", "scan-t2i", "scan-i2t"]
HOSTS: tuple[Host, ...] = ("vsepp", "scan-t2i", "scan-i2t")

MARGIN = 0.2
BATCH = 128

PUBLISHED = (
    Published(
        "VSE++ (ResNet, fine-tuned)", "coco-1k", (64.6, 90.0, 95.7), (52.0, 84.3, 92.0), 1,
        "VSE++, Table 1",
    ),
    Published(
        "VSE++ (ResNet, fine-tuned)", "flickr30k-1k", (52.9, 80.5, 87.2), (39.6, 70.1, 79.5), 1,
        "VSE++, Table 3",
    ),
    Published(
        "SCAN t-i LSE", "flickr30k-1k", (61.1, 85.4, 91.5), (43.3, 71.9, 80.9), 1, "SCAN, Table 1"
    ),
    Published(
        "SCAN i-t LSE", "flickr30k-1k", (67.7, 88.9, 94.0), (44.0, 74.2, 82.6), 1, "SCAN, Table 1"
    ),
    Published(
        "SCAN t-i AVG + i-t LSE", "flickr30k-1k", (67.4, 90.3, 95.8), (48.6, 77.7, 85.2), 2,
        "SCAN, Table 1",
    ),
    Published(
        "SCAN t-i AVG + i-t LSE", "coco-1k", (72.7, 94.8, 98.4), (58.8, 88.4, 94.8), 2,
        "SCAN, Table 2",
    ),
    Published(
        "SCAN t-i AVG + i-t LSE", "coco-5k", (50.4, 82.2, 90.0), (38.6, 69.3, 80.4), 2,
        "SCAN, Table 2",
    ),
)  # fmt: skip


def host(name: Host, dataset: Dataset) -> Spec[Matcher]:
    """The matcher of a paper at the width of a data set."""
    profile = PROFILES[dataset]
    if name == "vsepp" and dataset in ("flickr30k", "coco"):
        return vsepp(width=profile.width, sees=profile.sees)
    if name == "vsepp":
        return vsepp(
            width=profile.width,
            word_width=profile.word_width,
            sees=profile.sees,
            image_pool="mean+max",
            two_way=True,
        )
    if name == "scan-t2i":
        return scan(width=profile.width, sees=profile.sees)
    lambda_lse = 20.0 if dataset == "coco" else 5.0
    return scan(direction="i2t", lambda_lse=lambda_lse, width=profile.width, sees=profile.sees)


def hardest(warmup: int) -> Spec[Objective]:
    """The hardest negative of the batch, after so many steps with all of them."""
    triplet = part(HardestTriplet, margin=MARGIN)
    if not warmup:
        return total(triplet=triplet)
    first = part(SumTriplet, margin=MARGIN)
    return total(triplet=part(Then, first=first, second=triplet, steps=warmup))


def plan(name: Host, dataset: Dataset) -> TrainPlan:
    """Rates and epochs; those of `scenes` and Flickr8k are ours, chosen on dev."""
    if dataset == "scenes":
        return TrainPlan(
            epochs=5,
            batch=64,
            optimiser=Optimiser(rule="adamw", rate=1e-3),
            schedule=Cosine(warmup=50),
        )
    if dataset == "flickr8k":
        return TrainPlan(
            epochs=5,
            batch=BATCH,
            optimiser=Optimiser(rate=5e-4),
            schedule=StepDecay(at=(4,)),
        )
    if dataset == "coco" and name != "vsepp":
        return TrainPlan(
            epochs=20, batch=BATCH, optimiser=Optimiser(rate=5e-4), schedule=StepDecay(at=(10,))
        )
    return TrainPlan(
        epochs=30, batch=BATCH, optimiser=Optimiser(rate=2e-4), schedule=StepDecay(at=(15,))
    )


WARMUP: dict[Dataset, int] = {"scenes": 320, "flickr8k": 470, "flickr30k": 0, "coco": 0}


def online(name: Host, dataset: Dataset) -> Train:
    """The training stage, named "online"."""
    return Train(
        name="online",
        model=host(name, dataset),
        objective=hardest(WARMUP[dataset]),
        lens=PROFILES[dataset].lens,
        plan=plan(name, dataset),
    )


def recipe(name: Host, dataset: Dataset) -> Recipe:
    """Train and measure."""
    profile: Profile = PROFILES[dataset]
    return Recipe(
        name=f"{name}-{dataset}",
        stages=(
            online(name, dataset),
            Evaluate(name="test", using=("online",), protocol=profile.protocol),
        ),
        data=profile.data,
        about="online hardest triplet",
    )


def own(name: Host, *, pixels: bool) -> Recipe:
    """The same on a user's own data: pixels where there are no features."""
    like: Dataset = "scenes" if pixels else "flickr8k"
    return Recipe(
        name=f"{name}-own",
        stages=(online(name, like), Evaluate(name="test", using=("online",))),
        about="online hardest triplet, own data",
    )
