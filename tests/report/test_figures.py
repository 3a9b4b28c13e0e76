from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from counterfoil.report import figures
from counterfoil.report.figures import LearningCurve, NamedSample

CURVES = (
    LearningCurve("first", (1, 2, 3), (100.0, 180.0, 175.0), (9.0, 4.0, 2.5)),
    LearningCurve("_$x^2$ <&> 猫", (1, 2, 3), (90.0, 150.0, 160.0), (8.0, 3.0, 2.0)),
)
SOURCES = (
    NamedSample("online", np.linspace(-1, 0.2, 500)),
    NamedSample("offline", np.linspace(-0.3, 0.3, 300, dtype=np.float32)),
)


def _all():
    return (*figures.learning_curves(CURVES), figures.gap_histograms(SOURCES))


@pytest.mark.parametrize("number", range(3))
def test_an_element_of_the_page(number):
    svg = _all()[number].svg
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & set(root.attrib)
    assert not re.findall(r"#[0-9a-f]{6}", svg)  # colours are the page's
    assert "var(--run-1)" in svg
    assert "var(--run-2)" in svg
    assert "var(--sans)" in svg
    assert "<metadata" not in svg


def test_a_long_legend_makes_the_figure_higher_and_not_the_frame_smaller():
    many = [
        LearningCurve(f"{'a run of many words, ' * 2}{n}", (1, 2), (1.0, 2.0), (2.0, 1.0))
        for n in range(16)
    ]
    heights = []
    for curves in (CURVES, many):
        root = ET.fromstring(figures.learning_curves(curves)[0].svg)
        heights.append(float(root.attrib["viewBox"].split()[3]))
    assert heights[1] > heights[0] + 100


def test_ids_do_not_clash_and_references_hold():
    ids = [set(re.findall(r'\bid="([^"]+)"', figure.svg)) for figure in _all()]
    assert not ids[0] & ids[1]
    assert not ids[0] & ids[2]
    for figure, own in zip(_all(), ids):
        used = re.findall(r'(?:url\(#|href="#)([^)"]+)', figure.svg)
        assert used
        assert set(used) <= own


def test_names_are_shown_as_they_are():
    texts = [node.text for node in ET.fromstring(_all()[0].svg).iter() if node.text]
    assert any("_$x^2$ <&> 猫" in text for text in texts)


def test_the_same_data_give_the_same_picture():
    assert _all() == _all()


def test_words_for_those_who_do_not_see():
    rsum, loss, hard = _all()
    assert "first ends at 175.0, best 180.0" in rsum.alt
    assert "first goes from 9 to 2.5" in loss.alt
    assert "online: 500 negatives, median gap −0.400" in hard.alt
    assert hard.caption == ("Further right is harder.", *hard.caption[1:])
    assert "at or above their positive" in hard.caption[2]


def test_what_was_not_measured_is_not_drawn():
    (only,) = figures.learning_curves([LearningCurve("first", (1, 2), (), (2.0, 1.0))])
    assert only.alt.startswith("Training loss")
    assert figures.learning_curves([]) == ()


def test_equal_gaps_still_have_a_histogram():
    flat = figures.gap_histograms([NamedSample("flat", np.zeros(5))])
    assert "flat: 5 negatives, median gap +0.000, 100.0 % at or above" in flat.alt
