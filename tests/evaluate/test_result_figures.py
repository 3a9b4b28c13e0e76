from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import torch

from counterfoil.evaluate.distribution_figures import (
    BINS,
    Sample,
    bins_of,
    cumulative,
    histograms,
    minus,
)
from counterfoil.evaluate.map_figure import Marked, mapped
from counterfoil.evaluate.result_figures import Point, bars, curves
from counterfoil.evaluation.bootstrap import Interval

SAMPLES = (
    Sample("<first>", torch.linspace(-1, 1, 101)),
    Sample("_$x^2$", torch.linspace(0, 2, 50)),
)


def point(series: str, value: float, **more) -> Point:
    return Point(series, value, Interval(value - 2, value + 1), **more)


BARS = [point(s, v, group=g) for s, v, g in (("a", 90, "x"), ("b", 95, "x"), ("a", 80, "y"))]
CURVE = [point(s, v, at=x) for s, v, x in (("a", 90, 32), ("a", 92, 64), ("b", 91, 64))]


def figures():
    kinds = (
        Marked("query image", torch.zeros(1, 2)),
        Marked("true texts", torch.ones(2, 2), ("a", "b"), ("<one>", "two")),
        Marked("wrong texts", torch.rand(5, 2, generator=torch.Generator().manual_seed(0))),
    )
    return (
        histograms(SAMPLES, bins_of(SAMPLES), "margin", "m", "Margins."),
        cumulative(SAMPLES, 0.5, "similarity", "c", "Similarities."),
        bars(BARS, "RSum", "b", "Results."),
        curves(CURVE, "RSum", "batch size", "l", "Results.", log=True),
        curves(CURVE[:1], "RSum", "models", "k", "Results.", log=False),
        mapped(kinds, "map", "A map."),
        mapped((kinds[0], Marked("true texts", torch.zeros(0, 2)), kinds[2]), "empty", "A map."),
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
    wide = [Point("a", 50, Interval(10, 90), group="x")]
    assert "begins at 0;" in bars(wide, "RSum", "b", "Results.").caption[1]


def test_bins_leave_out_the_outermost():
    values = torch.cat([torch.linspace(0, 1, 1000), torch.tensor([1e6])])
    edges = bins_of([Sample("a", values), Sample("b", values[:1])])
    assert len(edges) == BINS + 1
    assert edges[0] == pytest.approx(0.001, abs=1e-3)
    assert edges[-1] == pytest.approx(0.999, abs=1e-3)
    assert bins_of([Sample("a", torch.zeros(3))])[-1] > 0


def test_signs_are_wide():
    assert minus(-0.5) == "−0.500"
    assert minus(0.5, ".1f") == "0.5"
