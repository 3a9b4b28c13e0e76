"""The page of explained captions in a browser: readable, narrow and wide, light and dark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from browser_cases import elsewhere, least_contrast
from counterfoil.core.io import write_text
from counterfoil.evaluation.explain import (
    CorrectedCaption,
    ExplainedWord,
    Explanation,
    WordCorrection,
)
from counterfoil.evaluation.explanation_page import ExplainedCard, render_explanations
from counterfoil.evaluation.similarity_maps import SimilarityMaps, WordMap
from counterfoil.report.page import PageItem, Provenance, thumbnail

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
TEXT = "A red_circle_of_unusual_length_for_a_word_" + "x" * 40 + " above a square."
STOP = TEXT.index(" above")
FOUND = Explanation(
    TEXT,
    0.125,
    (
        ExplainedWord("A", 0, 1, doubt=0.02),
        ExplainedWord(
            TEXT[2:STOP], 2, STOP, doubt=0.93, corrections=(WordCorrection("circle", 0.61),)
        ),
        ExplainedWord(
            "above", STOP + 1, STOP + 6, doubt=1.0, corrections=(WordCorrection("below", 0.2),)
        ),
    ),
    CorrectedCaption("A circle below a square.", 0.875, ((2, 8), (9, 14))),
)
DEPTHS = """all => all.map(one =>
  parseFloat(getComputedStyle(one).backgroundColor.match(/[\\d.]+/g)[3] ?? 1))"""


@pytest.fixture(scope="module", params=[1, 3])
def page(request, tmp_path_factory) -> Path:
    picture = thumbnail(Image.new("RGB", (300, 200), "teal"))
    cards = tuple(
        ExplainedCard(PageItem(f"image {n}", picture if n < 3 else None), FOUND, 0.5, n)
        for n in range(1, request.param + 1)
    )
    path = tmp_path_factory.mktemp("page") / "page.html"
    page = render_explanations(
        cards,
        title="Title",
        headline="Headline.",
        protocol="models",
        provenance=Provenance("run"),
    )
    write_text(path, page)
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1100])
def test_the_page_is_readable(browser, page, width, scheme):
    shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked, wrong = [], []
    shown.on("request", lambda request: asked.append(request.url))
    shown.on("console", lambda message: wrong.append(message.text))
    shown.goto(page.as_uri())
    shown.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert least_contrast(shown, ".word, ins, .quiet, td, small") >= (4.5,)
    assert elsewhere(asked, "file:") == []
    assert wrong == []
    first = shown.locator(".said").first
    assert "above\u202f100\u00a0% doubt" in first.text_content()
    assert "A (2 % doubt)" in first.text_content()
    assert shown.locator("ins").first.evaluate("n => getComputedStyle(n).textDecorationLine") == (
        "underline"
    )
    depths = shown.eval_on_selector_all(".word", DEPTHS)[:3]
    assert depths == sorted(depths)
    assert depths[0] < depths[2]
    shown.close()


def test_the_tables_open_by_keyboard(browser, page):
    shown = browser.new_page()
    shown.goto(page.as_uri())
    folded = shown.locator("details")
    if folded.count():
        assert not shown.locator("td").first.is_visible()
        shown.locator("summary").first.focus()
        shown.keyboard.press("Enter")
    assert shown.locator("td").first.is_visible()
    shown.close()


QUARTERS = tuple((x / 2, y / 2, x / 2 + 0.5, y / 2 + 0.5) for y in (0, 1) for x in (0, 1))
WORDS = (
    WordMap("A", 0, 1, (0.1, 0.2, 0.4, 0.3)),
    WordMap("above", STOP + 1, STOP + 6, (1, 0, 0, 0)),
)


@pytest.fixture(params=["patches", "regions"])
def mapped(request, tmp_path) -> tuple[Path, bool]:
    grid = (2, 2) if request.param == "patches" else None
    found = replace(FOUND, maps=SimilarityMaps("similarity", WORDS, QUARTERS, grid))
    seen = PageItem("image", thumbnail(Image.new("RGB", (300, 200), "teal")))
    cards = [ExplainedCard(seen, found, 0.5, place) for place in (1, 2)]
    page = render_explanations(
        cards, title="Title", headline="H.", protocol="p", provenance=Provenance("run")
    )
    write_text(tmp_path / "page.html", page)
    return tmp_path / "page.html", grid is not None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1100])
def test_a_chosen_word_shows_its_map(browser, mapped, width, scheme):
    path, patches = mapped
    shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong = []
    shown.on("console", lambda message: wrong.append(message.text))
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.goto(path.as_uri())
    card, other = shown.locator(".explained").all()
    first, above = card.locator("button.word").all()
    rects = card.locator("rect")
    assert not rects.first.is_visible()
    first.hover()
    assert rects.first.is_visible()
    assert "bottom left, row 2, column 1" in card.locator(".told").text_content() or not patches
    assert rects.nth(2).get_attribute("class") == "best"
    shown.mouse.move(0, 0)
    assert not rects.first.is_visible()
    above.focus()
    shown.keyboard.press("Enter")
    assert above.get_attribute("aria-pressed") == "true"
    assert [one.get_attribute("class") or "" for one in rects.all()] == ["best", "", "", ""]
    named = "fill" if patches else "strokeOpacity"
    styles = rects.evaluate_all(f"all => all.map(one => one.style.{named})")
    assert len(set(styles)) == 2  # one is highest, the others are equal
    assert not other.locator("rect").first.is_visible()
    picture, drawn = card.locator(".seen img").bounding_box(), card.locator("svg").bounding_box()
    assert drawn == pytest.approx(picture, abs=1)
    assert picture["width"] / picture["height"] == pytest.approx(1.5, abs=0.02)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert least_contrast(shown, ".word, .told, .quiet") >= (4.5,)
    shown.keyboard.press("Enter")
    assert not rects.first.is_visible()
    assert wrong == []
    shown.close()
