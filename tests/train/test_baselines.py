"""Losses that other papers compare with meet every kind of host."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import train_cases as cases
from counterfoil.objectives.debiased import Debiased
from counterfoil.objectives.posterior import PosteriorTriplet
from counterfoil.objectives.selective import SelectivelyHardest
from counterfoil.objectives.term import total
from counterfoil.spec import part
from counterfoil.train.step import Step

OBJECTIVES = {
    "dcl": total(loss=part(Debiased, temperature=0.1, tau_plus=0.01, reduction="mean")),
    "hcl": total(loss=part(Debiased, temperature=0.1, beta=0.5, reduction="mean")),
    "selhn": total(loss=part(SelectivelyHardest, reduction="mean")),
    "fne": total(loss=part(PosteriorTriplet, enough=20, period=15, reduction="mean")),
    "expected": total(loss=part(PosteriorTriplet, choice="expected", reduction="mean")),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", ["global", "bag", "scan"])
def test_it_learns(name, kind):
    lens = cases.lens()
    step = Step(cases.host(kind, lens), OBJECTIVES[name].build(), seed=3)
    optimiser = torch.optim.Adam(step.matcher.parameters(), lr=0.03)
    made, losses = cases.batch_of(lens, [0, 1, 5, 10, 15, 20]), []
    for number in range(20):
        loss = step(replace(made, step=number))["loss"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.7 * losses[0]
