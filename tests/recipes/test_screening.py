"""Trainings on the hardest of many candidates, from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.vse import VSE
from counterfoil.negatives.edited import Edited
from counterfoil.negatives.mined import MinedPlan
from counterfoil.negatives.offers import CandidatePlan
from counterfoil.negatives.screened import Screened
from counterfoil.negatives.together import Together
from counterfoil.objectives.counterfactual import SelfAdjusted
from counterfoil.objectives.term import total
from counterfoil.objectives.triplet import RankedBelow, SumTriplet
from counterfoil.recipes.recipe import Mine, Recipe, Train, digests
from counterfoil.recipes.run import Source, execute
from counterfoil.recipes.settings import apply
from counterfoil.spec import late, of, part
from counterfoil.train.plan import TrainPlan
from counterfoil.train.refresh import Refresh

DATA = "scenes:images=24,features=regions"
HARD = Train(
    name="hard",
    model=of(
        VSE,
        image=part(Regions, features=late("features"), width=8),
        text=part(GRU, words=late("words"), width=8, word_width=4, word_drop=0.2),
    ),
    objective=total(
        texts=part(RankedBelow, role="hard text", reduction="mean"),
        images=part(RankedBelow, role="hard image", reduction="mean"),
    ),
    plan=TrainPlan(batch=8, steps=6, log_every=2),
    proposer=of(Screened, keep=3),
    candidates=CandidatePlan(texts=9, images=7),
)


def run(place: Path, *stages: Any) -> Recipe:
    recipe = Recipe(name="mine", stages=stages)
    assert execute(recipe, Source(DATA), place)
    return recipe


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_random_candidates_from_end_to_end(tmp_path: Path) -> None:
    run(tmp_path, HARD)
    found = [line for line in lines(tmp_path / "hard") if "loss_texts" in line]
    assert [0 < line["loss_texts"] < 2 for line in found] == [True] * 3
    assert [0 < line["loss_images"] < 2 for line in found] == [True] * 3


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    whole = replace(HARD, plan=replace(HARD.plan, steps=4, log_every=1))
    run(tmp_path / "one", whole)
    short = replace(whole, plan=replace(whole.plan, minutes=1e-4))
    recipe = Recipe(name="mine", stages=(short,))
    for time in range(100):
        if execute(recipe, Source(DATA), tmp_path / "two", resume=time > 0):
            break
    assert time > 1
    one, two = (
        [{k: line[k] for k in ("loss_texts", "loss_images")} for line in found if "loss" in line]
        for found in (lines(tmp_path / name / "hard") for name in ("one", "two"))
    )
    assert len(one) > 3
    assert one == two


@pytest.mark.parametrize("streams", ["one", "two"])
def test_mined_candidates_and_two_proposers(tmp_path: Path, streams: Any) -> None:
    begin = replace(
        HARD,
        name="begin",
        objective=total(triplet=part(SumTriplet)),
        proposer=None,
        candidates=CandidatePlan(),
    )
    both = replace(
        HARD,
        objective=total(
            texts=part(RankedBelow, role="hard text", reduction="mean"),
            images=part(RankedBelow, role="hard image", reduction="mean"),
            adjusted=part(SelfAdjusted),
        ),
        start="begin",
        negatives="lists",
        draw=MinedPlan(texts=12, images=8),
        candidates=CandidatePlan(texts=9, images=7, source="mined", streams=streams),
        proposer=of(Together, proposers=(part(Screened, keep=3), part(Edited, adjust=1.0, mask=3))),
    )
    mine = Mine(name="lists", using=("begin",), texts=20, images=10)
    run(tmp_path, begin, mine, both)
    named = {name for line in lines(tmp_path / "hard") for name in line}
    assert {"loss_texts", "loss_images", "loss_adjusted"} <= named


def test_stages_without_candidates_keep_their_digests() -> None:
    plain = replace(HARD, proposer=None, candidates=CandidatePlan())
    before = digests(Recipe(name="mine", stages=(plain,)), "data")["hard"]
    assert before == "b2324bd8507f"  # of a stage that names none
    more = replace(plain, candidates=CandidatePlan(texts=1))
    assert digests(Recipe(name="mine", stages=(more,)), "data")["hard"] != before


def test_numbers_are_set_by_name() -> None:
    recipe = Recipe(name="mine", stages=(HARD,))
    changed = apply(
        recipe,
        ["hard.candidates.texts=5", "hard.proposer.keep=2", "hard.candidates.streams=two"],
    ).stage("hard")
    assert isinstance(changed, Train)
    assert changed.candidates == CandidatePlan(texts=5, images=7, streams="two")
    assert changed.proposer == of(Screened, keep=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"candidates": CandidatePlan()}, "'hard image' and 'hard text' are to be screened"),
        ({"candidates": CandidatePlan(texts=9)}, "'hard image' are to be screened, and none are"),
        ({"proposer": None}, "the proposer screens none"),
        ({"proposer": of(Edited)}, "the proposer screens none"),
    ],
)
def test_what_does_not_go_together(changes: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        run(tmp_path, replace(HARD, **changes))
    assert not list(tmp_path.glob("hard/*"))


def test_mined_candidates_need_lists(tmp_path: Path) -> None:
    mined = CandidatePlan(texts=9, images=7, source="mined")
    with pytest.raises(ValueError, match="the candidates of 'hard' are to come from mined lists"):
        replace(HARD, candidates=mined)
    with pytest.raises(ValueError, match="or offer random ones"):
        replace(HARD, candidates=mined, negatives="lists", refresh=Refresh(every=1))
    begin = replace(
        HARD,
        name="begin",
        objective=total(triplet=part(SumTriplet)),
        proposer=None,
        candidates=CandidatePlan(),
    )
    mine = Mine(name="lists", using=("begin",), texts=8, images=10)
    with pytest.raises(ValueError, match="'hard' draws from the 9 hardest texts of an image"):
        run(tmp_path, begin, mine, replace(HARD, candidates=mined, negatives="lists"))
