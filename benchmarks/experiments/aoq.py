"""AOQ on Flickr8k: four losses on four models, and its ablations (Table 3).

A model trains on lists that its own round one mined, or, as in the paper, on those of another.
Widths and epochs are the same for every row of a budget. The rate and the warm-up with the sum of
hinges were chosen on dev with VSE++ and the online loss, and hold for all that learn with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, final

from benchmarks.experiments.table import Budget, Experiment, ExperimentBuilder, Table
from counterfoil.core.config import Config, config, from_data, lazy
from counterfoil.losses.aoq import (
    AdaptiveQuintuplet,
    OfflineQuintuplet,
    OfflineTriplet,
    OnlineQuintuplet,
)
from counterfoil.losses.base import Loss, weighted_sum
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.towers import GRU
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.pipelines.pipeline import Evaluate, Mine, Train
from counterfoil.recipes.models import (
    MARGIN,
    PROFILES,
    bfan_config,
    scan_config,
    vsepp_config,
    vsrn_config,
    with_warmup,
)
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig

ModelName = Literal["vsepp", "scan-t2i", "bfan", "vsrn"]

DATA = "flickr8k"
TEST = Evaluate(name="test", using=(), protocol="flickr-1k")
ONLINE, LISTS, FINAL = "online", "lists", "AdapOffQuin"
TITLES: dict[ModelName, str] = {
    "vsepp": "VSE++",
    "scan-t2i": "SCAN t-i",
    "bfan": "BFAN equal",
    "vsrn": "VSRN",
}
HARDEST: Loss = lazy(HardestTripletLoss, margin=MARGIN)
LOSSES: dict[str, Loss] = {
    FINAL: lazy(AdaptiveQuintuplet),
    "OffQuin": lazy(OfflineQuintuplet),
    "OffTri": lazy(OfflineTriplet),
}


@final
@dataclass(frozen=True, kw_only=True)
class AoqSize:
    """Settings of a budget, the same for every row.

    Attributes:
        width: of the joint space.
        word_width: of a word embedding.
        epochs: of each round.
        rate: of the optimiser, falling along a half cosine.
        warmup: steps with the sum of hinges first.
        texts: length of an image's list; a text's is a fifth of it.
        seeds: number of seeds of each model that mines for itself.
        miner: model that also mines for others; VSRN in the paper.
        others: models that train on its lists, and with which losses.
        shared: number of the miner's seeds whose lists others use.
        own: rate and warm-up of models that do not learn with the others'.
        once: models whose first seed mines for all; the others mine for each seed.
        steps: of each round at most; 0 for all epochs.
    """

    width: int
    word_width: int
    epochs: int
    rate: float
    warmup: int
    seeds: dict[ModelName, int]
    others: dict[ModelName, tuple[str, ...]]
    miner: ModelName = "vsepp"
    texts: int = 100
    shared: int = 1
    own: dict[ModelName, tuple[float, int]] = field(default_factory=dict)
    once: tuple[ModelName, ...] = ()
    steps: int = 0


SIZES: dict[Budget, AoqSize] = {
    "cpu": AoqSize(
        width=128,
        word_width=128,
        epochs=5,
        rate=3e-3,
        warmup=235,
        seeds={"vsepp": 3, "scan-t2i": 3, "vsrn": 1},
        others={"bfan": tuple(LOSSES)},
        own={"vsrn": (3e-3, 705)},
        once=("scan-t2i",),
    ),
    "gpu": AoqSize(
        width=1024,
        word_width=300,
        epochs=10,
        rate=5e-4,
        warmup=235,
        seeds={"vsepp": 3, "scan-t2i": 3, "bfan": 3, "vsrn": 3},
        miner="vsrn",
        others={"scan-t2i": (FINAL,)},
        shared=3,
    ),
    "smoke": AoqSize(
        width=16,
        word_width=16,
        epochs=1,
        rate=1e-3,
        warmup=2,
        texts=20,
        steps=20,
        seeds={"vsepp": 1, "scan-t2i": 1, "vsrn": 1},
        others={"bfan": tuple(LOSSES)},
    ),
}

# Of the ablations.
FILTERS = FilterConfig(captions=0.5, below_positive=0.0)
LENGTHS = (1000, 300, 20)  # of an image's list, beside the usual one
DECIDING = ("h300", "longer-online", "longer-AdapOffQuin", FINAL)  # the rows of further seeds


def tables() -> tuple[Table, ...]:
    """AOQ's two tables."""
    return (
        Table(
            name="evidence/aoq-flickr8k",
            about="AOQ: four losses on four models",
            data=DATA,
            first=ONLINE,
            experiments=_losses,
        ),
        Table(
            name="evidence/aoq-ablations-flickr8k",
            about="AOQ's ablations, list lengths, filters and a longer training",
            data=DATA,
            first=ONLINE,
            experiments=_ablations,
        ),
    )


def train(
    name: str, model: ModelName, loss: Loss, seed: int, size: AoqSize, negatives: str | None = None
) -> Train:
    """A training of either round."""
    rate, warmup = size.own.get(model, (size.rate, size.warmup))
    return Train(
        name=name,
        model=_model(model, size),
        objective=with_warmup(loss, warmup, "loss"),
        processor=PROFILES[DATA].processor,
        plan=TrainConfig(
            epochs=size.epochs,
            seed=seed,
            steps=size.steps,
            optimiser=OptimizerConfig(rate=rate),
            schedule=CosineLR(warmup=50),
        ),
        negatives=negatives,
    )


