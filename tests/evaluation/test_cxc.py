"""Crisscrossed Captions: recalls between images and between texts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.evaluation import cxc

IDS = torch.tensor([10, 20, 30, 40])


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(0, 999), st.integers(1, 12), st.sampled_from([1, 3, 64]))
def test_nearest_is_a_stable_sort_without_oneself(count, seed, depth, at_once):
    rng = torch.Generator().manual_seed(seed)
    embedded = torch.randint(-1, 2, (count, 2), generator=rng).float()
    found = cxc.nearest_neighbours(embedded, depth, at_once=at_once)
    similar = (embedded @ embedded.T).tolist()
    for item, row in enumerate(found.tolist()):
        others = sorted(set(range(count)) - {item}, key=lambda o: (-similar[item][o], o))
        padded = [*others, -1][:depth]
        assert row == padded


def test_a_zero_diagonal_lets_an_item_find_itself():
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert cxc.nearest_neighbours(opposite, 1).tolist() == [[1], [0]]
    assert cxc.nearest_neighbours(opposite, 1, own="zero").tolist() == [[0], [1]]
    rated = {10: [(20, 3.0)], 20: [(10, 3.0)]}
    assert cxc.cxc_images(opposite, IDS[:2], rated).r1 == 100.0
    assert cxc.cxc_images(opposite, IDS[:2], rated, own="zero").r1 == 0.0


def test_images_without_a_true_one_are_left_out():
    embedded = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    rated = {10: [(20, 2.5)], 20: [(10, 2.4), (99, 5.0)], 30: [(10, 2.5)]}
    found = cxc.cxc_images(embedded, IDS, rated)
    assert (found.r1, found.r5, found.queries, found.left_out) == (50.0, 100.0, 2, 2)


def test_texts_of_one_image_are_true_for_each_other():
    embedded = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]])
    text_to_image = torch.tensor([0, 0, -1, -1])
    rated = {30: [(10, 3.0)], 40: [(20, 2.9)]}
    found = cxc.cxc_texts(embedded, IDS, text_to_image, rated)
    assert (found.queries, found.left_out) == (3, 1)
    assert found.r1 == pytest.approx(100 / 3)  # the rated one; siblings lie apart


def test_ids_that_do_not_fit():
    with pytest.raises(ValueError, match="none of the 2 i2i queries has a rated item"):
        cxc.cxc_images(torch.eye(2), torch.tensor([1, 2]), {})
