"""AOQ's comparison on Flickr8k: four losses on four hosts.

A host trains on lists that its own round one mined, or on VSRN's, as in the paper.
Widths and epochs are the same for every row of a budget. The rate, the warm-up with the sum of
hinges and the list length were chosen on dev with VSE++ and the online loss, and are used for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from counterfoil.matcher import Matcher
from counterfoil.models.blocks.gru import GRU
from counterfoil.objectives.curriculum import Then
from counterfoil.objectives.quintuplet import AdaptiveQuintuplet, OfflineQuintuplet, OfflineTriplet
from counterfoil.objectives.term import Objective, Term, total
from counterfoil.objectives.triplet import HardestTriplet, SumTriplet
from counterfoil.recipes.evidence.plan import Budget, Experiment, Row, Table
from counterfoil.recipes.hosts import bfan, scan, vsepp, vsrn
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Evaluate, Mine, Protocol, Recipe, Stage, Train
from counterfoil.spec import Spec, late, part
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Cosine

Host = Literal["vsepp", "scan-t2i", "bfan", "vsrn"]
Loss = Literal["OffTri", "OffQuin", "AdapOffQuin"]

NAME = "evidence/aoq-flickr8k"
ONLINE = "online"
LISTS = "lists"
MARGIN = 0.2
DATA: Dataset = "flickr8k"
TEST: Protocol = "flickr-1k"
TITLES: dict[Host, str] = {
    "vsepp": "VSE++",
    "scan-t2i": "SCAN t-i",
    "bfan": "BFAN equal",
    "vsrn": "VSRN",
}
LOSSES: dict[Loss, Term] = {
    "AdapOffQuin": part(AdaptiveQuintuplet),
    "OffQuin": part(OfflineQuintuplet),
    "OffTri": part(OfflineTriplet),
}

HARDEST: Term = part(HardestTriplet, margin=MARGIN)
EVERY: tuple[Loss, ...] = tuple(LOSSES)


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
        seeds: by host that mines for itself, how many.
        guests: hosts that train on VSRN's lists, as in the paper, and with which losses.
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
    guests: dict[Host, tuple[Loss, ...]]
    steps: int = 0


SIZES: dict[Budget, Size] = {
    "cpu": Size(
        width=128, word_width=128, dropout=0.2, epochs=5, rate=3e-3, warmup=235, texts=100,
        seeds={"vsepp": 3, "scan-t2i": 3, "vsrn": 1}, guests={"bfan": EVERY},
    ),
    "gpu": Size(
        width=1024, word_width=300, dropout=0.2, epochs=10, rate=5e-4, warmup=235, texts=100,
        seeds={"vsepp": 3, "scan-t2i": 3, "bfan": 3, "vsrn": 3},
        guests={"scan-t2i": ("AdapOffQuin",)},
    ),
    "smoke": Size(
        width=16, word_width=16, dropout=0.2, epochs=1, rate=1e-3, warmup=2, texts=20,
        seeds={"vsepp": 1, "scan-t2i": 1, "bfan": 1, "vsrn": 1}, guests={"bfan": EVERY}, steps=20,
    ),
}  # fmt: skip


def table() -> Table:
    """The table."""
    return Table(
        name=NAME,
        about="four losses on four hosts, each mining for itself",
        data=DATA,
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
    """Round one, its lists, and round two with each loss; VSRN has its guests."""
    size, key = SIZES[budget], f"{host}-{seed}"
    texts = size.texts
    lists = Mine(name=LISTS, using=(ONLINE,), texts=texts, images=max(1, texts // 5))
    trained = [train(ONLINE, host, HARDEST, seed, size)]
    trained += [train(loss, host, term, seed, size) for loss, term in LOSSES.items()]
    rows = [_row(host, seed, stage.name) for stage in trained]
    for guest, losses in size.guests.items() if host == "vsrn" else ():
        alone = guest not in size.seeds
        if alone:
            name = f"{guest}-{ONLINE}"
            trained.append(train(name, guest, HARDEST, seed, size))
            rows.append(_row(guest, seed, name))
        for loss in losses:
            trained.append(train(f"{guest}-{loss}", guest, LOSSES[loss], seed, size))
            rows.append(_row(guest, seed, f"{guest}-{loss}", lists="vsrn"))
    stages = tested(trained)
    recipe = Recipe(name=f"{NAME}/{key}", stages=(*stages[:2], lists, *stages[2:]), data=DATA)
    return Experiment(key=key, recipe=recipe, rows=tuple(rows))


def tested(trained: Sequence[Train]) -> list[Stage]:
    """Each training with its test behind it."""
    tests = [Evaluate(name=f"test-{t.name}", using=(t.name,), protocol=TEST) for t in trained]
    return [stage for pair in zip(trained, tests, strict=True) for stage in pair]


def _row(host: Host, seed: int, stage: str, lists: Host | None = None) -> Row:
    method = stage.removeprefix(f"{host}-")
    mined = "" if method == ONLINE else TITLES[lists or host]
    return Row(
        host=TITLES[host],
        method=method,
        lists=mined,
        seed=seed,
        test=f"test-{stage}",
        models=(stage,),
    )


def train(name: str, host: Host, term: Term, seed: int, size: Size) -> Train:
    """A training stage; on mined lists unless its name ends in "online"."""
    first = part(SumTriplet, margin=MARGIN)
    objective: Spec[Objective] = total(loss=part(Then, first=first, second=term, steps=size.warmup))
    return Train(
        name=name,
        model=_model(host, size),
        objective=objective,
        lens=PROFILES[DATA].lens,
        plan=TrainPlan(
            epochs=size.epochs,
            seed=seed,
            steps=size.steps,
            optimiser=Optimiser(rate=size.rate),
            schedule=Cosine(warmup=50),
        ),
        negatives=None if name.endswith(ONLINE) else LISTS,
    )


def _model(host: Host, size: Size) -> Spec[Matcher]:
    width = size.width
    text = part(
        GRU,
        words=late("words"),
        word_width=size.word_width,
        width=width,
        dropout=size.dropout,
        bidirectional=host != "vsrn",
    )
    match host:
        case "vsepp":
            found = vsepp(width=width, image_pool="mean+max", two_way=True)
        case "scan-t2i":
            found = scan(width=width)
        case "bfan":
            found = bfan(width=width)
        case "vsrn":
            found = vsrn(width=width, word_width=size.word_width)
    return found.but(text=text)
