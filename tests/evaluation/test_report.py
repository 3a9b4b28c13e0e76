from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

import evaluation_cases
from counterfoil.evaluation import galleries
from counterfoil.evaluation.bootstrap import Comparison, Interval
from counterfoil.evaluation.metrics import METRICS, RSUM
from counterfoil.evaluation.protocols import evaluate_scores
from counterfoil.evaluation.results import chance, figure, headline, result_table, results, signed
from counterfoil.report.figures import LearningCurve, NamedSample, gap_histograms, learning_curves
from counterfoil.report.page import (
    FigureSection,
    Page,
    Provenance,
    render_page,
)

NASTY = "<script>alert(\"1\")</script> & 'quoted' $x_1$"
PICTURE = "data:image/png;base64,AAAA"
OWNER = torch.arange(12).repeat_interleave(2)
VOID = {"meta", "img", "br", "link", "input", "hr"}


@cache
def _runs():
    matrices = [evaluation_cases.scores(12, OWNER, seed) for seed in (0, 1)]
    reports = [evaluate_scores(m, OWNER, dataset=NASTY, split="test") for m in matrices]
    lists = evaluation_cases.found(matrices[1], reports[1], ("a", reports[0]))
    dataset = evaluation_cases.split(
        [NASTY] * 24, OWNER, lambda n: Image.new("RGB", (40, 30), (n * 20, 0, 0))
    )
    runs = results({NASTY: reports[0], "second": reports[1]})
    return runs, reports[0].setting.line(), galleries.galleries(dataset, *lists)


def _page():
    runs, protocol, cards = _runs()
    curves = learning_curves((LearningCurve(NASTY, (1, 2), (10.0, 20.0), (2.0, 1.0)),))
    gaps = gap_histograms((NamedSample(NASTY, np.linspace(-1, 0, 50)),))
    return Page(
        title=NASTY,
        headline=headline(runs),
        protocol=protocol,
        provenance=Provenance(NASTY, 3, NASTY, NASTY, ((NASTY, "1.0"),), (NASTY, "make demo")),
        tables=(result_table(runs),),
        sections=(FigureSection("Curves", curves), FigureSection("Gaps", (gaps,)), *cards),
    )


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def read():
    reader = _Reader()
    reader.feed(render_page(_page()))
    assert reader.open == []
    return reader


def test_everything_given_is_escaped(read):
    assert not [tag for tag, _ in read.seen if tag == "script"]
    text = "".join(read.text)
    assert text.count(NASTY) > 20
    assert "alert" not in " ".join(str(a) for t, a in read.seen if t not in ("img", "div"))


def test_one_file_that_needs_nothing_else(read):
    for tag, attributes in read.seen:
        assert tag not in ("link", "script", "iframe")
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name) or ""
            assert value.startswith(("data:image/", "#")) or not value
    page = render_page(_page())
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)


def test_it_can_be_read_without_seeing(read):
    pictures = [attributes for tag, attributes in read.seen if tag == "img"]
    assert pictures
    assert all(attributes["alt"] for attributes in pictures)
    drawn = [attributes for tag, attributes in read.seen if attributes.get("role") == "img"]
    assert len(drawn) == 3
    assert all(attributes["aria-label"] for attributes in drawn)
    heads = [attributes["scope"] for tag, attributes in read.seen if tag == "th"]
    assert heads.count("row") == len(METRICS)
    assert {"col", "row", "rowgroup"} == set(heads)
    assert dict(read.seen[0][1])["lang"] == "en"


def test_ids_are_unique_and_labels_point_at_them(read):
    ids = [attributes["id"] for _, attributes in read.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = {a["aria-labelledby"] for _, a in read.seen if "aria-labelledby" in a}
    assert labels <= set(ids)


def test_the_page_says_the_protocol_and_where_it_comes_from(read):
    text = " ".join(read.text)
    for wanted in ("any hit", "ties: of equal scores", "make demo", "95 % interval", "· true"):
        assert wanted in text
    for run in _runs()[0]:
        assert f"{run.numbers[RSUM]:.1f}" in text


def test_a_report_needs_a_run():
    with pytest.raises(ValueError, match="at least one evaluated run"):
        result_table(())


def test_a_single_run_has_no_differences():
    block = result_table(_runs()[0][:1])
    assert block.head == ("Metric", NASTY)
    assert "Differences" not in block.note


def cells(runs, metric):
    """Cells of a metric, which stands once in either direction."""
    lines = [row for row in result_table(runs).rows if len(row) > 1]
    return lines[METRICS.index(metric)]


def test_rows_hold_value_then_difference():
    runs = _runs()[0]
    place = METRICS.index("t2i R@5")
    name, first, second, change, p = cells(runs, "t2i R@5")
    assert name == "R@5"
    assert first.value == f"{runs[0].numbers[place]:.1f}"
    assert second.value == f"{runs[1].numbers[place]:.1f}"
    assert change.value == signed(runs[1].numbers[place] - runs[0].numbers[place])
    assert p == chance(runs[1].against[place].p)
    assert first.best == (runs[0].numbers[place] > runs[1].numbers[place])


def test_the_lower_rank_is_the_better():
    runs = _runs()[0]
    numbers = tuple(float(n + 1) for n in range(len(METRICS)))
    more = tuple(n + 1 for n in numbers)
    runs = (replace(runs[0], numbers=numbers), replace(runs[1], numbers=more))
    assert [c.best for c in cells(runs, "i2t mean rank")[1:4]] == [True, False, False]
    assert [c.best for c in cells(runs, "i2t R@1")[1:4]] == [False, True, False]
    even = (runs[0], replace(runs[1], numbers=numbers))
    assert not any(c.best for c in cells(even, "i2t R@1")[1:4])


@pytest.mark.parametrize(
    "low, high, words",
    [
        (1.0, 5.0, "3.0 more than a (95 % interval of the difference +1.0 to +5.0)."),
        (-1.0, 7.0, "3.0 more than a (95 % interval of the difference −1.0 to +7.0, which could"),
    ],
)
def test_the_headline_does_not_boast(low, high, words):
    first, second = _runs()[0]
    change = Comparison("RSum", 3.0, Interval(low, high), 0.5)
    runs = replace(first, name="a"), replace(second, against=(*second.against[:RSUM], change))
    assert words in headline(runs)
    assert headline(runs[:1]).startswith(f"RSum {first.numbers[RSUM]:.1f} (95 % interval ")


def test_the_headline_says_when_it_got_worse():
    first, second = _runs()[0]
    change = Comparison("RSum", -3.0, Interval(-5.0, -1.0), 0.01)
    runs = first, replace(second, against=(*second.against[:RSUM], change))
    assert "3.0 less than" in headline(runs)


@pytest.mark.parametrize(
    "number, text", [(0.04, "0.0"), (-0.04, "0.0"), (-1.25, "−1.2"), (1234.5, "+1,234.5")]
)
def test_signs(number, text):
    assert signed(number) == text


def test_differences_of_median_ranks_are_whole():
    assert signed(-1.0, "t2i median rank") == "−1"
    assert signed(0.0, "t2i median rank") == "0"
    assert signed(0.4, "t2i median rank") == "+0.4"


def test_numbers():
    assert figure("i2t median rank", 3.0) == "3"
    assert figure("i2t median rank", 3.4) == "3.4"
    assert figure("i2t mean rank", 3.0) == "3.0"
    assert (chance(None), chance(0.0001), chance(0.04)) == ("–", "< 0.001", "0.040")