def _model(model: ModelName, size: AoqSize) -> Config[RetrievalModel]:
    width, words = size.width, size.word_width
    text = config(GRU, words=from_data("words"), word_width=words, width=width, dropout=0.2)
    match model:
        case "vsepp":
            made = vsepp_config(width=width, image_pool="mean+max", two_way=True)
        case "scan-t2i":
            made = scan_config(width=width)
        case "bfan":
            made = bfan_config(width=width)
        case "vsrn":
            made = vsrn_config(width=width, word_width=words)
            text = text.replace(bidirectional=False)
    return made.replace(text=text)


def _losses(budget: Budget) -> Iterator[Experiment]:
    """First one seed of every model, then the next; a model that mines once has one experiment."""
    size = SIZES[budget]
    groups: list[tuple[ModelName, tuple[int, ...]]] = []
    for model, count in size.seeds.items():
        every = tuple(range(count))
        groups += [(model, every)] if model in size.once else [(model, (seed,)) for seed in every]
    for model, seeds in sorted(groups, key=lambda group: group[1][0]):
        yield _rounds(model, seeds, size)


def _rounds(model: ModelName, seeds: tuple[int, ...], size: AoqSize) -> Experiment:
    """Round one, its lists, and round two with each loss; then the others."""
    builder = ExperimentBuilder(TEST)

    def compare(name: str, trained: ModelName, method: str, seed: int) -> None:
        online = method == ONLINE
        loss = HARDEST if online else LOSSES[method]
        stage = train(name, trained, loss, seed, size, None if online else LISTS)
        builder.compare(TITLES[trained], method, stage, lists=TITLES[model])
        builder.add(lists)  # behind the first training

    images = max(1, size.texts // 5)
    lists = Mine(name=LISTS, using=(ONLINE,), texts=size.texts, images=images)
    for method in (ONLINE, *LOSSES):
        for seed in seeds:
            compare(method if seed == seeds[0] else f"{method}-{seed}", model, method, seed)
    if model == size.miner and seeds[0] < size.shared:
        for other, losses in size.others.items():
            for method in losses if other in size.seeds else (ONLINE, *losses):
                compare(f"{other}-{method}", other, method, seeds[0])
    key = model if model in size.once else f"{model}-{seeds[0]}"
    return builder.build("evidence/aoq-flickr8k", key, DATA)


def _ablations(budget: Budget) -> Iterator[Experiment]:
    """One model: VSRN as in the paper where it can be afforded, else VSE++."""
    model: ModelName = "vsrn" if budget == "gpu" else "vsepp"
    size = SIZES[budget]
    longest = 2 * size.texts if budget == "smoke" else LENGTHS[0]
    mine = Mine(name=LISTS, using=(ONLINE,), texts=longest, images=longest // 5)
    filtered = replace(
        mine, name="filtered", texts=size.texts, images=size.texts // 5, filters=FILTERS
    )
    for seed in range(1 if budget == "smoke" else 3):
        deciding = bool(seed) and budget == "cpu"
        builder = ExperimentBuilder(TEST)
        first = train(ONLINE, model, HARDEST, seed, size)
        builder.compare(TITLES[model], ONLINE, first)
        builder.add(mine, *([] if deciding else [filtered]))
        for stage in _second_rounds(model, seed, size, longest):
            if stage.name in DECIDING or not deciding:
                builder.compare(TITLES[model], stage.name, stage)
        yield builder.build("evidence/aoq-ablations-flickr8k", f"{model}-{seed}", DATA)


def _second_rounds(model: ModelName, seed: int, size: AoqSize, longest: int) -> list[Train]:
    """Round two in all its variants, the most important first."""

    def variant(name: str, loss: Loss = LOSSES[FINAL], *, texts: int = size.texts) -> Train:
        drawn = SamplingConfig(texts=texts, images=max(1, texts // 5))
        return replace(train(name, model, loss, seed, size, LISTS), draw=drawn)

    def longer(stage: Train, name: str) -> Train:
        return replace(stage, name=name, plan=replace(stage.plan, epochs=2 * size.epochs))

    usual = variant(FINAL)
    offline = lazy(OfflineQuintuplet, online=None)
    return [
        replace(variant("filtered-lists"), negatives="filtered"),
        *(variant(f"h{n}", texts=n) for n in LENGTHS if n <= longest),
        replace(variant("fine-tuned"), start=ONLINE, objective=weighted_sum(loss=LOSSES[FINAL])),
        longer(train(ONLINE, model, HARDEST, seed, size), "longer-online"),
        longer(usual, "longer-AdapOffQuin"),
        variant("OnlineQuin", lazy(OnlineQuintuplet)),
        variant("no-OfflineAdap", lazy(AdaptiveQuintuplet, reference="positive")),
        variant("squared", lazy(OfflineQuintuplet, squared=True)),
        replace(variant("OnlyOffline", offline), objective=weighted_sum(loss=offline)),
        usual,
    ]
