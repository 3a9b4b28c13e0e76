from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.data.dataset import Relation
from counterfoil.negatives.filters import Exclusions, NearPairs, exclude_captions, exclude_pictures
from counterfoil.scoring.encode import ScoreTile

RELATION = Relation(torch.tensor([0, 0, 1, -1, 2]), images=4)


def near(*pairs: tuple[int, int]) -> NearPairs:
    left, right = torch.tensor(pairs).T
    return NearPairs(left, right, torch.ones(len(pairs)))


def found(images: torch.Tensor, texts: torch.Tensor) -> set[tuple[int, int]]:
    assert len(images) == len(texts)
    return set(zip(images.tolist(), texts.tolist()))


@given(
    pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=30),
    first=st.integers(0, 6),
    high=st.integers(1, 7),
    order=st.permutations(range(10)),
    wide=st.integers(1, 10),
)
def test_the_places_in_any_tile(pairs, first, high, order, wide):
    images, texts = (torch.tensor([pair[side] for pair in pairs]).long() for side in (0, 1))
    exclusions = Exclusions(images, texts, (7, 10))
    assert len(exclusions) == len(set(pairs))
    rows, columns = torch.arange(7)[first : first + high], torch.tensor(order[:wide])
    for _ in range(2):  # the second look finds nothing left over from the first
        tile = ScoreTile(torch.zeros(len(rows), wide), rows, columns)
        tile.scores[exclusions.places(tile)] = 1
        for i, image in enumerate(rows.tolist()):
            for t, text in enumerate(columns.tolist()):
                assert bool(tile.scores[i, t]) == ((image, text) in pairs)


@pytest.mark.parametrize(
    "pairs, wanted",
    [
        ([(0, 2)], {(0, 2), (1, 0)}),
        ([(0, 1)], set()),  # of one image: its own captions
        ([(2, 3)], {(1, 3)}),  # a text of no image
        ([(0, 4), (1, 4)], {(0, 4), (2, 0), (2, 1)}),
    ],
)
def test_a_near_caption_goes_with_the_image(pairs, wanted):
    assert found(*exclude_captions(near(*pairs), RELATION)) == wanted


@pytest.mark.parametrize(
    "pairs, wanted",
    [
        ([(0, 1)], {(0, 2), (1, 0), (1, 1)}),
        ([(2, 3)], {(3, 4)}),  # an image without captions
        ([(0, 2), (1, 2)], {(0, 4), (1, 4), (2, 0), (2, 1), (2, 2)}),
    ],
)
def test_all_captions_of_a_near_picture_go_with_the_image(pairs, wanted):
    assert found(*exclude_pictures(near(*pairs), RELATION)) == wanted
