"""Losses that other papers compare with meet every kind of host."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import train_cases as cases
from counterfoil.core.config import lazy
from counterfoil.losses.base import weighted_sum
from counterfoil.papers.compared.losses import (
    DebiasedContrastiveLoss,
    PosteriorTripletLoss,
    SelectiveHardNegativeLoss,
)
from counterfoil.training.step import TrainingStep

OBJECTIVES = {
    "dcl": weighted_sum(
        loss=lazy(DebiasedContrastiveLoss, temperature=0.1, tau_plus=0.01, reduction="mean")
    ),
    "hcl": weighted_sum(
        loss=lazy(DebiasedContrastiveLoss, temperature=0.1, beta=0.5, reduction="mean")
    ),
    "selhn": weighted_sum(loss=lazy(SelectiveHardNegativeLoss, reduction="mean")),
    "fne": weighted_sum(loss=lazy(PosteriorTripletLoss, enough=20, reduction="mean")),
    "expected": weighted_sum(loss=lazy(PosteriorTripletLoss, choice="expected", reduction="mean")),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", ["global", "scan"])
def test_it_learns(name, kind):
    processor = cases.processor()
    step = TrainingStep(cases.host(kind, processor), OBJECTIVES[name].build(), seed=3)
    optimiser = torch.optim.Adam(step.model.parameters(), lr=0.03)
    made, losses = cases.batch_of(processor, [0, 1, 5, 10, 15, 20]), []
    for number in range(20):
        loss = step(replace(made, step=number))["loss"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.7 * losses[0]
