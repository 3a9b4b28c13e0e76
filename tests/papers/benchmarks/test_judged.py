"""What judged pairs give, on small cases; the pages show what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.judged import (
    ORDERS,
    Listed,
    Queue,
    by_pairs,
    guarantee_table,
    outcome,
    queue_table,
    verdicts_to_halve,
)

DOCS = Path(__file__).parents[3] / "docs"
FOUND = json.loads((DOCS / "evidence" / "judged.json").read_text("utf-8"))


def test_the_pages_show_what_was_measured() -> None:
    page = (DOCS / "results" / "false-negatives.md").read_text("utf-8")
    assert guarantee_table(FOUND["guarantee"]) in page
    assert queue_table(FOUND["queue"]) in (DOCS / "results" / "truths.md").read_text("utf-8")


def test_an_outcome_counts_broken_promises_of_all_draws(monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.judged.DRAWS", 5)
    rng, measure = np.random.default_rng(0), np.linspace(0, 1, 600)
    side = Listed(measure, np.arange(600), np.arange(600), measure > 0.7)
    found = outcome(side, 0.05, by_pairs(side, rng))
    assert (found["judged"], found["found"], found["broken"]) == (300, 1, 0)
    assert 0.6 < found["kept"] < 0.75


@pytest.mark.parametrize("order", ORDERS)
def test_verdicts_are_counted_until_the_bounds_are_half_as_wide(order) -> None:
    rng = torch.Generator().manual_seed(0)
    owners = torch.arange(8).repeat_interleave(2)
    own = owners == torch.arange(8).unsqueeze(1)
    scores = torch.rand(8, 16, generator=rng) + own
    true = own | (torch.rand(8, 16, generator=rng) < 0.1)
    queue = Queue(scores, owners, true)
    found = verdicts_to_halve(queue, order, 0)
    assert found["pairs"] == int((~own).sum())
    assert 0 < found["verdicts"] < found["pairs"]
    assert queue.width() <= found["width"] / 2
