from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from counterfoil.report.figures import (
    BINS,
    MapPoints,
    NamedSample,
    ResultPoint,
    cumulative,
    embedding_map,
    grouped_bars,
    histogram_bins,
    histograms,
    result_curves,
)

SAMPLES = (
    NamedSample("<first>", np.linspace(-1, 1, 101)),
    NamedSample("_$x^2$", np.linspace(0, 2, 50)),
)


def point(series: str, value: float, **more) -> ResultPoint:
    return ResultPoint(series, value, value - 2, value + 1, **more)


BARS = [point(s, v, group=g) for s, v, g in (("a", 90, "x"), ("b", 95, "x"), ("a", 80, "y"))]
CURVE = [point(s, v, at=x) for s, v, x in (("a", 90, 32), ("a", 92, 64), ("b", 91, 64))]


def figures():
    none = MapPoints("true texts", np.zeros((0, 2)))
    kinds = (
        MapPoints("query image", np.zeros((1, 2))),
        MapPoints("true texts", np.ones((2, 2)), ("a", "b"), ("<one>", "two")),
        MapPoints("wrong texts", np.random.default_rng(0).random((5, 2))),
    )
    return (
        histograms(SAMPLES, histogram_bins(SAMPLES), "margin", "m", "Margins."),
        cumulative(SAMPLES, 0.5, "similarity", "c", "Similarities."),
        grouped_bars(BARS, "RSum", "b", "Results."),
        result_curves(CURVE, "RSum", "batch size", "l", "Results.", log=True),
        result_curves(CURVE[:1], "RSum", "models", "k", "Results.", log=False),
        embedding_map(kinds, "map", "A map."),
        embedding_map((kinds[0], none, kinds[2]), "empty", "A map."),
    )


def test_figures_are_elements_of_the_page():
    for figure in figures():
        assert ET.fromstring(figure.svg).tag.endswith("svg")
        assert not re.findall(r"#[0-9a-f]{6}", figure.svg)
        assert "var(--run-1)" in figure.svg
    assert figures() == figures()


def test_figures_say_what_they_show():
    margins, shares, results, line, _, around, _ = figures()
    assert "<first>: median +0.000, 49.5 % below 0; _$x^2$: median +0.980" in margins.alt
    assert "<first>: 74.3 % below 0.5" in shares.alt
    assert results.alt == "RSum: x: a 90.0, b 95.0; y: a 80.0."
    assert results.caption[1] == "The axis begins at 73; lines are 95 % intervals."
    assert "a at 32: 90.0; a at 64: 92.0; b at 64: 91.0" in line.alt
    assert around.caption == ("A map.", "a: <one>", "b: two")
    assert around.alt == "A map. 2 true texts, 5 wrong texts."


def test_bars_begin_at_0_where_they_can():
    wide = [ResultPoint("a", 50, 10, 90, group="x")]
    assert "begins at 0;" in grouped_bars(wide, "RSum", "b", "Results.").caption[1]


def test_bins_leave_out_the_outermost():
    values = np.append(np.linspace(0, 1, 1000), 1e6)
    edges = histogram_bins([NamedSample("a", values), NamedSample("b", values[:1])])
    assert len(edges) == BINS + 1
    assert edges[0] == pytest.approx(0.001, abs=1e-3)
    assert edges[-1] == pytest.approx(0.999, abs=1e-3)
    assert histogram_bins([NamedSample("a", np.zeros(3))])[-1] > 0
