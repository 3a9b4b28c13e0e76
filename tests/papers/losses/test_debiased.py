from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.papers.compared.losses import DebiasedContrastiveLoss
from objectives_cases import drawn, each_pair, judged

owners = st.lists(st.integers(0, 4), min_size=1, max_size=7)


def loop(temperature: float, tau_plus: float, beta: float):
    """As the authors write it, one anchor after the other."""

    def one(p: float, side: list[float]) -> float:
        if not side:
            return 0.0
        true = math.exp(p / temperature)
        wrong = [math.exp(n / temperature) for n in side]
        weights = [w**beta for w in wrong]
        mean = sum(weights) / len(weights)
        total = sum(weight * w for weight, w in zip(weights, wrong)) / mean
        total = (total - tau_plus * len(side) * true) / (1 - tau_plus)
        total = max(total, len(side) * math.exp(-1 / temperature))
        return -math.log(true / (true + total))

    return lambda p, texts, images: (one(p, texts) + one(p, images)) / 2


@pytest.mark.parametrize("tau_plus", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0])
@settings(max_examples=15, deadline=None)
@given(text_to_image=owners, seed=st.integers(0, 999))
def test_equals_the_authors_form(tau_plus, beta, text_to_image, seed):
    scores = drawn(seed, text_to_image, 5)[0]
    loss = DebiasedContrastiveLoss(temperature=0.2, tau_plus=tau_plus, beta=beta)(
        judged(scores, text_to_image)
    )
    expected = each_pair(scores, text_to_image, loop(0.2, tau_plus, beta))
    assert loss.item() == pytest.approx(expected, abs=1e-9, rel=1e-9)


def test_without_either_it_is_infonce():
    text_to_image = [0, 1, 1, 3, 2]
    scores = drawn(0, text_to_image, 4)[0]
    ours = DebiasedContrastiveLoss(temperature=0.07)(judged(scores, text_to_image))
    theirs = InfoNCELoss(temperature=0.07).double()(judged(scores, text_to_image))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    (left,), (right,) = torch.autograd.grad(ours, scores), torch.autograd.grad(theirs, scores)
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_a_large_beta_leaves_the_hardest_negative_n_times():
    text_to_image = [0, 1, 1, 3, 2]
    scores = drawn(1, text_to_image, 4)[0]

    def one(p: float, side: list[float]) -> float:
        return math.log1p(len(side) * math.exp((max(side) - p) / 0.1))

    def hardest(p: float, texts: list[float], images: list[float]) -> float:
        return (one(p, texts) + one(p, images)) / 2

    loss = DebiasedContrastiveLoss(temperature=0.1, beta=1e5)(judged(scores, text_to_image))
    assert loss.item() == pytest.approx(each_pair(scores, text_to_image, hardest), abs=1e-6)


def test_where_all_may_be_false_only_the_floor_is_left():
    """The positive scores far above: what is taken off exceeds what is there."""
    scores = torch.tensor([[0.9, -0.9], [-0.9, 0.9]], dtype=torch.float64, requires_grad=True)
    loss = DebiasedContrastiveLoss(temperature=0.5, tau_plus=0.1)(judged(scores, [0, 1]))
    floor = math.log1p(math.exp((-1 - 0.9) / 0.5))
    assert loss.item() == pytest.approx(2 * floor)
    (grad,) = torch.autograd.grad(loss, scores)
    assert grad[0, 1] == 0
    assert grad[0, 0] < 0


def test_no_temperature_overflows():
    scores = torch.tensor([[-1.0, 1.0], [1.0, -1.0]], requires_grad=True)
    for tau_plus, beta in ((0.0, 0.0), (0.01, 2.0)):
        term = DebiasedContrastiveLoss(temperature=0.005, tau_plus=tau_plus, beta=beta)
        for sign in (1, -1):
            loss = term(judged(sign * scores, [0, 1]))
            (grad,) = torch.autograd.grad(loss, scores)
            assert loss.isfinite()
            assert grad.isfinite().all()
