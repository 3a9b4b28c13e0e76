"""AOQ's ablations on Flickr8k (Table 3), and what else might explain how it does there."""

from __future__ import annotations

from dataclasses import replace

from counterfoil.negatives.filters import FilterPlan
from counterfoil.negatives.mined import MinedPlan
from counterfoil.objectives.online_quintuplet import OnlineQuintuplet
from counterfoil.objectives.quintuplet import AdaptiveQuintuplet, OfflineQuintuplet
from counterfoil.objectives.term import Term, total
from counterfoil.recipes.evidence.aoq import (
    DATA,
    HARDEST,
    LISTS,
    ONLINE,
    SIZES,
    TITLES,
    Host,
    Size,
    tested,
    train,
)
from counterfoil.recipes.evidence.plan import Budget, Experiment, Row, Table
from counterfoil.recipes.recipe import Mine, Recipe, Train
from counterfoil.spec import part

NAME = "evidence/aoq-ablations-flickr8k"
LONGEST = 1000
FILTERED = "filtered"
FILTERS = FilterPlan(captions=0.5, below_positive=0.0)
LENGTHS = (LONGEST, 300, 20)  # of an image's list, beside the usual one
SEEDS = 3
DECIDING = ("h300", "longer-online", "longer-AdapOffQuin", "AdapOffQuin")  # of further seeds

FINAL: Term = part(AdaptiveQuintuplet)
TERMS: dict[str, Term] = {
    "OnlineQuin": part(OnlineQuintuplet),
    "no-OfflineAdap": part(AdaptiveQuintuplet, reference="positive"),
    "squared": part(OfflineQuintuplet, squared=True),
}


def table() -> Table:
    """The table."""
    return Table(
        name=NAME,
        about="AOQ's ablations, list lengths, filters and a longer training",
        data=DATA,
        first=ONLINE,
        experiments=experiments,
    )


def experiments(budget: Budget) -> tuple[Experiment, ...]:
    """One host: VSE++ where little can be afforded, and else VSRN as in the paper."""
    host: Host = "vsrn" if budget == "gpu" else "vsepp"
    seeds = 1 if budget == "smoke" else SEEDS
    return tuple(_experiment(host, seed, budget) for seed in range(seeds))


def _experiment(host: Host, seed: int, budget: Budget) -> Experiment:
    size, key = SIZES[budget], f"{host}-{seed}"
    longest = 2 * size.texts if budget == "smoke" else LONGEST
    mine = Mine(name=LISTS, using=(ONLINE,), texts=longest, images=longest // 5)
    filtered = replace(
        mine, name=FILTERED, texts=size.texts, images=size.texts // 5, filters=FILTERS
    )
    first, second = train(ONLINE, host, HARDEST, seed, size), _second(host, seed, size, longest)
    lists = [mine, filtered]
    if seed and budget == "cpu":
        lists, second = [mine], [stage for stage in second if stage.name in DECIDING]
    rounds = tested([first, *second])
    stages = (*rounds[:2], *lists, *rounds[2:])
    rows = tuple(
        Row(
            host=TITLES[host],
            method=stage.name,
            lists="" if stage.negatives is None else TITLES[host],
            seed=seed,
            test=f"test-{stage.name}",
            models=(stage.name,),
        )
        for stage in stages
        if isinstance(stage, Train)
    )
    recipe = Recipe(name=f"{NAME}/{key}", stages=stages, data=DATA)
    return Experiment(key=key, recipe=recipe, rows=rows)


def _second(host: Host, seed: int, size: Size, longest: int) -> list[Train]:
    """Round two in all its variants, those that matter most first."""

    def of(name: str, term: Term = FINAL, *, texts: int = size.texts) -> Train:
        drawn = MinedPlan(texts=texts, images=max(1, texts // 5))
        return replace(train(name, host, term, seed, size, LISTS), draw=drawn)

    def longer(stage: Train, name: str) -> Train:
        return replace(stage, name=name, plan=replace(stage.plan, epochs=2 * size.epochs))

    usual = of("AdapOffQuin")
    only = part(OfflineQuintuplet, online=None)
    lengths = [of(f"h{n}", texts=n) for n in LENGTHS if n <= longest]
    return [
        replace(of("filtered-lists"), negatives=FILTERED),
        *lengths,
        replace(of("fine-tuned"), start=ONLINE, objective=total(loss=FINAL)),
        longer(train(ONLINE, host, HARDEST, seed, size), "longer-online"),
        longer(usual, "longer-AdapOffQuin"),
        *(of(name, term) for name, term in TERMS.items()),
        replace(of("OnlyOffline", only), objective=total(loss=only)),
        usual,
    ]
