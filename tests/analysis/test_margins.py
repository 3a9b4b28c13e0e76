from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.ndgl import margins, share_below
from evaluation_cases import member, ragged, scores


def slow(found, text_to_image):
    """Margins of every query by looking at its whole line."""
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
    both = margins([member(found)], text_to_image)
    assert list(both) == ["i2t", "t2i"]
    for side, values, queries in zip(both.values(), slow(found, text_to_image), found.shape):
        assert len(side) == queries
        assert side[~side.isnan()].tolist() == pytest.approx(values)


def test_margins_are_in_units_of_the_score():
    text_to_image = ragged(9, 1)
    found = scores(9, text_to_image, 1)
    for members in ([scaled(found, 10.0)], [scaled(found, 10.0), scaled(found, 2.0)]):
        for side, values in zip(
            margins(members, text_to_image).values(), slow(found, text_to_image)
        ):
            assert side[~side.isnan()].tolist() == pytest.approx(values, abs=1e-5)


def test_one_image_has_nothing_wrong():
    with pytest.raises(ValueError, match="none of the 1 i2t queries has both"):
        margins([member(torch.rand(1, 3))], torch.zeros(3).long())


def test_a_tie_is_not_below():
    assert share_below(torch.tensor([0.0, 1.0, -1.0, 2.0]), 0) == 25.0
