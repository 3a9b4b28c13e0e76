from __future__ import annotations

import math

import pytest
import torch

from counterfoil.core.types import Role, ScoreMatrix, Scores
from counterfoil.losses.contrastive import InfoNCELoss, InfoNCEWithCandidatesLoss

INF = torch.inf
OWNER = torch.tensor([0, 0, 1, 2])  # two captions of the first image
ROLES = {"texts": ("written", "hard text"), "images": ("hard image",)}


def scores(seed: int = 0, *, grad: bool = False) -> Scores:
    rng = torch.Generator().manual_seed(seed)
    block = torch.rand(3, 4, generator=rng, dtype=torch.float64)
    positive = torch.arange(3).unsqueeze(1) == OWNER
    pairs = {
        Role.WRITTEN: torch.rand(4, 5, generator=rng, dtype=torch.float64),
        Role.HARD_TEXT: torch.rand(4, 1, generator=rng, dtype=torch.float64),
        Role.HARD_IMAGE: torch.rand(4, 2, generator=rng, dtype=torch.float64),
    }
    pairs[Role.WRITTEN][1, 2:] = -INF
    block.requires_grad_(grad)
    grid = ScoreMatrix(scores=block, positive=positive, anchor=block[OWNER, torch.arange(4)])
    return Scores({"inference": grid}, pairs)


def slowly(given: Scores, temperature: float, texts: list[Role], images: list[Role]) -> float:
    grid, total = given.matrices["inference"], 0.0
    for text, image in enumerate(OWNER.tolist()):
        true = grid.scores[image, text].item()
        beside = [grid.scores[image, t].item() for t in range(4) if not grid.positive[image, t]]
        above = [grid.scores[i, text].item() for i in range(3) if not grid.positive[i, text]]
        for role in texts:
            beside += given.pairs[role][text].tolist()
        for role in images:
            above += given.pairs[role][text].tolist()
        for wrong in (beside, above):
            odds = sum(math.exp((other - true) / temperature) for other in wrong)
            total += math.log1p(odds) / 2
    return total


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_slow_loop(seed):
    given = scores(seed)
    loss = InfoNCEWithCandidatesLoss(temperature=0.2, **ROLES)(given).item()
    roles = [Role.WRITTEN, Role.HARD_TEXT], [Role.HARD_IMAGE]
    assert loss == pytest.approx(slowly(given, 0.2, *roles), rel=1e-9)
    mean = InfoNCEWithCandidatesLoss(temperature=0.2, reduction="mean", **ROLES)(given).item()
    assert mean == pytest.approx(loss / 4)


def test_without_candidates_it_is_the_loss_of_the_block():
    given = scores()
    none = {role: torch.full((4, 1), -INF, dtype=torch.float64) for role in given.pairs}
    ours = InfoNCEWithCandidatesLoss(temperature=0.1, **ROLES)(Scores(given.matrices, none))
    torch.testing.assert_close(ours, InfoNCELoss(temperature=0.1)(given))
