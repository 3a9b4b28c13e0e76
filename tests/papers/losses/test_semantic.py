from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import objectives_cases as cases
from counterfoil.core.types import INFERENCE, Scores
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.papers.compared.losses import LSEHLoss

OWNERS = {"captions": [0, 0, 1, 2, 3, 3], "one each": [0, 1, 2, 3], "one image": [0, 0]}


def guided(scores: Tensor, text_to_image: list[int], guide: Tensor) -> Scores:
    made = cases.judged(scores, text_to_image)
    return replace(made, matrices={INFERENCE: replace(made.matrices[INFERENCE], guide=guide)})


def near(seed: int, text_to_image: list[int], images: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed + 100)
    return torch.rand(images, len(text_to_image), generator=rng, dtype=torch.float64) * 1.5 - 0.5


def loop(scores: Tensor, text_to_image: list[int], guide: Tensor, *, hardest: bool) -> float:
    s, f, total = scores.tolist(), guide.tolist(), 0.0
    for t, image in enumerate(text_to_image):
        texts = [(image, u) for u in range(len(text_to_image)) if text_to_image[u] != image]
        images = [(i, t) for i in range(len(s)) if i != image]
        for side in (texts, images):
            costs = [max(0.0, 0.3 + 0.2 * f[i][u] + s[i][u] - s[image][t]) for i, u in side]
            total += max(costs, default=0.0) if hardest else sum(costs)
    return total


@pytest.mark.parametrize("text_to_image", OWNERS.values(), ids=OWNERS)
@pytest.mark.parametrize("against", ["hardest", "sum"])
@pytest.mark.parametrize("seed", range(3))
def test_is_the_loss_of_a_loop(text_to_image: list[int], against: Any, seed: int) -> None:
    images = max(text_to_image) + 1
    (scores, *_), guide = (
        cases.drawn(seed, text_to_image, images),
        near(seed, text_to_image, images),
    )
    term = LSEHLoss(alpha=0.3, lam=0.2, against=against)
    found = term(guided(scores, text_to_image, guide))
    wanted = loop(scores, text_to_image, guide, hardest=against == "hardest")
    assert found.item() == pytest.approx(wanted)
    mean = LSEHLoss(alpha=0.3, lam=0.2, against=against, reduction="mean")
    assert mean(guided(scores, text_to_image, guide)).item() == pytest.approx(
        wanted / len(text_to_image)
    )


@pytest.mark.parametrize(
    ("against", "plain"), [("hardest", HardestTripletLoss), ("sum", SumTripletLoss)]
)
def test_without_lambda_is_the_triplet(against: Any, plain: Any) -> None:
    text_to_image = OWNERS["captions"]
    scores = guided(cases.drawn(0, text_to_image, 4)[0], text_to_image, near(0, text_to_image, 4))
    found = LSEHLoss(alpha=0.25, lam=0.0, against=against)(scores)
    torch.testing.assert_close(found, plain(margin=0.25)(scores))


def test_the_guide_chooses_the_hardest() -> None:
    s = torch.tensor([[0.5, 0.4, 0.39]] + [[-1.0] * 3] * 2)
    guide = torch.tensor([[0.0, 0.0, 1.0]] + [[0.0] * 3] * 2)
    made = guided(s.requires_grad_(), [0, 1, 2], guide)
    texts, _ = LSEHLoss(alpha=0.2, lam=0.1).directions(made.matrices[INFERENCE])
    (gradient,) = torch.autograd.grad(texts, s)
    assert gradient[0].tolist() == [-1.0, 0.0, 1.0]


def test_marked_pairs() -> None:
    text_to_image = [0, 1, 2]
    s = torch.tensor([[0.5, 0.9, 0.1], [0.6, 0.8, 0.2], [0.0, 0.1, 0.9]])
    guide = torch.zeros(3, 3)
    guide[0, 1] = guide[1, 0] = -torch.inf
    made = guided(s, text_to_image, guide)
    grid = made.matrices[INFERENCE]
    kept = LSEHLoss(alpha=0.2, same_image="no margin")
    assert kept.margin(grid)[0].tolist() == pytest.approx([0.0, 0.0, 0.2])
    left_out = kept.directions(grid)[0].item()
    assert left_out == pytest.approx(0.4)
    assert LSEHLoss(alpha=0.2).directions(grid)[0].item() == 0.0
