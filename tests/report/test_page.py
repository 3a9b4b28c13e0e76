from __future__ import annotations

import re

import pytest

from counterfoil.report.page import (
    CardColumn,
    CardSection,
    ExampleCard,
    Figure,
    FigureSection,
    Page,
    PageItem,
    Provenance,
    TableBlock,
    TableCell,
    TextPart,
    render_page,
    write_page,
)
from counterfoil.report.tables import TerminalTable, format_interval, format_number

PICTURE = "data:image/png;base64,AA=="


FIGURES = tuple(Figure(f'<svg id="{n}"></svg>', f"figure {n}", ("A figure.",)) for n in range(3))


def page(**more):
    card = ExampleCard(
        PageItem("<asked>"),
        "",
        (
            CardColumn("one", "a note", (PageItem("<a caption>", place=1, true=True, score=0.5),)),
            CardColumn("two", "", (PageItem("a picture", PICTURE, 2, score=0.25),)),
        ),
    )
    table = TableBlock(
        "A table", ("", "first"), (("<row>", "1"), ("[bold]", "2")), "What it means."
    )
    sections = (CardSection("Section", "How they were chosen.", (card,)),)
    given = {"tables": (table,), "sections": sections} | more
    return Page("<title>", "The <result>.", "scenes; seed 0", Provenance("run"), **given)


def test_everything_stands_on_the_page():
    html = render_page(page(figures=FIGURES))
    for wanted in ("&lt;title&gt;", "The &lt;result&gt;.", "scenes; seed 0.", "&lt;row&gt;"):
        assert wanted in html
    for wanted in ("“&lt;asked&gt;”", "&lt;a caption&gt;", "a note", PICTURE, "What it means."):
        assert wanted in html
    assert html.count("<svg") == 3
    assert "<title>&lt;title&gt;</title>" in html
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", html).replace("http-equiv", "")


def test_one_figure_is_wide():
    assert 'class="card plot wide"' in render_page(page(figures=FIGURES[:1]))


def test_a_picture_that_asks_stands_beside_its_lists():
    card = ExampleCard(
        PageItem("words", PICTURE), "a line", (CardColumn("one", "", (PageItem("c"),)),)
    )
    html = render_page(page(sections=(CardSection("S", "", (card,)),)))
    assert 'class="asked"' in html
    assert 'alt="words"' in html
    assert "a line" in html


def test_the_terminal_shows_words_as_they_are():
    from rich.console import Console

    console = Console(record=True, width=100)
    console.print(TerminalTable(page().tables[0], "scenes; seed 0"))
    shown = " ".join(console.export_text().split())
    for wanted in ("A table", "[bold]", "<row>", "scenes; seed 0. What it means."):
        assert wanted in shown


def test_rows_of_one_cell_are_headings_and_cells_have_second_lines():
    from rich.console import Console

    rows = (("Group <1>",), ("R@1", TableCell("<12.0>", "11.0 to 13.0", best=True), "0.01"))
    block = TableBlock("Results", ("Metric", "a", "p"), rows)
    html = render_page(page(tables=(block,)))
    assert '<th scope="rowgroup" colspan="3">Group &lt;1&gt;</th>' in html
    assert '<td class="best">&lt;12.0&gt;<span class="under">11.0 to 13.0</span></td>' in html
    console = Console(record=True, width=100)
    console.print(TerminalTable(block))
    assert "11.0…13.0" in console.export_text()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_number_or_interval_is_broken(width):
    from rich.console import Console

    names = ("openai/clip-vit-base-patch32", "tuned", "averaged")
    head = ["Metric", names[0]]
    row: list[str | TableCell] = ["Median rank", TableCell("100.0", "97.5 to 100.0")]
    for name in names[1:]:
        head += [name, "difference", "p"]
        row += [TableCell("99.5", "98.5 to 100.0"), TableCell("+10.0", "−10.5 to +30.0"), "1.000"]
    row += ["20.0: 0.0 (−2.5 to 1.5; p 0.125)"]
    block = TableBlock("Results", (*head, "RSum"), (("Group",), tuple(row)), "What it means.")
    console = Console(record=True, width=width)
    console.print(TerminalTable(block, "scenes"))
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= width
    whole = {"97.5…100.0": 1, "98.5…100.0": 2, "−10.5…+30.0": 2, "(−2.5…1.5;": 1, "1.000": 2}
    assert {part: shown.count(part) for part in whole} == whole
    assert "scenes. What it means." in " ".join(shown.split())


