"""Several processes choose the same hardest foil of the pool, and learn the same from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import processes
import train_cases
from counterfoil.data.batching import collate
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.negatives.generated import GeneratedCaptions
from counterfoil.training.step import TrainingStep
from papers.negatives.test_generated_captions import ANCHORS, processor, stored
from sources_cases import begun


def worker(folder: str) -> dict[str, Any]:
    seen = processor()
    terms = {"written": (1.0, MarginRankingLoss(role="written"))}
    drawn = GeneratedCaptions(folder=folder, count=2, shared=True, hardest=True)
    source = begun(drawn, seen)
    model = train_cases.host("global", seen)
    step = TrainingStep(model, WeightedSum(terms=terms), sources=[source])
    told: dict[str, Any] = train_cases.stepped(step, collate(seen, torch.tensor(ANCHORS)))
    return told


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_equal_one(size: int, tmp_path: Any) -> None:
    stored(tmp_path / "w")
    one = worker(str(tmp_path / "w"))
    assert one["losses"]["written"] > 0
    for several in processes.run(worker, size, str(tmp_path / "w")):
        train_cases.assert_same_step(several, one, 1e-5)
