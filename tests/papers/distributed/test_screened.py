"""Several processes screen the same candidates, and give the losses and gradients of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import processes
import train_cases as cases
from counterfoil.core.types import Batch
from counterfoil.data.batching import collate
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.negatives.sampling import CandidateConfig
from counterfoil.training.step import TrainingStep
from sources_cases import Drawn

ANCHORS = [0, 1, 5, 7, 9, 13, 30]  # captions 0 and 1 share an image
CASES = [("bag", "one", 0), ("scan", "one", 0), ("scan", "two", 0), ("scan", "one", 3)]
TERMS = {"texts": "hard text", "images": "hard image"}


def batch_of(streams: Any, anchors: list[int]) -> Batch:
    processor = cases.processor()
    rows = torch.tensor(anchors)
    plan = CandidateConfig(texts=9, images=7, streams=streams)
    found = plan.draws(processor.dataset.relation).draw(rows, torch.Generator().manual_seed(1))
    batch = collate(processor, rows, candidates=found, step=3)
    return cases.double(batch)


def step_of(kind: str) -> TrainingStep:
    terms: Any = {
        name: (1.0, MarginRankingLoss(role=role, margin=0.4, reduction="mean"))
        for name, role in TERMS.items()
    }
    terms["triplet"] = (0.5, HardestTripletLoss(margin=0.4))
    source = TopScoringMiner(keep=3, at_once=4)
    return TrainingStep(
        cases.host(kind, cases.processor()), WeightedSum(terms=terms), sources=[source]
    ).double()


def worker(kind: str, streams: str, chunk: int, anchors: list[int] = ANCHORS) -> dict[str, Any]:
    step, batch = step_of(kind), batch_of(streams, anchors)
    assert batch.offered
    ((_, source),) = step._proposing
    assert isinstance(source, TopScoringMiner)
    kept = cases.proposals(source)
    told = cases.stepped(step, batch, chunk, unused=True)
    (found,) = kept
    return told | {
        "texts": found.texts.values.numpy(),
        "images": found.images.values.numpy(),
        "pairs": [p.text.tolist() + p.image.tolist() for p in found.pairs.values()],
        "offered": len(batch.offered[0]) + len(batch.offered[1]),
        "level": step.level(batch).item(),
    }


def every(given: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    return [worker(*case) for case in given]


@pytest.fixture(scope="module")
def two() -> list[list[dict[str, Any]]]:
    return processes.run(every, 2, CASES)


def agree(one: dict[str, Any], several: dict[str, Any]) -> None:
    assert several["pairs"] == one["pairs"]
    assert (several["texts"] == one["texts"]).all()
    assert (several["images"] == one["images"]).all()
    cases.assert_same_step(several, one)
    assert several["level"] == pytest.approx(one["level"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_processes_equal_one(case: tuple[str, str, int], two: Any) -> None:
    one = worker(case[0], case[1], 0)
    assert all(one["losses"][name] > 0 for name in TERMS)
    for results in two:
        several = results[CASES.index(case)]
        assert several["offered"] < one["offered"]
        agree(one, several)


@pytest.mark.parametrize("anchors", [[4], [4, 9]])
def test_three_processes_equal_one_with_fewer_anchors_than_processes(anchors: list[int]) -> None:
    one = worker("scan", "one", 0, anchors)
    for result in processes.run(worker, 3, "scan", "one", 0, anchors):
        agree(one, result)


def test_what_is_screened_is_trained_on_as_if_it_had_been_drawn() -> None:
    """The same losses and gradients as with the kept rows drawn from the first."""
    one = worker("scan", "one", 0)
    processor, batch, step = cases.processor(), batch_of("one", ANCHORS), step_of("scan")
    ((_, source),) = step._proposing
    assert source
    step.train()
    with torch.no_grad():
        views = step.encode(batch)
        found = source.propose(
            step.model, batch, views, torch.zeros(batch.block), torch.Generator()
        )
    assert found.images
    assert found.texts
    images = torch.cat([batch.image_rows, found.images.ids])
    texts = torch.cat([batch.text_rows, found.texts.ids])
    kept = {r: type(p)(images[p.image], texts[p.text]) for r, p in found.pairs.items()}
    drawn = cases.double(collate(processor, torch.tensor(ANCHORS), negatives=kept, step=3))
    terms = {name: (1.0, term) for name, term in step.objective.terms.items()}
    terms["triplet"] = (0.5, terms["triplet"][1])
    plain = TrainingStep(
        step.model, WeightedSum(terms=terms), sources=[Drawn(TopScoringMiner().gives.roles)]
    )
    losses = plain(drawn)
    torch.stack(list(losses.values())).sum().backward()
    assert {n: loss.item() for n, loss in losses.items()} == pytest.approx(one["losses"])
    for name, value in cases.gradients(plain).items():
        assert abs(one["gradients"][name] - value.numpy()).max() < 1e-9, name


def test_level_of_equal_scores_counts_what_was_kept() -> None:
    step, batch = step_of("bag"), batch_of("two", ANCHORS)
    assert step.level(batch) is None
    step(batch)
    level = step.level(batch)
    assert level is not None
    hinge = 0.4  # every anchor has candidates in one of the two directions
    assert level.item() == pytest.approx(hinge + 0.5 * 2 * len(ANCHORS) * 0.4)
    assert step.level(replace(batch, step=4)) is None
