"""The page in a browser: captions as results, and reranking."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import recipes_cases
from browser_cases import least_contrast
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.search.index import open_index
from counterfoil.search.rerank import Reranker
from page_cases import LOOKS, READ, SHOWN, clean, drop, search, until
from serve_cases import content, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def ordered(scenes) -> Iterator[str]:
    """The address of a server with captions and a reranker."""
    recipes_cases.clip_like(scenes / "clip")
    with running(scenes / "index", "--rerank", scenes / "clip", "--depth", 12) as (where, _):
        yield where


@pytest.mark.parametrize("opened", LOOKS, indirect=True)
def test_drop_a_picture_and_read_captions_that_fit(opened, ordered, scenes):
    opened.goto(ordered)
    until(opened, "document.querySelector('#kinds').hidden === false")
    assert "put in order by clip" in opened.locator("#about").inner_text()
    photo = content(load_dataset("scenes:images=36").pictures.open(7))
    drop(opened, "new.png", "image/png", photo)
    opened.wait_for_selector("#found li")
    assert opened.locator("#found img").count() == 12
    assert "clip" not in opened.locator("#told").inner_text()  # an image is not compared with it
    opened.click("#given-captions")
    opened.wait_for_selector("#found.texts li")
    (path := scenes / "new.png").write_bytes(photo)
    with open_index(scenes / "index", rerank=Reranker(load_model(scenes / "clip"), 12)) as index:
        want = index.search_image(path, 12)
    assert opened.locator("#found .caption").all_inner_texts() == [hit.captions[0] for hit in want]
    assert "put in order by clip" in opened.locator("#told").inner_text()
    assert opened.evaluate("document.documentElement.scrollWidth") <= opened.viewport_size["width"]
    least = least_contrast(opened, READ)
    assert least[0] >= 4.5, least
    opened.locator("#found .caption").nth(2).click()
    opened.wait_for_selector(SHOWN)
    assert opened.locator("#said").text_content().startswith(want[2].captions[0].split()[0])
    assert opened.locator("#why-name").text_content() == "new.png"
    assert not opened.locator("#fitting").is_visible()
    opened.keyboard.press("Escape")
    opened.locator("#found .more").nth(2).click()
    opened.wait_for_selector("#found:not(.texts) li")
    assert opened.locator("#text").input_value() == want[2].captions[0]
    assert opened.evaluate("document.activeElement.id") == "results"
    opened.locator("#found button").first.click()
    name = opened.locator("#why-name").text_content()
    opened.click("#fitting")
    opened.wait_for_selector("#found.texts li")
    assert f"for the picture {name}" in opened.locator("#told").inner_text()
    clean(opened, ordered)


def test_kind_of_results_by_keyboard(opened, ordered):
    opened.goto(ordered)
    until(opened, "document.querySelector('#kinds').hidden === false")
    search(opened, "a red circle")
    chosen = "document.activeElement.name === 'find'"
    while not opened.evaluate(chosen):
        opened.keyboard.press("Tab")
    opened.keyboard.press("ArrowRight")  # asks the same anew
    opened.wait_for_selector("#found.texts li")
    assert "captions for “a red circle”" in opened.locator("#told").inner_text()
    tree = opened.locator("main").aria_snapshot()
    assert 'group "Find"' in tree
    assert 'radio "captions that fit" [checked]' in tree
    first = opened.locator("#found .caption").first
    caption = first.inner_text()
    first.focus()
    opened.keyboard.press("Enter")
    opened.wait_for_selector("#found:not(.texts) li")
    assert opened.locator("#text").input_value() == caption
    assert opened.locator("input[value=images]").is_checked()
    assert "put in order by clip" in opened.locator("#told").inner_text()
    clean(opened, ordered)
