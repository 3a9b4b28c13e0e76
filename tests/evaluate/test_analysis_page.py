from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from counterfoil.evaluate.analysis_figures import Counted, by_batch, cross_ranks
from counterfoil.evaluate.analysis_page import AnalysisPage, Card, Cards, Column, Rows, render
from counterfoil.evaluate.cross_rank import BINS
from counterfoil.evaluate.gallery import Shown
from counterfoil.evaluate.report import Provenance
from counterfoil.evaluate.table import plain

SHARES = (40.0, 20.0, 10.0, 10.0, 5.0, 5.0, 5.0, 5.0)
LINE = Counted("<captions>", (32, 64), (10.0, 5.0), (11.0, 4.5), (1.0, 0.5))
PICTURE = "data:image/png;base64,AA=="


def figures():
    return (
        by_batch([LINE], "mean rank", "rank", "A rank.", log=True),
        by_batch([LINE], "share, %", "top", "A share."),
        cross_ranks([("first", SHARES), ("_$x^2$", SHARES[::-1])]),
    )


def page(**more):
    card = Card(
        Shown("<asked>"),
        "",
        (
            Column("one", "a note", (Shown("<a caption>", place=1, true=True, score=0.5),)),
            Column("two", "", (Shown("a picture", PICTURE, 2, score=0.25),)),
        ),
    )
    table = Rows("A table", ("", "first"), (("<row>", "1"), ("[bold]", "2")), "What it means.")
    sections = (Cards("Section", "How they were chosen.", (card,)),)
    given = {"tables": (table,), "sections": sections} | more
    return AnalysisPage("<title>", "The <result>.", "scenes; seed 0", Provenance("run"), **given)


def test_figures_are_elements_of_the_page():
    for figure in figures():
        assert ET.fromstring(figure.svg).tag.endswith("svg")
        assert not re.findall(r"#[0-9a-f]{6}", figure.svg)
        assert "var(--run-1)" in figure.svg
    assert figures() == figures()


def test_figures_say_what_they_show():
    rank, _, cross = figures()
    assert rank.alt == "Mean rank by batch size, measured: <captions>: 11 at 32, 4.5 at 64."
    assert rank.caption == ("A rank.", "Lines: by counting. Points: measured.")
    assert "first: 40.0 % at rank 1, 5.0 % above 200" in cross.alt
    texts = {node.text for node in ET.fromstring(cross.svg).iter() if node.text}
    assert set(BINS) <= texts


def test_everything_stands_on_the_page():
    html = render(page(figures=figures()))
    for wanted in ("&lt;title&gt;", "The &lt;result&gt;.", "scenes; seed 0.", "&lt;row&gt;"):
        assert wanted in html
    for wanted in ("“&lt;asked&gt;”", "&lt;a caption&gt;", "a note", PICTURE, "What it means."):
        assert wanted in html
    assert html.count("<svg") == 3
    assert "<title>&lt;title&gt;</title>" in html
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", html).replace("http-equiv", "")


def test_one_figure_is_wide():
    assert 'class="card plot wide"' in render(page(figures=figures()[:1]))


def test_a_picture_that_asks_stands_beside_its_lists():
    card = Card(Shown("words", PICTURE), "a line", (Column("one", "", (Shown("c"),)),))
    html = render(page(sections=(Cards("S", "", (card,)),)))
    assert 'class="asked"' in html
    assert 'alt="words"' in html
    assert "a line" in html


def test_the_terminal_shows_words_as_they_are():
    from rich.console import Console

    console = Console(record=True, width=100)
    console.print(plain(page().tables[0], "scenes; seed 0"))
    shown = " ".join(console.export_text().split())
    for wanted in ("A table", "[bold]", "<row>", "scenes; seed 0. What it means."):
        assert wanted in shown
