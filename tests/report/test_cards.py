"""The page about lists: what is shown, what is marked, and that none of it is markup."""

from __future__ import annotations

import re

import pytest

from counterfoil.report.page import CardColumn, CardSection, ExampleCard, Page, PageItem, write_page

PICTURE = "data:image/png;base64,AA=="
NASTY = "<script>alert('x')</script> & \"so\""


def card(query: PageItem, *items: PageItem) -> ExampleCard:
    return ExampleCard(query, "", (CardColumn("", "", items),))


OF_IMAGE = card(
    PageItem("photo.png", PICTURE),
    PageItem("a dog", score=0.75, true=True),
    PageItem(NASTY, place=1, score=0.5, marks=("similar words", "above positive")),
    PageItem("a cat", place=2),
)
OF_TEXT = card(
    PageItem("a dog"),
    PageItem("own.png", PICTURE, true=True),
    PageItem("wrong.png", PICTURE, place=1_234, score=-0.25, marks=("above positive",)),
)


def written(path, *cards: ExampleCard) -> str:
    sections = (CardSection("Wrong ones", "How chosen.", cards),)
    write_page(Page(f"Lists {NASTY}", "", "What was looked at", sections=sections), path)
    return path.read_text(encoding="utf-8")


def items(text: str) -> list[str]:
    """What is said by each item of the lists, without elements."""
    lists = "".join(re.findall(r'<ol class="found.*?</ol>', text, re.DOTALL))
    found = re.findall(r"<li.*?</li>", lists, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", one).split()) for one in found]


def test_captions_stand_in_order_with_scores_and_marks(tmp_path):
    text = written(tmp_path / "page.html", OF_IMAGE)
    own, first, second = items(text)
    assert own == "a dog · true 0.75"
    assert first.startswith("1 &lt;script&gt;")
    assert first.endswith("· similar words · above positive 0.50")
    assert second == "2 a cat"
    assert text.count(f'src="{PICTURE}"') == 1


def test_pictures_have_words_for_readers_who_do_not_see_them(tmp_path):
    text = written(tmp_path / "page.html", OF_TEXT)
    assert items(text) == ["true", "1,234 · -0.25 above positive"]
    assert re.findall(r'alt="(.*?)"', text) == ["own.png", "wrong.png"]
    assert "“a dog”" in text


@pytest.mark.parametrize("example", [OF_IMAGE, OF_TEXT])
def test_nothing_is_markup_and_nothing_is_fetched(example, tmp_path):
    text = written(tmp_path / "page.html", example)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "How chosen." in text


def test_a_query_without_items_has_an_empty_list(tmp_path):
    assert items(written(tmp_path / "empty.html", card(PageItem("a dog")))) == []


def test_a_page_that_fails_leaves_none(tmp_path):
    broken = card(PageItem("a dog"), PageItem("b", score="high"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        written(tmp_path / "page.html", broken)
    assert list(tmp_path.iterdir()) == []
