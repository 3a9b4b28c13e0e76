from __future__ import annotations

import math
import re

import numpy as np

from counterfoil.report.figures import (
    MAX_POINTS,
    ResultPoint,
    dot_plot,
    doubt_histograms,
    score_scatter,
)


def triples(many: int, name: str = "batch", gap: float = 0.1):
    positive = np.random.default_rng(0).random(many)
    return name, positive, positive + gap


def test_scatter_tells_who_is_above():
    figure = score_scatter([triples(30), triples(20, "written $x$", -0.1)], 0.05, "k", "Of one.")
    assert "batch: 100.0 % above" in figure.alt
    assert "written $x$: 0.0 % above" in figure.alt
    assert "0.05 below it." in figure.caption[1]
    assert figure.svg.count("var(--run-1)") >= 30
    assert figure.svg.count("var(--run-2)") >= 20


def test_scatter_says_what_it_leaves_out():
    figure = score_scatter([triples(MAX_POINTS + 5)], 9.0, "k", "Of one.")
    assert "outside the frame" in figure.caption[1]
    assert figure.caption[2] == "1,000 of 1,005 triples of a source are drawn."


def test_scatter_of_one_point():
    assert score_scatter([triples(1, gap=0.0)], 0.05, "k", "Of one.").svg.startswith("<svg")


def test_dots():
    points = [
        ResultPoint("one", 44.0, 30, 58, "a", baseline=50.0),
        ResultPoint("two", math.nan, 0, 0, "a"),
        ResultPoint("one", 44.0, 30, 58, "b <c>"),
    ]
    figure = dot_plot(points, "right, %", "k", "Who is right.", "guessing")
    assert figure.alt == "right, %: a, one: 44.0; b <c>, one: 44.0."
    assert "guessing" in figure.svg
    assert "b &lt;c&gt;" in figure.svg
    assert len(re.findall("var\\(--run-1\\)", figure.svg)) >= 2


def test_doubts():
    right = np.array([0.1, 0.5, 0.7, 0.9])
    same = np.array([False, True, True, True])
    figure = doubt_histograms(right, same, 0.5)
    assert "of 1 wrong words 100.0 % are doubted" in figure.alt
    assert "of 3 right words 33.3 % are doubted" in figure.alt
    assert "wrong" not in doubt_histograms(right, same | True, 0.5).caption[1]
