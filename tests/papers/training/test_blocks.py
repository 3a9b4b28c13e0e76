"""Wrong pairs of the anchor block are scored only where somebody looks at them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import processes
import tailored_cases
import train_cases as cases
from counterfoil.core.types import Batch
from counterfoil.data.batching import collate
from counterfoil.losses.aoq import OfflineTriplet
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.negatives.sampling import CandidateConfig
from counterfoil.papers.compared.counterfactual import CounterfactualSampler
from counterfoil.papers.tags.losses import WordLoss
from counterfoil.training.step import TrainingStep

ANCHORS = [0, 1, 5, 7, 9]


def below(role: str) -> MarginRankingLoss:
    return MarginRankingLoss(role=role, margin=0.4, reduction="mean")


def step_of(kind: str, weight: float | None) -> tuple[TrainingStep, Batch]:
    """A step and its batch; a weight of 0 adds a term that says nothing but looks at the block."""
    terms: Any = {"texts": (1.0, below("hard text")), "images": (1.0, below("hard image"))}
    sources: Any = [TopScoringMiner(keep=3, at_once=4)]
    processor = cases.processor()
    if kind == "uniter":
        processor = tailored_cases.processor()
        sources.append(tailored_cases.writer(processor))
        terms |= {"written": (1.0, below("written")), "masked": (0.1, WordLoss(task="masked"))}
    if weight is not None:
        terms["triplet"] = (weight, HardestTripletLoss(margin=0.4))
    host = tailored_cases.host(processor) if kind == "uniter" else cases.host(kind, processor)
    rows = torch.tensor(ANCHORS)
    offer = CandidateConfig(texts=6, images=4).draws(processor.dataset.relation)
    drawn = offer.draw(rows, torch.Generator().manual_seed(1))
    step = TrainingStep(host, WeightedSum(terms=terms), sources=sources)
    return step, collate(processor, rows, candidates=drawn, step=3)


def found(kind: str, weight: float | None) -> dict[str, Any]:
    step, batch = step_of(kind, weight)
    told = cases.stepped(step, batch, unused=True)
    told["losses"].pop("triplet", None)
    level = step.level(batch)
    return told | {
        "level": None if level is None or weight is not None else level.item(),
    }


@pytest.mark.parametrize("kind", ["global", "bag", "scan", "uniter"])
def test_losses_and_gradients_are_those_beside_the_block(kind: str) -> None:
    spared, whole = found(kind, None), found(kind, 0.0)
    cases.assert_same_step(spared, whole, 1e-5)
    assert all(loss > 0 for loss in spared["losses"].values())


@pytest.mark.parametrize("weight", [None, 0.0])
def test_the_block_is_scored_where_somebody_looks(
    weight: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, batch = step_of("bag", weight)
    asked: list[tuple[int, int]] = []
    real = step.model.score_matrix

    def grid(images: Any, texts: Any) -> Any:
        asked.append((len(images), len(texts)))
        return real(images, texts)

    monkeypatch.setattr(step.model, "score_matrix", grid)
    step(batch)
    assert asked == ([] if weight is None else [batch.block])


def test_what_proposes_says_whether_it_looks() -> None:
    processor = tailored_cases.processor()
    sparing = TopScoringMiner(), tailored_cases.writer(processor)
    assert all(source.anchors_only for source in sparing)
    assert not CounterfactualSampler().anchors_only


def test_which_terms_look() -> None:
    below_, triplet = below("hard text"), HardestTripletLoss()
    assert not WeightedSum(terms={"a": (1.0, StartAt(term=below_, steps=3))}).needs.block
    assert WeightedSum(
        terms={"a": (1.0, SwitchAfter(first=below_, second=triplet, steps=3))}
    ).needs.block
    assert WeightedSum(terms={"a": (1.0, below_), "b": (1.0, OfflineTriplet())}).needs.block
    other = HardestTripletLoss(view="enhanced")
    assert not WeightedSum(terms={"a": (1.0, below_), "b": (1.0, other)}).needs.block


def every(kinds: list[str]) -> list[dict[str, Any]]:
    return [found(kind, None) for kind in kinds]


def test_two_processes_equal_one() -> None:
    kinds = ["bag", "scan", "uniter"]
    alone = every(kinds)
    for together in processes.run(every, 2, kinds):
        for one, several in zip(alone, together, strict=True):
            cases.assert_same_step(several, one, 1e-5)
            assert several["level"] == pytest.approx(one["level"])
