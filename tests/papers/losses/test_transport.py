"""Optimal transport against a slow loop in float64 and a linear program."""

from __future__ import annotations

import math
from itertools import permutations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterfoil.papers.pretraining.losses import (
    optimal_transport,
    transport_cost,
    transport_plan,
    word_region_alignment,
)


def vectors(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def real(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)


def slow(pays: Tensor, beta: float, rounds: int, inner: int) -> Tensor:
    """The method of one unpadded pair, number by number."""
    words, regions = pays.shape
    moved = [[1.0] * regions for _ in range(words)]
    left = [1 / words] * words
    for _ in range(rounds):
        step = [
            [math.exp(-float(pays[i, j]) / beta) * moved[i][j] for j in range(regions)]
            for i in range(words)
        ]
        for _ in range(inner):
            right = [
                1 / (regions * sum(step[i][j] * left[i] for i in range(words)))
                for j in range(regions)
            ]
            left = [
                1 / (words * sum(step[i][j] * right[j] for j in range(regions)))
                for i in range(words)
            ]
        moved = [[left[i] * step[i][j] * right[j] for j in range(regions)] for i in range(words)]
    return torch.tensor(moved, dtype=torch.double)


@given(
    st.integers(0, 99),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([(0.5, 50, 1), (1.0, 7, 2)]),
)
@settings(max_examples=20, deadline=None)
def test_the_plan_is_that_of_a_slow_loop(seed, words, regions, how):
    beta, rounds, inner = how
    texts, images = vectors(seed, 1, words, 6), vectors(seed + 1, 1, regions, 6)
    pays = transport_cost(texts, images)
    expected = slow(pays[0], beta, rounds, inner)
    lengths = torch.ones(1, words).bool(), torch.ones(1, regions).bool()
    found = transport_plan(pays, *lengths, beta=beta, rounds=rounds, inner=inner)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_padding_changes_nothing():
    texts, images = vectors(0, 3, 5, 6), vectors(1, 3, 4, 6)
    words, regions = real([5, 2, 1], 5), real([3, 4, 1], 4)
    texts[~words], images[~regions] = 1e3, -1e3
    found = optimal_transport(texts, images, words, regions)
    for p, (n, m) in enumerate([(5, 3), (2, 4), (1, 1)]):
        alone = optimal_transport(
            texts[p : p + 1, :n], images[p : p + 1, :m], words[:1, :n], real([m], m)
        )
        torch.testing.assert_close(found[p], alone[0], rtol=0, atol=1e-12)


def test_all_words_go_and_every_region_is_reached():
    words, regions = real([5, 3], 5), real([4, 2], 4)
    pays = transport_cost(vectors(0, 2, 5, 6), vectors(1, 2, 4, 6))
    way = transport_plan(pays, words, regions)
    assert (way[~(words.unsqueeze(2) & regions.unsqueeze(1))] == 0).all()
    given_away = words.double() / words.sum(1, keepdim=True)
    torch.testing.assert_close(way.sum(2), given_away, rtol=0, atol=1e-12)
    taken = regions.double() / regions.sum(1, keepdim=True)
    torch.testing.assert_close(way.sum(1), taken, rtol=0, atol=1e-2)


def test_many_rounds_come_to_the_cheapest_plan():
    """As many words as regions: the cheapest plan is an assignment."""
    texts, images = vectors(3, 1, 5, 8), vectors(4, 1, 5, 8)
    pays = transport_cost(texts, images)[0]
    best = min(float(pays[range(5), order].mean()) for order in permutations(range(5)))
    everywhere = torch.ones(1, 5).bool()
    found = optimal_transport(texts, images, everywhere, everywhere, rounds=2000).item()
    assert best - 1e-9 < found < best + 1e-3


def test_the_gradient_is_that_of_the_cost_alone():
    texts = vectors(0, 2, 4, 5).requires_grad_()
    images = vectors(1, 2, 3, 5).requires_grad_()
    words, regions = real([4, 2], 4), real([2, 3], 3)
    way = transport_plan(transport_cost(texts, images).detach(), words, regions)
    found = torch.autograd.grad(
        optimal_transport(texts, images, words, regions).sum(), (texts, images)
    )
    expected = torch.autograd.grad((transport_cost(texts, images) * way).sum(), (texts, images))
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradcheck(
        lambda t, i: (transport_cost(t, i) * way).sum((1, 2)), (texts, images)
    )


def test_half_precision_is_worked_out_in_full():
    texts, images = vectors(0, 2, 4, 5).bfloat16(), vectors(1, 2, 3, 5).bfloat16()
    words, regions = real([4, 2], 4), real([2, 3], 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = optimal_transport(texts, images, words, regions)
    assert found.dtype == torch.float
    assert torch.equal(found, optimal_transport(texts.float(), images.float(), words, regions))


def test_matching_pairs_are_pulled_and_others_pushed():
    distance = torch.tensor([0.5, 0.75, 0.25])
    found = word_region_alignment(distance, torch.tensor([True, False, False]))
    assert found.tolist() == [0.5, -0.75, -0.25]
