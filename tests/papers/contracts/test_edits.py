"""Counterfactual edits and margins of meaning meet every host of regions and words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import matcher_cases
from counterfoil.core.types import Batch, ModalityBatch, Pairs
from counterfoil.losses.base import WeightedSum
from counterfoil.papers.compared.counterfactual import CounterfactualSampler
from counterfoil.papers.compared.losses import LSEHLoss, SelfAdjustedCFMLoss, SelfExploredCFMLoss
from counterfoil.training.step import TrainingStep
from papers_matcher_cases import ALL
from sources_cases import Guided

COUNT, UNKNOWN = 6, 3
HOSTS = [c for c in ALL if c.images is matcher_cases.regions]
OTHERS = [c for c in ALL if c.images is not matcher_cases.regions]


def batch_of(case: Any) -> Batch:
    rng, rows = torch.Generator().manual_seed(0), torch.arange(COUNT)
    images, texts = case.images(COUNT, rng), case.texts(COUNT, rng)
    return Batch(0, rows, rows, images, texts, (COUNT, COUNT), Pairs(rows, rows))


def near(batch: Batch) -> torch.Tensor:
    return torch.rand(batch.block, generator=torch.Generator().manual_seed(1))


def step_of(case: Any) -> TrainingStep:
    terms = {
        "triplet": (1.0, LSEHLoss(alpha=2.0)),
        "adjusted": (1.0, SelfAdjustedCFMLoss(margin=2.0)),
        "explored": (1.0, SelfExploredCFMLoss(margin=2.0)),
    }
    source = CounterfactualSampler(margin=2.0, adjust=1.0, explore=1.0, mask=UNKNOWN)
    return TrainingStep(
        case.build(),
        WeightedSum(terms=terms),
        sources=[source, Guided(near)],
    )


def poisoned(items: ModalityBatch) -> ModalityBatch:
    return replace(items, values=matcher_cases.poisoned(items.values, items.mask))


@pytest.mark.parametrize("case", HOSTS, ids=lambda case: case.name)
def test_padding_changes_no_edit(case: Any) -> None:
    batch, step = batch_of(case), step_of(case)
    plain = step(batch)
    dirty = replace(batch, images=poisoned(batch.images), texts=poisoned(batch.texts))
    found = step(dirty)
    for name in ("triplet", "adjusted", "explored"):
        assert plain[name] > 0
        torch.testing.assert_close(found[name], plain[name])
    torch.stack(list(found.values())).sum().backward()
    grown = [p.grad for p in step.parameters() if p.grad is not None]
    assert grown
    assert all(bool(gradient.isfinite().all()) for gradient in grown)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_other_hosts_are_refused_in_words(case: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot be edited|tell where they look words up"):
        step_of(case)(batch_of(case))
