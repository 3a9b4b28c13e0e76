from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.ndgl import QueryMargins, margins
from counterfoil.scoring.encode import EmbeddedDataset
from evaluation_cases import member, ragged, scores


def slow(found, text_to_image):
    """QueryMargins of every query by looking at its whole line."""
    true = text_to_image == torch.arange(len(found)).unsqueeze(1)
    sides = []
    for lines, marks in ((found, true), (found.T, true.T)):
        each = [(line[mark], line[~mark]) for line, mark in zip(lines, marks)]
        sides.append([float(a.max()) - float(b.max()) for a, b in each if len(a) and len(b)])
    return sides


def scaled(found, scale):
    one = member(found * scale)
    one.model.score_scale = scale
    return one


@pytest.mark.parametrize("seed", range(3))
def test_margins_are_those_of_a_loop(seed):
    text_to_image = ragged(19, seed, orphans=2)
    found = scores(19, text_to_image, seed)
    sides = margins([member(found)], text_to_image)
    for side, values, queries in zip(sides, slow(found, text_to_image), found.shape):
        assert side.values.tolist() == pytest.approx(values)
        assert side.left_out == queries - len(values)
        assert side.below == pytest.approx(100 * sum(v < 0 for v in values) / len(values))
        assert side.median == pytest.approx(sorted(values)[(len(values) - 1) // 2])


def test_margins_are_in_units_of_the_score():
    text_to_image = ragged(9, 1)
    found = scores(9, text_to_image, 1)
    for side, values in zip(
        margins([scaled(found, 10.0)], text_to_image), slow(found, text_to_image)
    ):
        assert side.values.tolist() == pytest.approx(values, abs=1e-5)
    both: list[EmbeddedDataset] = [scaled(found, 10.0), scaled(found, 2.0)]
    for side, values in zip(margins(both, text_to_image), slow(found, text_to_image)):
        assert side.values.tolist() == pytest.approx(values, abs=1e-5)


def test_one_image_has_nothing_wrong():
    with pytest.raises(ValueError, match="none of the 1 i2t queries has both"):
        margins([member(torch.rand(1, 3))], torch.zeros(3).long())


def test_a_tie_is_not_below():
    assert QueryMargins("i2t", torch.tensor([0.0, 1.0, -1.0, 2.0])).below == 25.0
