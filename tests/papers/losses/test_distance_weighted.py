from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.core.types import INFERENCE, ScoreMatrix, Scores
from counterfoil.papers.compared.losses import DistanceWeightedTripletLoss, draw_by_distance
from objectives_cases import judged

OWNER = [0, 0, 1, 2, 4]  # image 3 is no text's


def block(seed: int = 0, images: int = 5, text_to_image: list[int] = OWNER) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(images, len(text_to_image), generator=rng, dtype=torch.double) - 0.2


def density(cosine: float, dimensions: int, nearest: float) -> float:
    """Of the distance between points of a sphere, up to a factor (Wu et al., eq. 3)."""
    d = max(math.sqrt(2 - 2 * cosine), nearest)
    return d ** (dimensions - 2) * (1 - d * d / 4) ** ((dimensions - 3) / 2)


def test_chances_are_the_inverse_density_of_what_may_be_drawn():
    term, scores = DistanceWeightedTripletLoss(furthest=1.4, dimensions=8), block()
    positive = judged(scores, OWNER).matrices[INFERENCE].positive
    chances = term.chances(scores, positive)
    for anchor, row in enumerate(scores.tolist()):
        weights = [
            0.0
            if positive[anchor, other] or math.sqrt(2 - 2 * s) >= 1.4
            else 1 / density(s, 8, 0.5)
            for other, s in enumerate(row)
        ]
        wanted = torch.tensor(weights).double() / sum(weights)
        torch.testing.assert_close(chances[anchor], wanted)
    assert (chances == 0).sum() > positive.sum()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=7), st.integers(0, 999))
def test_it_equals_a_loop_over_pairs(text_to_image, seed):
    scores = block(seed, text_to_image=text_to_image)
    grid = judged(scores, text_to_image).matrices[INFERENCE]
    term, total = DistanceWeightedTripletLoss(margin=0.3, dimensions=16), 0.0
    pairs = grid.positive.nonzero()
    uniforms = torch.rand(2 * len(pairs), generator=torch.Generator().manual_seed(seed))
    sides = ((scores, grid.positive), (scores.T, grid.positive.T))
    for (table, positive), draws in zip(sides, uniforms.chunk(2), strict=True):
        for (anchor, true), u in zip(positive.nonzero().tolist(), draws.tolist(), strict=True):
            reached = 0.0
            for other, chance in enumerate(term.chances(table, positive)[anchor].tolist()):
                reached += chance
                if chance and reached >= u:
                    total += max(0.0, 0.3 + float(table[anchor, other] - table[anchor, true]))
                    break
    assert term.sampled_hinges(grid, uniforms).item() == pytest.approx(total, abs=1e-6)


def test_often_drawn_is_what_is_likely():
    chances = torch.tensor([0.0, 0.5, 0.2, 0.0, 0.3]).expand(4000, 5)
    rng = torch.Generator().manual_seed(0)
    share = (
        torch.bincount(draw_by_distance(chances, torch.rand(4000, generator=rng)), minlength=5)
        / 4000
    )
    assert (share - chances[0]).abs().max() < 0.03
    assert share[0] == share[3] == 0


def test_the_ends_of_a_row():
    chances = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).expand(3, 4) * 0.999
    assert draw_by_distance(chances, torch.tensor([0.0, 0.9999, 1.0])).tolist() == [1, 2, 2]


def test_a_draw_is_of_its_step_grid_and_seed():
    scores = torch.full((6, 6), 0.3, dtype=torch.double) + 1e-3 * block(0, 6, [0] * 6)
    scores.requires_grad_()
    grid = ScoreMatrix(scores, torch.eye(6).bool(), scores.diagonal())

    def moved(seed: int, name: str = INFERENCE) -> torch.Tensor:
        one = ScoreMatrix(scores, grid.positive, grid.anchor, name=name)
        loss = DistanceWeightedTripletLoss(dimensions=3, view=name)(Scores({name: one}, seed=seed))
        return torch.autograd.grad(loss, scores)[0]

    assert torch.equal(moved(1), moved(1))
    assert not torch.equal(moved(1), moved(2))
    assert not torch.equal(moved(1), moved(1, "both enhanced"))


def test_no_legal_negative_costs_nothing():
    scores = torch.tensor([[0.4, -0.9], [-0.8, 0.5]], requires_grad=True)  # all beyond 1.7
    loss = DistanceWeightedTripletLoss()(judged(scores, [0, 1]))
    loss.backward()
    assert loss.item() == 0
    assert scores.grad.abs().max() == 0
    alone = judged(torch.tensor([[0.4, 0.1]]), [0, 0])
    assert DistanceWeightedTripletLoss()(alone).item() == 0


def test_a_score_beyond_a_cosine_and_equal_ones_are_finite():
    scores = torch.tensor([[1.0, 1.0001], [1.0, 1.0]], requires_grad=True)
    loss = DistanceWeightedTripletLoss()(judged(scores, [0, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(0.8, abs=1e-3)
    assert scores.grad.isfinite().all()


def test_scores_of_another_scale_are_drawn_alike():
    scores, rows = block(), judged(block(), OWNER).matrices[INFERENCE]
    wide = ScoreMatrix(10 * scores, rows.positive, 10 * rows.anchor, scale=10.0)
    small = DistanceWeightedTripletLoss(margin=0.2)(Scores({INFERENCE: rows}))
    assert DistanceWeightedTripletLoss(margin=2.0)(
        Scores({INFERENCE: wide})
    ).item() == pytest.approx(10 * small.item())