def test_coloured_words_and_corrections():
    parts = (
        TextPart("A"),
        TextPart("<cat>", 0.9, "90 %", marked=True),
        TextPart("dog", inserted=True),
    )
    item = PageItem("A <cat>", parts=parts)
    card = ExampleCard(PageItem("q"), "", (CardColumn("one", "", (item,)),))
    html = render_page(page(sections=(CardSection("S", "", (card,)),)))
    assert 'class="word marked" style="--depth: 0.900">&lt;cat&gt;<small>' in html
    assert "<ins>dog</ins>" in html


def test_figures_have_sections_of_their_own():
    html = render_page(page(sections=(FigureSection("Learning <curves>", FIGURES[:2]),)))
    assert "Learning &lt;curves&gt;</h2>" in html
    assert html.count("<svg") == 2


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    write_page(page(), tmp_path / "deep" / "page.html")
    assert (tmp_path / "deep/page.html").read_text(encoding="utf-8") == render_page(page())
    broken = one_list(PageItem("a dog"), PageItem("b", score="high"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        write_page(page(sections=(CardSection("S", "", (broken,)),)), tmp_path / "deep/other.html")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["page.html"]


def test_numbers_have_wide_minus_signs():
    assert format_number(-0.5) == "−0.500"
    assert format_number(0.5, ".1f") == "0.5"
    assert format_interval(1, -1, 2, "+.1f") == "+1.0 (−1.0 to +2.0)"


# Lists on cards.

NASTY = "<script>alert('x')</script> & \"so\""


def listed(*cards: ExampleCard) -> tuple[str, list[str]]:
    """A page with cards, and the words of each item of their lists, without elements."""
    html = render_page(page(sections=(CardSection("Wrong ones", "How chosen.", cards),)))
    lists = "".join(re.findall(r'<ol class="found.*?</ol>', html, re.DOTALL))
    items = re.findall(r"<li.*?</li>", lists, re.DOTALL)
    return html, [" ".join(re.sub(r"<[^>]*>", " ", one).split()) for one in items]


def one_list(query: PageItem, *items: PageItem) -> ExampleCard:
    return ExampleCard(query, "", (CardColumn("", "", items),))


def test_captions_stand_in_order_with_scores_and_marks():
    html, (own, first, second) = listed(
        one_list(
            PageItem("photo.png", PICTURE),
            PageItem("a dog", score=0.75, true=True),
            PageItem(NASTY, place=1, score=0.5, marks=("similar words", "above positive")),
            PageItem("a cat", place=2),
        )
    )
    assert own == "a dog · true 0.75"
    assert first.startswith("1 &lt;script&gt;")
    assert first.endswith("· similar words · above positive 0.50")
    assert second == "2 a cat"
    assert html.count(f'src="{PICTURE}"') == 1
    assert "<script>alert" not in html
    assert "How chosen." in html


def test_pictures_have_words_for_readers_who_do_not_see_them():
    html, items = listed(
        one_list(
            PageItem("a dog"),
            PageItem("own.png", PICTURE, true=True),
            PageItem("wrong.png", PICTURE, place=1_234, score=-0.25, marks=("above positive",)),
        )
    )
    assert items == ["true", "1,234 · -0.25 above positive"]
    assert re.findall(r'alt="(.*?)"', html) == ["own.png", "wrong.png"]
    assert "“a dog”" in html


def test_a_query_without_items_has_an_empty_list():
    assert listed(one_list(PageItem("a dog")))[1] == []
