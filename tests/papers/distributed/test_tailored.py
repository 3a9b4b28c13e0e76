"""Several processes write the same captions, and give the losses and gradients of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import processes
import tailored_cases as cases
import train_cases
from counterfoil.core.types import Role
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.papers.tags.generation import TagsGenerator
from counterfoil.papers.tags.losses import WordLoss
from counterfoil.training.step import TrainingStep
from papers.released_bugs import StrayTailored

CASES: list[tuple[tuple[str, ...], bool, list[int]]] = [
    (("masked",), False, cases.ANCHORS),
    (("masked", "doubt", "correct"), False, cases.ANCHORS),
    (("doubt",), True, cases.ANCHORS),
    (("masked", "doubt", "correct"), False, [0]),
    (("stray", "doubt"), False, cases.ANCHORS),
]


def worker(words: Any, frozen: bool, anchors: list[int]) -> dict[str, Any]:
    seen, stray = cases.processor(), "stray" in words
    words = tuple(word for word in words if word != "stray")
    terms: dict[str, Any] = {name: (0.3, WordLoss(task=name)) for name in words}
    terms["triplet"] = (1.0, HardestTripletLoss())
    terms["written"] = (1.0, MarginRankingLoss(role="written"))
    filler = cases.host(seen, outputs=("rank", "fill")).double() if frozen else None
    kind = StrayTailored if stray else TagsGenerator
    source = cases.writer(seen, kind, words=words, filler=filler, keep=3)
    model = cases.host(seen)
    step = TrainingStep(model, WeightedSum(terms=terms), sources=[source]).double()
    batch = cases.batch_of(seen, anchors, step=3)
    batch = replace(batch, images=double(batch.images))
    look = seen.images
    seen.images = lambda rows: double(look(rows))  # type: ignore[method-assign]
    found = train_cases.proposals(source)
    told = train_cases.stepped(step, batch, unused=True)
    (made,) = found
    return told | {
        "texts": None if made.texts is None else made.texts.values.numpy(),
        "scores": {role: s.detach().numpy() for role, s in made.scores.items()},
        "labels": {name: task.labels.numpy() for name, task in made.words.items()},
    }


def double(items: Any) -> Any:
    return replace(items, values=items.values.double(), boxes=items.boxes.double())


def every(given: Any) -> list[dict[str, Any]]:
    return [worker(*case) for case in given]


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_equal_one(size: int) -> None:
    ones = every(CASES)
    for results in processes.run(every, size, CASES):
        for one, several in zip(ones, results, strict=True):
            assert one["losses"]["written"] > 0
            train_cases.assert_same_step(several, one)
            if one["texts"] is not None:
                assert (several["texts"] == one["texts"]).all()
            for name, labels in one["labels"].items():
                assert (several["labels"][name] == labels).all()
            for role in one["scores"]:
                assert role == Role.WRITTEN
                assert several["scores"][role] == pytest.approx(one["scores"][role], rel=1e-9)
