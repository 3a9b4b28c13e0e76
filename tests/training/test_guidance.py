"""What a guided training says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from counterfoil.core.types import INFERENCE, ScoreMatrix, Scores
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.ndgl import (
    HardNegativeRectificationLoss,
    MarginDistillationLoss,
    guide_agreement,
)
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.training.config import TrainConfig
from counterfoil.training.logging import StepMonitor, describe_figures, guide_figures, read_metrics
from counterfoil.training.step import TrainingStep
from counterfoil.training.trainer import train_network
from sources_cases import Guided
from train_cases import batch_of, host, processor

LENS = processor()


def objective() -> WeightedSum:
    return WeightedSum(
        terms={
            "triplet": (1.0, HardestTripletLoss()),
            "margins": (100.0, MarginDistillationLoss()),
            "rectified": (0.5, HardNegativeRectificationLoss()),
        }
    )


def block(seed: int = 0) -> ScoreMatrix:
    rng = torch.Generator().manual_seed(seed)
    scores, guide = torch.rand(2, 6, 6, generator=rng)
    scores.requires_grad_()
    return ScoreMatrix(scores, torch.eye(6).bool(), scores.diagonal(), guide)


def other(batch) -> torch.Tensor:
    rng = torch.Generator().manual_seed(batch.step)
    return torch.rand(batch.block, generator=rng)


def test_shares_are_those_of_the_gradients():
    grid = block()
    losses = objective()(Scores({"inference": grid}))
    found = guide_figures({INFERENCE: grid}, losses)
    norms = {
        name: torch.autograd.grad(loss, grid.scores, retain_graph=True)[0].norm()
        for name, loss in losses.items()
    }
    total = sum(norms.values())
    for name, norm in norms.items():
        assert found[f"share_{name}"].item() == pytest.approx(100 * (norm / total).item(), rel=1e-5)
    expected = guide_agreement(grid)
    assert found["guide_disagree"] == expected["disagree"]
    assert found["guide_kl"] == expected["kl"]
    assert found["guide_outranked"] == expected["outranked"]


def test_a_term_that_does_not_look_at_the_grid_has_no_share():
    grid = block()
    losses = {"still": torch.zeros(()), "far": torch.ones((), requires_grad=True) * 2}
    losses |= objective()(Scores({"inference": grid}))
    found = guide_figures({INFERENCE: grid}, losses)
    assert found["share_still"] == found["share_far"] == 0
    assert sum(v.item() for n, v in found.items() if n.startswith("share_")) == pytest.approx(100)


def test_terms_of_other_grids_have_their_share():
    grid, wider = block(), replace(block(1), guide=None, name="wider")
    losses = objective()(Scores({INFERENCE: grid}))
    losses["triplet"] = HardestTripletLoss(view="wider")(Scores({"wider": wider}))
    found = guide_figures({INFERENCE: grid, "wider": wider}, losses)
    pulls = [
        torch.autograd.grad(losses["triplet"], wider.scores, retain_graph=True)[0].norm(),
        *(
            torch.autograd.grad(losses[name], grid.scores, retain_graph=True)[0].norm()
            for name in ("margins", "rectified")
        ),
    ]
    assert found["share_triplet"].item() == pytest.approx(100 * (pulls[0] / sum(pulls)).item())


def test_nothing_is_looked_at_unless_it_is_wanted():
    grid = block()
    losses, watch = objective()(Scores({"inference": grid})), StepMonitor()
    watch.record({INFERENCE: grid}, losses)
    assert watch.take() == {}
    watch.wanted = True
    watch.record({INFERENCE: grid}, losses)
    assert set(watch.take()) > {"guide_disagree", "share_triplet"}
    assert watch.take() == {}


@pytest.mark.parametrize("chunk", [0, 3])
def test_looking_changes_no_gradient(chunk):
    from train_cases import cached_backward

    found = []
    for wanted in (False, True):
        step = TrainingStep(host("global", LENS), objective(), sources=[Guided(other)])
        step.watch.wanted = wanted
        batch = batch_of(LENS, [0, 3, 7, 13, 20])
        if chunk:
            cached_backward(step, batch, chunk)
        else:
            torch.stack(list(step(batch).values())).sum().backward()
        found.append([p.grad for p in step.parameters()])
        assert bool(step.watch.take()) is wanted
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


def test_lines_of_metrics_hold_them(tmp_path):
    plan = TrainConfig(batch=6, epochs=1, log_every=2)
    fitted = train_network(
        plan, host("global", LENS), objective(), LENS, folder=tmp_path, sources=[Guided(other)]
    )
    lines = [line for line in read_metrics(fitted.metrics) if "loss" in line]
    assert len(lines) >= 3
    for line in lines:
        assert 0 <= line["guide_disagree"] <= 100
        assert line["guide_kl"] > 0
        shares = [line[f"share_{name}"] for name in ("triplet", "margins", "rectified")]
        assert sum(shares) == pytest.approx(100, abs=0.01)


def test_trainings_without_a_guide_say_nothing_of_it(tmp_path):
    plan = TrainConfig(batch=6, epochs=1, log_every=2)
    plain = WeightedSum(terms={"triplet": (1.0, HardestTripletLoss())})
    fitted = train_network(plan, host("global", LENS), plain, LENS, folder=tmp_path)
    assert not any("guide_kl" in line for line in read_metrics(fitted.metrics))
    assert describe_figures({}) == ""


def test_in_words():
    grid = block()
    watch = StepMonitor()
    watch.wanted = True
    watch.record({INFERENCE: grid}, objective()(Scores({INFERENCE: grid})))
    said = describe_figures(watch.take())
    assert "% of hardest negatives differ from the guide's, KL 0.0" in said
    assert "margins" in said
