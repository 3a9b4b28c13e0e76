"""AOQ's comparison on Flickr8k: four losses on four hosts.

A host trains on lists that its own round one mined, or, as in the paper, on those of another.
Widths and epochs are the same for every row of a budget. The rate and the warm-up with the sum of
hinges were chosen on dev with VSE++ and the online loss, and are used for all that learn with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, final

from counterfoil.matcher import Matcher
from counterfoil.models.blocks.gru import GRU
from counterfoil.objectives.quintuplet import AdaptiveQuintuplet, OfflineQuintuplet, OfflineTriplet
from counterfoil.objectives.term import Term
from counterfoil.objectives.triplet import HardestTriplet
from counterfoil.recipes.evidence.plan import Budget, Experiment, Row, Table
from counterfoil.recipes.hosts import bfan, scan, vsepp, vsrn
from counterfoil.recipes.online import MARGIN, warmed
from counterfoil.recipes.profiles import PROFILES, Dataset
from counterfoil.recipes.recipe import Evaluate, Mine, Protocol, Recipe, Stage, Train
from counterfoil.spec import Spec, late, of, part
from counterfoil.train.optimise import Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.schedule import Cosine

Host = Literal["vsepp", "scan-t2i", "bfan", "vsrn"]

NAME = "evidence/aoq-flickr8k"
ONLINE = "online"
LISTS = "lists"
DATA: Dataset = "flickr8k"
TEST: Protocol = "flickr-1k"
TITLES: dict[Host, str] = {
    "vsepp": "VSE++",
    "scan-t2i": "SCAN t-i",
    "bfan": "BFAN equal",
    "vsrn": "VSRN",
}
LOSSES: dict[str, Term] = {
    "AdapOffQuin": part(AdaptiveQuintuplet),
    "OffQuin": part(OfflineQuintuplet),
    "OffTri": part(OfflineTriplet),
}

HARDEST: Term = part(HardestTriplet, margin=MARGIN)
EVERY = tuple(LOSSES)


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
        once: hosts whose first seed mines for all; the others mine for each seed.
        teacher: host that mines for the guests; VSRN in the paper.
        guests: hosts that train on its lists, and with which losses.
        visits: how many of the teacher's seeds have guests.
        own: rate and warm-up of hosts that do not learn with the others'.
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
    teacher: Host
    guests: dict[Host, tuple[str, ...]]
    visits: int
    own: dict[Host, tuple[float, int]] = field(default_factory=dict)
    once: tuple[Host, ...] = ()
    steps: int = 0


SIZES: dict[Budget, Size] = {
    "cpu": Size(
        width=128, word_width=128, dropout=0.2, epochs=5, rate=3e-3, warmup=235, texts=100,
        seeds={"vsepp": 3, "scan-t2i": 3, "vsrn": 1}, teacher="vsepp", guests={"bfan": EVERY},
        visits=1, own={"vsrn": (3e-3, 705)}, once=("scan-t2i",),
    ),
    "gpu": Size(
        width=1024, word_width=300, dropout=0.2, epochs=10, rate=5e-4, warmup=235, texts=100,
        seeds={"vsepp": 3, "scan-t2i": 3, "bfan": 3, "vsrn": 3},
        teacher="vsrn", guests={"scan-t2i": ("AdapOffQuin",)}, visits=3,
    ),
    "smoke": Size(
        width=16, word_width=16, dropout=0.2, epochs=1, rate=1e-3, warmup=2, texts=20,
        seeds={"vsepp": 1, "scan-t2i": 1, "vsrn": 1}, teacher="vsepp", guests={"bfan": EVERY},
        visits=1, steps=20,
    ),
}  # fmt: skip


def table() -> Table:
    """The table."""
    return Table(
        name=NAME,
        about="AOQ: four losses on four hosts",
        data=DATA,
        first=ONLINE,
        experiments=experiments,
    )


def experiments(budget: Budget) -> tuple[Experiment, ...]:
    """First one seed of every host, then the next; hosts that mine once have one for all seeds."""
    size = SIZES[budget]
    alone = [
        (seed, host, (seed,))
        for host, count in size.seeds.items()
        for seed in range(count)
        if host not in size.once
    ]
    shared = [(0, host, tuple(range(size.seeds[host]))) for host in size.once]
    hosts = list(size.seeds)
    order = sorted([*alone, *shared], key=lambda one: (one[0], hosts.index(one[1])))
    return tuple(_experiment(host, seeds, budget) for _, host, seeds in order)


def _experiment(host: Host, seeds: Sequence[int], budget: Budget) -> Experiment:
    """Round one, its lists, and round two with each loss; then the guests."""
    size = SIZES[budget]
    key = host if host in size.once else f"{host}-{seeds[0]}"
    texts = size.texts
    lists = Mine(name=LISTS, using=(ONLINE,), texts=texts, images=max(1, texts // 5))
    found: list[tuple[Train, Row]] = []
    for method in (ONLINE, *LOSSES):
        for seed in seeds:
            after = "" if seed == seeds[0] else f"-{seed}"
            found.append(_trained(host, method, seed, size, host, after=after))
    hosting = host == size.teacher and seeds[0] < size.visits
    for guest, losses in size.guests.items() if hosting else ():
        methods = losses if guest in size.seeds else (ONLINE, *losses)
        found += [_trained(guest, m, seeds[0], size, host, before=f"{guest}-") for m in methods]
    stages = tested([stage for stage, _ in found])
    recipe = Recipe(name=f"{NAME}/{key}", stages=(*stages[:2], lists, *stages[2:]), data=DATA)
    return Experiment(key=key, recipe=recipe, rows=tuple(row for _, row in found))


def _trained(
    host: Host,
    method: str,
    seed: int,
    size: Size,
    lists: Host,
    *,
    before: str = "",
    after: str = "",
) -> tuple[Train, Row]:
    """A training and its row of the table."""
    name = f"{before}{method}{after}"
    term = HARDEST if method == ONLINE else LOSSES[method]
    row = Row(
        host=TITLES[host],
        method=method,
        lists="" if method == ONLINE else TITLES[lists],
        seed=seed,
        test=f"test-{name}",
        models=(name,),
    )
    return train(name, host, term, seed, size, None if method == ONLINE else LISTS), row


def tested(trained: Sequence[Train]) -> list[Stage]:
    """Each training with its test behind it."""
    tests = [Evaluate(name=f"test-{t.name}", using=(t.name,), protocol=TEST) for t in trained]
    return [stage for pair in zip(trained, tests, strict=True) for stage in pair]


def train(
    name: str, host: Host, term: Term, seed: int, size: Size, negatives: str | None = None
) -> Train:
    """A training stage."""
    rate, warmup = size.own.get(host, (size.rate, size.warmup))
    return Train(
        name=name,
        model=_model(host, size),
        objective=warmed(term, warmup, "loss"),
        lens=PROFILES[DATA].lens,
        plan=TrainPlan(
            epochs=size.epochs,
            seed=seed,
            steps=size.steps,
            optimiser=Optimiser(rate=rate),
            schedule=Cosine(warmup=50),
        ),
        negatives=negatives,
    )


def _model(host: Host, size: Size) -> Spec[Matcher]:
    width = size.width
    text = of(
        GRU, words=late("words"), word_width=size.word_width, width=width, dropout=size.dropout
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
            text = text.but(bidirectional=False)
    return found.but(text=text)
