"""AOQ's comparison on Flickr8k: four losses, on four hosts, each mined by the host's own round one.

Widths and epochs are the same for every row of a budget. The rate, the warm-up with the sum of
hinges and the list length were chosen on dev with VSE++ and the online loss, and are used for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from counterfoil.matcher import Matcher
from counterfoil.models.blocks.gru import GRU
from counterfoil.objectives.curriculum import Then
from counterfoil.objectives.quintuplet import AdaptiveQuintuplet, OfflineQuintuplet, OfflineTriplet
from counterfoil.objectives.term import Objective, Term, total
from counterfoil.objectives.triplet import HardestTriplet, SumTriplet
from counterfoil.recipes.evidence.plan import Budget, Experiment, Row, Table
from counterfoil.recipes.hosts import scan, vsepp
from counterfoil.recipes.profiles import PROFILES
from counterfoil.recipes.recipe import Evaluate, Mine, Recipe, Stage, Train
from counterfoil.spec import Spec, late, part
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Cosine

Host = Literal["vsepp", "scan-t2i"]
Loss = Literal["OffTri", "OffQuin", "AdapOffQuin"]

NAME = "evidence/aoq-flickr8k"
ONLINE = "online"
MARGIN = 0.2
TITLES: dict[Host, str] = {"vsepp": "VSE++", "scan-t2i": "SCAN t-i"}
LOSSES: dict[Loss, Term] = {
    "AdapOffQuin": part(AdaptiveQuintuplet),
    "OffQuin": part(OfflineQuintuplet),
    "OffTri": part(OfflineTriplet),
}


@final
@dataclass(frozen=True, kw_only=True)
class Size:
    """What a budget affords; the same for every row.

    Attributes:
        width: of the joint space.
        word_width: of a word embedding.
        dropout: share of a word embedding's entries dropped in training.
        epochs: of each round.
        rate: of the optimiser, falling along a half cosine.
        warmup: steps with the sum of hinges first.
        texts: length of an image's list; a text's is a fifth of it.
        seeds: by host, how many.
        steps: of each round at most; 0 for all epochs.
    """

    width: int
    word_width: int
    dropout: float
    epochs: int
    rate: float
    warmup: int
    texts: int
    seeds: dict[Host, int]
    steps: int = 0


SIZES: dict[Budget, Size] = {
    "cpu": Size(
        width=128, word_width=128, dropout=0.2, epochs=5, rate=3e-3, warmup=235, texts=100,
        seeds={"vsepp": 3, "scan-t2i": 3},
    ),
    "gpu": Size(
        width=1024, word_width=300, dropout=0.2, epochs=10, rate=5e-4, warmup=235, texts=100,
        seeds={"vsepp": 3, "scan-t2i": 3},
    ),
    "smoke": Size(
        width=16, word_width=16, dropout=0.2, epochs=1, rate=1e-3, warmup=2, texts=20,
        seeds={"vsepp": 1, "scan-t2i": 1}, steps=20,
    ),
}  # fmt: skip


def table() -> Table:
    """The table."""
    return Table(
        name=NAME,
        about="four losses on four hosts, each mining for itself",
        data=PROFILES["flickr8k"].data,
        first=ONLINE,
        experiments=experiments,
    )


def experiments(budget: Budget) -> tuple[Experiment, ...]:
    """First one seed of every host, then the next."""
    seeds = SIZES[budget].seeds
    return tuple(
        experiment(host, seed, budget)
        for seed in range(max(seeds.values()))
        for host, count in seeds.items()
        if seed < count
    )


def experiment(host: Host, seed: int, budget: Budget) -> Experiment:
    """Round one, its lists, and round two with each loss."""
    size = SIZES[budget]
    stages: list[Stage] = [
        _train(ONLINE, host, part(HardestTriplet, margin=MARGIN), seed, size),
        _test(ONLINE),
        Mine(name="lists", using=(ONLINE,), texts=size.texts, images=max(1, size.texts // 5)),
    ]
    for loss, term in LOSSES.items():
        stages += [_train(loss, host, term, seed, size, "lists"), _test(loss)]
    methods = (ONLINE, *LOSSES)
    rows = tuple(
        Row(
            host=TITLES[host],
            method=method,
            lists="" if method == ONLINE else TITLES[host],
            seed=seed,
            test=f"test-{method}",
            models=(method,),
        )
        for method in methods
    )
    key = f"{host}-{seed}"
    return Experiment(
        key=key,
        recipe=Recipe(name=f"{NAME}/{key}", stages=tuple(stages), data="flickr8k"),
        rows=rows,
    )


def _train(
    name: str, host: Host, term: Term, seed: int, size: Size, negatives: str | None = None
) -> Train:
    first = part(SumTriplet, margin=MARGIN)
    objective: Spec[Objective] = total(loss=part(Then, first=first, second=term, steps=size.warmup))
    return Train(
        name=name,
        model=_model(host, size),
        objective=objective,
        lens=PROFILES["flickr8k"].lens,
        plan=TrainPlan(
            epochs=size.epochs,
            seed=seed,
            steps=size.steps,
            optimiser=Optimiser(rate=size.rate),
            schedule=Cosine(warmup=50),
        ),
        negatives=negatives,
    )


def _test(method: str) -> Evaluate:
    return Evaluate(name=f"test-{method}", using=(method,), protocol="flickr-1k")


def _model(host: Host, size: Size) -> Spec[Matcher]:
    text = part(
        GRU,
        words=late("words"),
        word_width=size.word_width,
        width=size.width,
        dropout=size.dropout,
    )
    if host == "scan-t2i":
        return scan(width=size.width).but(text=text)
    return vsepp(width=size.width, image_pool="mean+max", two_way=True).but(text=text)
