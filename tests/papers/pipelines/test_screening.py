"""Trainings on the hardest of many candidates, from end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import recipes_cases
from counterfoil.core.config import config, from_stage, lazy
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.triplet import MarginRankingLoss, SumTripletLoss
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.negatives.sampling import CandidateConfig, SamplingConfig
from counterfoil.papers.compared.counterfactual import CounterfactualSampler
from counterfoil.papers.compared.losses import SelfAdjustedCFMLoss
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Mine, Recipe, Train
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.training.config import TrainConfig
from counterfoil.training.logging import read_metrics

DATA = "scenes:images=24,features=regions"
HARD = Train(
    name="hard",
    model=recipes_cases.VSEPP_OF_REGIONS,
    objective=weighted_sum(
        texts=lazy(MarginRankingLoss, role="hard text", reduction="mean"),
        images=lazy(MarginRankingLoss, role="hard image", reduction="mean"),
    ),
    plan=TrainConfig(batch=8, steps=6, log_every=2),
    sources=(config(TopScoringMiner, keep=3, candidates=lazy(CandidateConfig, texts=9, images=7)),),
)


def screening(more: Any = None, **offered: Any) -> dict[str, Any]:
    candidates = lazy(CandidateConfig, **offered)
    return {"sources": (config(TopScoringMiner, keep=3, candidates=candidates, **more or {}),)}


LISTED = {"negatives": from_stage("lists")}


def run(place: Path, *stages: Any) -> Recipe:
    recipe = Recipe(name="mine", stages=stages)
    assert run_pipeline(recipe, DataSource(DATA), place)
    return recipe


def test_random_candidates_from_end_to_end(tmp_path: Path) -> None:
    run(tmp_path, HARD)
    found = [
        line for line in read_metrics(tmp_path / "hard" / "metrics.jsonl") if "loss_texts" in line
    ]
    assert [0 < line["loss_texts"] < 2 for line in found] == [True] * 3
    assert [0 < line["loss_images"] < 2 for line in found] == [True] * 3


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    whole = replace(HARD, plan=replace(HARD.plan, steps=4, log_every=1))
    run(tmp_path / "one", whole)
    short = replace(whole, plan=replace(whole.plan, minutes=1e-4))
    recipe = Recipe(name="mine", stages=(short,))
    for time in range(100):
        if run_pipeline(recipe, DataSource(DATA), tmp_path / "two", resume=time > 0):
            break
    assert time > 1
    one, two = (
        [{k: line[k] for k in ("loss_texts", "loss_images")} for line in found if "loss" in line]
        for found in (
            read_metrics(tmp_path / name / "hard" / "metrics.jsonl") for name in ("one", "two")
        )
    )
    assert len(one) > 3
    assert one == two


@pytest.mark.parametrize("streams", ["one", "two"])
def test_mined_candidates_and_two_sources(tmp_path: Path, streams: Any) -> None:
    begin = replace(
        HARD,
        name="begin",
        objective=weighted_sum(triplet=lazy(SumTripletLoss)),
        sources=(),
    )
    both = replace(
        HARD,
        objective=weighted_sum(
            texts=lazy(MarginRankingLoss, role="hard text", reduction="mean"),
            images=lazy(MarginRankingLoss, role="hard image", reduction="mean"),
            adjusted=lazy(SelfAdjustedCFMLoss),
        ),
        start="begin",
        sources=(
            *screening(
                LISTED | {"sampling": SamplingConfig(texts=12, images=8)},
                texts=9,
                images=7,
                source="mined",
                streams=streams,
            )["sources"],
            config(CounterfactualSampler, adjust=1.0, mask=3),
        ),
    )
    mine = Mine(name="lists", using=("begin",), texts=20, images=10)
    run(tmp_path, begin, mine, both)
    named = {name for line in read_metrics(tmp_path / "hard" / "metrics.jsonl") for name in line}
    assert {"loss_texts", "loss_images", "loss_adjusted"} <= named


def test_numbers_are_set_by_name() -> None:
    recipe = Recipe(name="mine", stages=(HARD,))
    miner = "hard.topscoringminer"
    changed = apply_overrides(
        recipe,
        [f"{miner}.candidates.texts=5", f"{miner}.keep=2", f"{miner}.candidates.streams=two"],
    ).stage("hard")
    assert isinstance(changed, Train)
    offered = changed.sources[0].arguments["candidates"].build()
    assert offered == CandidateConfig(texts=5, images=7, streams="two")
    assert changed.sources[0].arguments["keep"] == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (screening(), "'hard', TopScoringMiner: there are no candidates to choose from"),
        (screening(texts=9), "needs pairs in the role of 'hard image', which no source"),
        ({"sources": ()}, "needs pairs in the role of 'hard image', 'hard text', which no source"),
    ],
)
def test_what_does_not_go_together(changes: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        run(tmp_path, replace(HARD, **changes))
    assert not list(tmp_path.glob("hard/*"))


def test_mined_candidates_need_lists(tmp_path: Path) -> None:
    offered = {"texts": 9, "images": 7, "source": "mined"}
    with pytest.raises(ValueError, match=r"'hard', TopScoringMiner: .* from lists, and none are"):
        run(tmp_path, replace(HARD, **screening(**offered)))
    begin = replace(
        HARD,
        name="begin",
        objective=weighted_sum(triplet=lazy(SumTripletLoss)),
        sources=(),
    )
    mine = Mine(name="lists", using=("begin",), texts=8, images=10)
    with pytest.raises(ValueError, match="'hard': TopScoringMiner draws from the 9 hardest"):
        run(tmp_path, begin, mine, replace(HARD, **screening(LISTED, **offered)))
