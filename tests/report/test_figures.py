"""Every figure is an element of the page and says in words what it shows."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from functools import cache

import numpy as np
import pytest

from counterfoil.report import figures
from counterfoil.report.figures import LearningCurve, MapPoints, NamedSample, ResultPoint
from counterfoil.report.page import Figure

BINS = ("1", "2–5", "6–10", "11–20", "21–50", "51–100", "101–200", "above 200")
SHARES = (40.0, 20.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0)
CURVES = (
    LearningCurve("first", (1, 2, 3), (100.0, 180.0, 175.0), (9.0, 4.0, 2.5)),
    LearningCurve("_$x^2$ <&> 猫", (1, 2, 3), (90.0, 150.0, 160.0), (8.0, 3.0, 2.0)),
)
GAPS = (
    NamedSample("online", np.linspace(-1, 0.2, 500)),
    NamedSample("offline", np.linspace(-0.3, 0.3, 300, dtype=np.float32)),
)
SAMPLES = (
    NamedSample("<first>", np.linspace(-1, 1, 101)),
    NamedSample("_$x^2$", np.linspace(0, 2, 50)),
)
RANKS = {"<captions>": ((10.0, 5.0), (11.0, 4.5), (1.0, 0.5))}
RIGHT, SAME = np.array([0.1, 0.5, 0.7, 0.9]), np.array([False, True, True, True])


def point(series: str, value: float, **more) -> ResultPoint:
    return ResultPoint(series, value, value - 2, value + 1, **more)


BARS = [point(s, v, group=g) for s, v, g in (("a", 90, "x"), ("b", 95, "x"), ("a", 80, "y"))]
CURVE = [point(s, v, at=x) for s, v, x in (("a", 90, 32), ("a", 92, 64), ("b", 91, 64))]
DOTS = [
    ResultPoint("one", 44.0, 30, 58, "a", baseline=50.0),
    ResultPoint("two", math.nan, 0, 0, "a"),
    ResultPoint("one", 44.0, 30, 58, "b <c>"),
]


def triples(many: int, name: str = "batch", gap: float = 0.1):
    positive = np.random.default_rng(0).random(many)
    return name, positive, positive + gap


def points(*, matches: bool = True) -> tuple[MapPoints, ...]:
    true = MapPoints("true texts", np.ones((2, 2)), ("a", "b"), ("<one>", "two"))
    return (
        MapPoints("query image", np.zeros((1, 2))),
        true if matches else MapPoints("true texts", np.zeros((0, 2))),
        MapPoints("wrong texts", np.random.default_rng(0).random((5, 2))),
    )


def drawn() -> dict[str, Figure]:
    bins = figures.histogram_bins(SAMPLES)
    rsum, loss = figures.learning_curves(CURVES)
    two = [triples(30), triples(20, "written $x$", -0.1)]
    return {
        "rsum": rsum,
        "loss": loss,
        "gaps": figures.gap_histograms(GAPS),
        "histograms": figures.histograms(SAMPLES, bins, "margin", "m", "Margins."),
        "cumulative": figures.cumulative(SAMPLES, 0.5, "similarity", "c", "Similarities."),
        "ranks": figures.expected_by_batch(
            (32, 64), RANKS, "mean rank", "rank", "A rank.", log=True
        ),
        "top": figures.expected_by_batch((32, 64), RANKS, "share, %", "top", "A share."),
        "shares": figures.share_bars([("first", SHARES), ("_$x^2$", SHARES[::-1])], BINS, "cross"),
        "bars": figures.grouped_bars(BARS, "RSum", "b", "Results."),
        "curve": figures.result_curves(CURVE, "RSum", "batch size", "l", "Results.", log=True),
        "point": figures.result_curves(CURVE[:1], "RSum", "models", "k", "Results.", log=False),
        "map": figures.embedding_map(points(), "map", "A map."),
        "map without matches": figures.embedding_map(points(matches=False), "empty", "A map."),
        "scatter": figures.score_scatter(two, 0.05, "s", "Of one."),
        "scatter of one": figures.score_scatter([triples(1, gap=0.0)], 0.05, "o", "Of one."),
        "dots": figures.dot_plot(DOTS, "right, %", "d", "Who is right.", "guessing"),
        "doubts": figures.doubt_histograms(RIGHT, SAME, 0.5),
    }


drawn_once = cache(drawn)


def test_elements_of_the_page():
    for name, figure in drawn_once().items():
        root = ET.fromstring(figure.svg)
        assert root.tag.endswith("svg"), name
        assert "viewBox" in root.attrib, name
        assert not {"width", "height"} & set(root.attrib), name
        assert not re.findall(r"#[0-9a-f]{6}", figure.svg), name  # colours are the page's
        assert "var(--run-1)" in figure.svg, name
        assert "var(--sans)" in figure.svg, name
        assert "<metadata" not in figure.svg, name


def test_the_same_data_give_the_same_picture():
    assert drawn() == drawn_once()


def test_ids_do_not_clash_and_references_hold():
    taken: set[str] = set()
    for figure in drawn_once().values():
        own = set(re.findall(r'\bid="([^"]+)"', figure.svg))
        used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', figure.svg))
        assert used
        assert used <= own
        assert not own & taken
        taken |= own


def test_names_are_shown_as_they_are():
    for name, shown in (("rsum", "_$x^2$ <&> 猫"), ("dots", "guessing"), ("dots", "b <c>")):
        texts = [node.text for node in ET.fromstring(drawn_once()[name].svg).iter() if node.text]
        assert any(shown in text for text in texts)
    texts = {node.text for node in ET.fromstring(drawn_once()["shares"].svg).iter() if node.text}
    assert set(BINS) <= texts


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rsum", "first ends at 175.0, best 180.0"),
        ("loss", "first goes from 9 to 2.5"),
        ("gaps", "online: 500 negatives, median gap −0.400"),
        ("histograms", "<first>: median +0.000, 49.5 % below 0; _$x^2$: median +0.980"),
        ("cumulative", "<first>: 74.3 % below 0.5"),
        ("ranks", "Mean rank by batch size, measured: <captions>: 11 at 32, 4.5 at 64."),
        ("shares", "first: 40.0 % at rank 1, 5.0 % above 200"),
        ("bars", "RSum: x: a 90.0, b 95.0; y: a 80.0."),
        ("curve", "a at 32: 90.0; a at 64: 92.0; b at 64: 91.0"),
        ("map", "A map. 2 true texts, 5 wrong texts."),
        ("scatter", "batch: 100.0 % above the dotted line; written $x$: 0.0 % above"),
        ("dots", "right, %: a, one: 44.0; b <c>, one: 44.0."),
        ("doubts", "of 1 wrong words 100.0 % are doubted; of 3 right words 33.3 % are doubted"),
    ],
)
def test_words_for_those_who_do_not_see(name, words):
    assert words in drawn_once()[name].alt


@pytest.mark.parametrize(
    ("name", "captions"),
    [
        ("gaps", ("Further right is harder.",)),
        ("ranks", ("A rank.", "Lines: by counting. Points: measured.")),
        ("bars", ("Results.", "The axis begins at 73; lines are 95 % intervals.")),
        ("map", ("A map.", "a: <one>", "b: two")),
        ("scatter", ("Of one.", "Dotted: as high as the positive. Solid: 0.05 below it.")),
    ],
)
def test_captions(name, captions):
    assert drawn_once()[name].caption[: len(captions)] == captions


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


def test_what_was_not_measured_is_not_drawn():
    (only,) = figures.learning_curves([LearningCurve("first", (1, 2), (), (2.0, 1.0))])
    assert only.alt.startswith("Training loss")
    assert figures.learning_curves([]) == ()
    assert "wrong" not in figures.doubt_histograms(RIGHT, SAME | True, 0.5).caption[1]


def test_equal_gaps_still_have_a_histogram():
    flat = figures.gap_histograms([NamedSample("flat", np.zeros(5))])
    assert "flat: 5 negatives, median gap +0.000, 100.0 % at or above" in flat.alt


def test_bars_begin_at_0_where_they_can():
    wide = [ResultPoint("a", 50, 10, 90, group="x")]
    assert "begins at 0;" in figures.grouped_bars(wide, "RSum", "b", "Results.").caption[1]


def test_bins_leave_out_the_outermost():
    values = np.append(np.linspace(0, 1, 1000), 1e6)
    edges = figures.histogram_bins([NamedSample("a", values), NamedSample("b", values[:1])])
    assert len(edges) == figures.BINS + 1
    assert edges[0] == pytest.approx(0.001, abs=1e-3)
    assert edges[-1] == pytest.approx(0.999, abs=1e-3)
    assert figures.histogram_bins([NamedSample("a", np.zeros(3))])[-1] > 0


def test_scatter_says_what_it_leaves_out():
    two = drawn_once()["scatter"]
    assert two.svg.count("var(--run-1)") >= 30
    assert two.svg.count("var(--run-2)") >= 20
    figure = figures.score_scatter([triples(figures.MAX_POINTS + 5)], 9.0, "k", "Of one.")
    assert "outside the frame" in figure.caption[1]
    assert figure.caption[2] == "1,000 of 1,005 triples of a source are drawn."
