from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.papers.models.gpo import GeneralizedPooling, sinusoids

WIDTH = 4


def pool(**options: float) -> GeneralizedPooling:
    torch.manual_seed(0)
    return GeneralizedPooling(positions=6, hidden=5, **options).double()


def bag(lengths: list[int], longest: int = 0) -> Embeddings:
    return bag_cases.bag(lengths, WIDTH, seed=1, longest=longest)


def theta(made: GeneralizedPooling, length: int) -> torch.Tensor:
    """The weights of one length, its states read step by step."""
    width = made.rnn.input_size
    codes = torch.zeros(length, width, dtype=torch.float64)
    for k in range(length):
        for d in range(width):
            angle = k / 10000 ** (d // 2 * 2 / width)
            codes[k, d] = math.cos(angle) if d % 2 else math.sin(angle)
    states = made.rnn(codes.unsqueeze(0))[0][0]
    ahead, back = states.chunk(2, dim=1)
    return ((ahead + back) / 2 @ made.score.weight[0] / made.temperature).softmax(0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(0, 2))
def test_it_is_the_weighted_sum_of_sorted_features(lengths, more):
    made, sets = pool(), bag(lengths, max(lengths) + more)
    with torch.no_grad():
        kept = made(sets)
    for row, length in enumerate(lengths):
        largest = sets.tokens[row, :length].sort(0, descending=True).values
        expected = theta(made, length) @ largest
        torch.testing.assert_close(made(sets)[row], expected)
        torch.testing.assert_close(kept[row], expected)


def test_padding_may_lie_anywhere():
    made, sets = pool(), bag([3, 5])
    order = torch.tensor([4, 0, 3, 1, 2])
    holes = Embeddings(sets.tokens[:, order], sets.mask[:, order])
    torch.testing.assert_close(made(holes), made(sets))


def test_a_cold_pool_of_one_rank_is_the_maximum():
    made = pool(temperature=1e-6)
    sets = bag([4])
    first = int(theta(made, 4).argmax())
    expected = sets.tokens[0].sort(0, descending=True).values[first]
    torch.testing.assert_close(made(sets)[0], expected)


def test_an_empty_set_gives_zero_and_no_nan_anywhere():
    made, sets = pool(), bag([0, 2, 0], 3)
    with torch.no_grad():
        assert not made(sets)[[0, 2]].any()
        assert not made(bag([0], 3)).any()
    found = made(sets)
    assert not found[[0, 2]].any()
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in made.parameters())


def test_gradient():
    made, sets = pool(), bag([2, 4, 1])
    tokens = sets.tokens.nan_to_num(0).requires_grad_()
    assert gradcheck(lambda x: made(Embeddings(x, sets.mask)), tokens)


def test_weights_are_worked_out_once_for_each_length(monkeypatch):
    made, asked = pool(), []
    worked_out = made._theta
    monkeypatch.setattr(
        made, "_theta", lambda lengths: asked.append(lengths.tolist()) or worked_out(lengths)
    )
    made(bag([3, 1, 3, 3, 1]))
    assert asked == [[1, 3]]
    with torch.no_grad():
        for lengths in ([3, 3], [2, 3], [3, 2, 2]):
            made(bag(lengths))
    assert asked == [[1, 3], [3], [2]]


def change(made: GeneralizedPooling, how: str) -> None:
    if how == "step":
        torch.optim.SGD(made.parameters(), lr=0.5).step()
    elif how == "load":
        made.load_state_dict({k: 0.5 * v for k, v in made.state_dict().items()})
    else:
        made.float()


@pytest.mark.parametrize("how", ["step", "load", "dtype"])
def test_what_was_kept_is_forgotten_when_the_weights_change(how):
    made, sets = pool(), bag([4, 2])
    with torch.no_grad():
        made(sets)
    made(sets).sum().backward()
    change(made, how)
    fresh = pool().to(made.score.weight.dtype)
    fresh.load_state_dict(made.state_dict())
    with torch.no_grad():
        assert torch.equal(made(sets), fresh(sets))


def test_weights_made_without_versions_are_never_kept():
    with torch.inference_mode():
        made, sets = pool(), bag([3])
        before = made(sets)
        for parameter in made.parameters():
            parameter.mul_(0.5)
        assert not torch.equal(made(sets), before)


def test_half_precision_is_pooled_in_single():
    made = GeneralizedPooling()
    sets = bag([5, 3])
    tokens = sets.tokens.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = made(Embeddings(tokens, sets.mask))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, made(Embeddings(tokens.float(), sets.mask)))


def test_encodings_of_an_odd_width():
    assert sinusoids(torch.arange(9), 5).shape == (9, 5)
    made = GeneralizedPooling(positions=5)
    assert made(Embeddings(torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))).shape == (
        2,
        4,
    )
