"""What a training notes of the captions that are written for it."""

from __future__ import annotations

import statistics

import pytest
import torch

from counterfoil.core.types import INFERENCE, Role, ScoreMatrix
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.training.logging import StepMonitor, generated_difficulty
from counterfoil.training.step import TrainingStep
from tailored_cases import batch_of, host, processor, writer


def grid(anchor: torch.Tensor, scale: float = 1.0) -> ScoreMatrix:
    return ScoreMatrix(torch.eye(len(anchor)), torch.eye(len(anchor)).bool(), anchor, scale=scale)


def test_by_a_loop():
    rng = torch.Generator().manual_seed(0)
    written, anchor = torch.rand(5, 7, generator=rng), torch.rand(5, generator=rng)
    written[0, 3:] = written[4] = -torch.inf
    found = generated_difficulty(written, grid(anchor, scale=2.0))
    gaps = [
        (score - true) / 2
        for line, true in zip(written.tolist(), anchor.tolist())
        for score in line
        if score > float("-inf")
    ]
    above = sum(gap > 0 for gap in gaps)
    assert found["written_above"].item() == pytest.approx(100 * above / len(gaps))
    assert found["written_gap"].item() == pytest.approx(statistics.fmean(gaps))
    assert found["written_gap_p50"].item() == pytest.approx(statistics.median(gaps))
    tenths = statistics.quantiles(gaps, n=10, method="inclusive")
    assert found["written_gap_p10"].item() == pytest.approx(tenths[0])
    assert found["written_gap_p90"].item() == pytest.approx(tenths[-1])


def test_a_tie_is_not_above():
    found = generated_difficulty(torch.tensor([[0.5, 0.6]]), grid(torch.tensor([0.5])))
    assert found["written_above"].item() == 50


def test_nothing_written():
    assert generated_difficulty(torch.full((2, 3), -torch.inf), grid(torch.zeros(2))) == {}


def test_a_step_that_writes_is_looked_at_when_that_is_wanted():
    seen = processor()
    below = WeightedSum(terms={"written": (1.0, MarginRankingLoss(role="written"))})
    step = TrainingStep(host(seen), below, sources=[writer(seen, words=())])
    step(batch_of(seen))
    assert step.watch.take() == {}
    step.watch.wanted = True
    step(batch_of(seen))
    found = step.watch.take()
    assert 0 <= found["written_above"] <= 100
    assert found["written_gap_p10"] <= found["written_gap_p50"] <= found["written_gap_p90"]


def test_other_roles_are_not_looked_at():
    watch = StepMonitor()
    watch.wanted = True
    watch.record({INFERENCE: grid(torch.zeros(2))}, {}, {Role.HARD_TEXT: torch.zeros(2, 1)})
    assert watch.take() == {}
