from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist, fmean, pvariance

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterfoil.core.types import Scores
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.papers.compared.losses import PosteriorTripletLoss
from objectives_cases import drawn, each_pair, judged

owners = st.lists(st.integers(0, 4), min_size=1, max_size=7)
KNOWN = torch.tensor([[300.0, 0.7, 300 * 0.01], [600.0, 0.4, 600 * 0.02]])


def term(known: Tensor | None = KNOWN, **options) -> PosteriorTripletLoss:
    """With two distributions that it no longer changes."""
    made = PosteriorTripletLoss(**({"choice": "expected"} | options)).eval()
    if known is not None:
        made.learnt.copy_(known)
    return made


def weights(p: float, side: list[float], margin: float, known: list[list[float]]) -> list[float]:
    """As the authors write them, one negative after the other."""
    (count, mean, squares), (others, other, other_squares) = known

    def weight(n: float) -> float:
        if n <= mean - margin:
            return 0.0
        true = NormalDist(mean, math.sqrt(squares / count)).pdf(n)
        wrong = NormalDist(other, math.sqrt(other_squares / others)).pdf(n)
        match = true / (true + 9999 * wrong)
        return math.exp(-0.5 * match) if match > 0.001 else math.exp(-0.5 * (n - p) ** 2)

    made = [weight(n) for n in side]
    return made if any(made) else [float(n == max(side)) for n in side]


def loop(margin: float, known: list[list[float]]):
    def one(p: float, side: list[float]) -> float:
        if not side:
            return 0.0
        shares = weights(p, side, margin, known)
        hinges = [max(0.0, margin + n - p) for n in side]
        return sum(w * h for w, h in zip(shares, hinges)) / sum(shares)

    return lambda p, texts, images: one(p, texts) + one(p, images)


@settings(max_examples=40, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999), mean=st.sampled_from([0.1, 0.5, 0.9]))
def test_the_expected_hinge_equals_a_loop(text_to_image, seed, mean):
    scores = drawn(seed, text_to_image, 5)[0]
    known = KNOWN.clone()
    known[0, 1] = mean
    loss = term(known, margin=0.3).double()(judged(scores, text_to_image))
    expected = each_pair(scores, text_to_image, loop(0.3, known.double().tolist()))
    assert loss.item() == pytest.approx(expected, abs=1e-7)


def test_before_enough_is_known_a_negative_weighs_by_its_distance_to_the_positive():
    s = torch.tensor([[0.5, 0.4, 0.1], [-9, 9, -9], [-9, -9, 9]], dtype=torch.float64)
    near, far = (math.exp(-0.5 * d**2) for d in (0.1, 0.4))
    expected = (near * 0.9 + far * 0.6) / (near + far)
    loss = term(None, margin=1.0)(judged(s, [0, 1, 2]))
    assert loss.item() == pytest.approx(expected)
    few = KNOWN.clone()
    few[0, 0] = 200
    s[0, 1] = 0.9
    for known in (few, KNOWN):
        made = term(known, margin=1.0)._weights(s[:1, 1:], s[:1, :1], 1.0)
        plain = made[0, 0].item() == pytest.approx(far)
        assert plain == (known is few)


def test_scores_are_brought_to_the_range_of_a_cosine():
    scores = judged(drawn(2, [0, 1, 2], 3)[0], [0, 1, 2])
    grid = scores.grids["inference"]
    grown = replace(grid, scores=grid.scores * 10, anchor=grid.anchor * 10, scale=10.0)
    small = term(None, margin=0.3)(scores)
    large = term(None, margin=3.0)(Scores({"inference": grown}))
    torch.testing.assert_close(large, small * 10)


@pytest.mark.parametrize("choice", ["expected", "sampled"])
def test_where_all_negatives_are_too_easy_the_hardest_is_taken(choice):
    text_to_image = [0, 1, 1, 3, 2]
    scores = judged(drawn(3, text_to_image, 4)[0], text_to_image)
    known = KNOWN.clone()
    known[0, 1] = 5.0
    loss = term(known, margin=0.9, choice=choice)(scores)
    torch.testing.assert_close(loss, HardestTripletLoss(margin=0.9)(scores))


