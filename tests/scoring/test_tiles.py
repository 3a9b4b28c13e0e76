from __future__ import annotations

import pytest
import torch
from hypothesis import given as every
from hypothesis import strategies as st

from counterfoil.core.types import Embeddings
from counterfoil.scoring.encode import (
    EmbeddedDataset,
    ScoreTile,
    cut_tiles,
    spread_order,
    take_rows,
    tile_shape,
)
from engine_cases import Dot, given, vectors

CPU = torch.device("cpu")


@every(st.integers(0, 300))
def test_spread_visits_everything_once(count):
    assert sorted(spread_order(count)) == list(range(count))


def test_spread_is_far_and_wide():
    assert spread_order(8) == [0, 4, 2, 6, 1, 5, 3, 7]


@every(st.integers(1, 400), st.integers(1, 3000))
def test_tiles_cover_and_waste_little(images, texts):
    member = EmbeddedDataset(Dot(), vectors(torch.zeros(images, 1)), vectors(torch.zeros(texts, 1)))
    high, wide = tile_shape([member], CPU)
    for count, size, most in ((images, high, 512), (texts, wide, 2048)):
        tiles = len(cut_tiles(torch.arange(count), size))
        assert size <= most
        assert tiles * size - count < 16 * tiles
        assert torch.equal(torch.cat(cut_tiles(torch.arange(count), size)), torch.arange(count))


def test_bags_get_smaller_tiles():
    bags = Embeddings(torch.zeros(2000, 3, 1), torch.ones(2000, 3, dtype=torch.bool))
    single = vectors(torch.zeros(2000, 1))
    assert tile_shape([EmbeddedDataset(Dot(), single, single)], CPU) == (512, 2000)
    assert tile_shape([EmbeddedDataset(Dot(), single, bags)], CPU) == (128, 512)


def test_tiles_of_a_gpu_are_larger_where_kernels_score_them():
    bags = Embeddings(torch.zeros(20000, 3, 1), torch.ones(20000, 3, dtype=torch.bool))
    single, gpu = vectors(torch.zeros(20000, 1)), torch.device("cuda")
    kernels = Dot()
    kernels.has_kernels = True
    assert tile_shape([EmbeddedDataset(Dot(), single, single)], gpu) == (2000, 20000)
    assert tile_shape([EmbeddedDataset(Dot(), bags, bags)], gpu) == (512, 1008)
    assert tile_shape([EmbeddedDataset(kernels, bags, bags)], gpu) == (512, 6672)
    assert tile_shape([EmbeddedDataset(kernels, bags, bags)], CPU) == (128, 512)


def test_a_block_of_neighbours_is_a_view():
    encoded = vectors(torch.arange(20.0).view(10, 2))
    block = take_rows(encoded, torch.arange(4, 8), 4, CPU)
    assert block.tokens.data_ptr() == encoded.tokens[4:].data_ptr()


@pytest.mark.parametrize("rows", [[4, 5, 7, 6], [1, 3, 2, 4], [7, 6, 5, 4]])
def test_any_rows_can_be_picked(rows):
    encoded = vectors(torch.arange(20.0).view(10, 2))
    got = take_rows(encoded, torch.tensor(rows), 4, CPU)
    assert torch.equal(got.tokens, encoded.tokens[rows])


def test_a_short_block_repeats_its_last_row():
    encoded = vectors(torch.arange(20.0).view(10, 2))
    got = take_rows(encoded, torch.tensor([8, 9]), 5, CPU)
    assert torch.equal(got.tokens, encoded.tokens[[8, 9, 9, 9, 9]])


def test_true_pairs_of_a_tile():
    text_to_image = torch.tensor([3, -1, 5, 4, 3, 9, 0])
    tile = ScoreTile(torch.zeros(3, 4), torch.tensor([3, 4, 5]), torch.tensor([6, 1, 4, 2]))
    rows, columns = tile.true_pairs(text_to_image)
    assert rows.tolist() == [0, 2]
    assert columns.tolist() == [2, 3]


def test_a_matrix_can_be_given():
    scores = torch.randn(5, 7)
    member = given(scores)
    assert torch.equal(member.model.score_matrix(member.images, member.texts), scores)