def test_negatives_are_sampled_by_their_weights():
    s = torch.full((4, 4), -9.0, dtype=torch.float64).fill_diagonal_(9)
    s[0] = torch.tensor([0.5, 0.45, 0.75, 0.1])
    text_to_image = [0, 1, 2, 3]
    made = term(margin=0.3, choice="sampled")
    assert made.double()(judged(s, text_to_image)) > 0
    shares = made._weights(s[:1, 1:], s[:1, :1], 1.0)[0]
    assert shares[2] == 0
    found = torch.zeros(3)
    for seed in range(400):
        leaf = s.clone().requires_grad_()
        made(replace(judged(leaf, text_to_image), seed=seed)).backward()
        found += leaf.grad[0, 1:] > 0.5
    assert found[2] == 0
    assert found.sum() == 400
    expected = 400 * shares[:2] / shares.sum()
    assert (found[:2] - expected).abs().max() < 4 * math.sqrt(400) / 2


def test_the_same_dice_choose_the_same_negatives():
    text_to_image = [0, 1, 2, 3, 4, 0]
    scores = judged(drawn(4, text_to_image, 5)[0], text_to_image)
    losses = [
        term(None, margin=1.0, choice="sampled")(replace(scores, seed=seed)).item()
        for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


def first_in_both(s: Tensor, text_to_image: list[int]) -> tuple[list[float], list[float]]:
    """Scores of pairs that beat all wrong ones, and of their hardest negatives."""
    true, wrong = [], []

    def look(p: float, texts: list[float], images: list[float]) -> float:
        if p > max([*texts, *images], default=-math.inf):
            true.append(p)
            wrong.extend(max(side) for side in (texts, images) if side)
        return 0.0

    each_pair(s, text_to_image, look)
    return true, wrong


def test_what_it_learns_are_moments_of_all_that_it_has_seen():
    made, true, wrong = PosteriorTripletLoss(), [], []
    for seed, text_to_image in enumerate([[0, 1, 2], [0, 0, 1, 3], [2], [4, 0, 1]] * 4):
        s = drawn(seed, text_to_image, 5)[0].detach()
        s[torch.tensor(text_to_image), torch.arange(len(text_to_image))] += 0.4
        made(judged(s, text_to_image))
        some, others = first_in_both(s, text_to_image)
        true, wrong = true + some, wrong + others
    for row, seen in zip(made.learnt.tolist(), (true, wrong)):
        expected = [len(seen), fmean(seen), pvariance(seen) * len(seen)]
        assert row == pytest.approx(expected, rel=1e-4)
    assert 0 < len(true) < 40


def test_in_evaluation_and_from_equal_scores_it_learns_nothing():
    made = PosteriorTripletLoss()
    made(judged(torch.zeros(3, 3), [0, 1, 2]))
    made.eval()(judged(torch.eye(3), [0, 1, 2]))
    assert not made.learnt.any()


def test_what_it_learnt_is_saved_with_it():
    made = PosteriorTripletLoss()
    made(judged(torch.eye(3), [0, 1, 2]))
    again = PosteriorTripletLoss()
    again.load_state_dict(made.state_dict())
    assert again.learnt.tolist() == [[3, 1, 0], [6, 0, 0]]


def test_weights_carry_no_gradient():
    """With the weights held, the derivative is that of a weighted mean of hinges."""
    text_to_image = [0, 1, 1, 3]
    made = term(margin=0.5)
    leaf = drawn(5, text_to_image, 4)[0]
    made(judged(leaf, text_to_image)).backward()
    s = leaf.detach().clone().requires_grad_()
    total = s.new_zeros(())
    positive = torch.arange(4).unsqueeze(1) == torch.tensor(text_to_image)
    for text, image in enumerate(text_to_image):
        for side, other in ((s[image], positive[image]), (s[:, text], positive[:, text])):
            shares = made._weights(
                side.detach().masked_fill(other, -torch.inf)[None], s[image, text].detach(), 1.0
            )[0]
            hinges = (0.5 + side - s[image, text]).clamp(min=0)
            total = total + (hinges * shares).sum() / shares.sum()
    total.backward()
    torch.testing.assert_close(leaf.grad, s.grad)
