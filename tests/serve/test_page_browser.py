"""The page in a browser: search, drop, explain; keyboard, narrow and wide."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from importlib.util import find_spec
from urllib.parse import parse_qs, quote, urlsplit

import pytest

import explain_cases
import recipes_cases
from browser_cases import least_contrast
from counterfoil.cli import main
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.caption_check import CaptionCheck
from counterfoil.evaluation.explain import DOUBT_THRESHOLD, explain
from counterfoil.model import load_model
from counterfoil.search.index import open_index
from counterfoil.serve.schemas import SearchResponse, SearchResult
from page_cases import LOOKS, READ, SHOWN, clean, drop, search, until
from serve_cases import NASTY, content, indexed, names, painted, running, with_columns

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
CAPTION = "A red circle above a blue square."


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Iterator[str]:
    """The address of a server whose model has no heads for words."""
    root = indexed(tmp_path_factory.mktemp("plain"), 30)
    with running(root / "index", "--upload", "0.05") as (where, _):
        yield where


@pytest.fixture(scope="module")
def explained(scenes) -> Iterator[str]:
    """The address of a server with a model that doubts and corrects."""
    more = ("--explainer", scenes / "explainer", "--data", explain_cases.SCENES)
    with running(scenes / "index", *more) as (where, _):
        yield where


def test_the_page_says_whether_a_caption_fits(opened, tmp_path):
    index = indexed(tmp_path, 12) / "index"
    with open_index(index) as opened_index:
        known = opened_index.model.identity()
    CaptionCheck(9.0, None, (0.1, 0.25), 60, 300, "photos (dev)", known).write(index)
    with running(index) as (where, _):
        opened.goto(where)
        until(opened, "document.querySelector('#explains').textContent !== ''")
        assert "Judged by 60 photos" in opened.locator("#explains").inner_text()
        search(opened, "a red dog")
        opened.locator("#found button").first.click()
        opened.wait_for_selector(SHOWN)
        told = opened.locator("#why-told").inner_text()
        assert told.startswith("The caption does not fit the picture. Score ")
        assert "Judged by 60 photos with 300 captions of photos (dev): no score is high enough" in (
            opened.locator("#basis").inner_text()
        )
        clean(opened, where)


@pytest.mark.parametrize("opened", LOOKS, indirect=True)
def test_type_look_and_explain(opened, explained, scenes):
    opened.goto(explained)
    width = opened.viewport_size["width"]
    search(opened, CAPTION)
    assert opened.locator("#found li").count() == 24
    scores = [float(text.split()[-1]) for text in opened.locator(".label").all_text_contents()]
    assert scores == sorted(scores, reverse=True)
    until(opened, "document.querySelector('#found img').naturalWidth > 0")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert least_contrast(opened, READ) >= (4.5,)
    opened.locator("#found button").nth(1).click()
    opened.wait_for_selector(SHOWN)
    dataset = load_dataset(explain_cases.SCENES)
    model = load_model(scenes / "explainer")
    name = opened.locator("#why-name").text_content()
    (want,) = explain(model, name, [CAPTION], dataset=dataset)
    rows = opened.locator("#words tr").all_inner_texts()
    assert len(rows) == len(want.words)
    for row, word in zip(rows, want.words, strict=True):
        told, verdict, _, instead = row.split("\t")
        assert told == word.text
        assert verdict == ("doubted" if word.doubt >= DOUBT_THRESHOLD else "matches")
        assert all(one.text in instead for one in word.corrections)
    if want.corrected is not None:
        assert opened.locator("#corrected").text_content() == f"Instead: {want.corrected.text}"
    assert least_contrast(opened, READ) >= (4.5,)
    assert opened.evaluate("document.querySelector('dialog').scrollWidth") <= width
    clean(opened, explained)


def test_drop_a_picture_and_find_similar_ones(opened, plain):
    opened.goto(plain)
    drop(opened, "new <b>.png", "image/png", content(painted(5)))
    opened.wait_for_selector("#found li")
    assert opened.locator("#found li").count() == 24
    assert opened.locator("#found img").first.get_attribute("alt") == names(30)[5]
    assert opened.locator("#given-name").text_content() == "new <b>.png"
    opened.click("#given-explain")
    opened.fill("#caption", "a red dog")
    opened.press("#caption", "Enter")
    opened.wait_for_selector(SHOWN)
    verdicts = opened.locator("#words tr td:nth-child(2)").all_inner_texts()
    assert verdicts == ["unsure"] * 3
    told = opened.locator("#why-told").inner_text()
    assert told.startswith("Cannot tell whether the caption fits the picture. Score ")
    assert "were never compared" in opened.locator("#basis").inner_text()
    opened.keyboard.press("Escape")
    opened.locator("#found button").first.click()
    opened.click("#similar")
    until(opened, "document.querySelector('#told').textContent.includes('is like')")
    assert names(30)[5] not in opened.locator("#found img").evaluate_all(
        "all => all.map(i => i.alt)"
    )
    clean(opened, plain)


def test_more_like_this_and_less_like_that(opened, plain):
    def shown() -> list[str]:
        return opened.locator("#found img").evaluate_all("all => all.map(i => i.alt)")

    opened.goto(plain)
    search(opened, "a dog")
    bad, good = shown()[0], shown()[5]
    opened.locator("#found button").first.click()
    opened.click("#less")
    until(opened, "document.querySelector('#told').textContent.includes(', less like 1 picture')")
    assert bad not in shown()
    opened.locator("#found button").nth(shown().index(good)).click()
    opened.click("#more")
    until(opened, "document.querySelector('#told').textContent.includes(', more like 1 picture, ')")
    assert not {bad, good} & {*shown()}
    refined, results = opened.url, shown()
    assert parse_qs(urlsplit(refined).query) == {"text": ["a dog"], "more": [good], "less": [bad]}
    search(opened, "a red circle")
    assert "like" not in opened.locator("#told").text_content()
    opened.go_back()
    until(opened, "document.querySelector('#told').textContent.includes('more like 1')")
    assert (opened.url, shown()) == (refined, results)
    opened.go_back()  # to the first of the two examples alone
    until(opened, "!document.querySelector('#told').textContent.includes(', more')")
    until(opened, "document.querySelector('#told').textContent.includes(', less like 1')")
    opened.go_forward()
    until(opened, "document.querySelector('#told').textContent.includes('more like 1')")
    assert shown() == results
    opened.goto("about:blank")
    # a link, as somebody else wrote it
    opened.goto(f"{plain}?less={quote(bad)}&find=images&more={quote(good)}&text=a%20dog")
    until(opened, "document.querySelector('#told').textContent.includes('more like 1')")
    assert (opened.url, shown()) == (refined, results)
    clean(opened, plain)


@pytest.fixture(scope="module")
def tabled(tmp_path_factory) -> Iterator[str]:
    """The address of a server of pictures with columns."""
    root = with_columns(tmp_path_factory.mktemp("tabled"), 24)
    with running(root / "index") as (where, _):
        yield where


@pytest.mark.parametrize("opened", LOOKS, indirect=True)
def test_filters_are_chosen_shown_and_in_the_address(opened, tabled):
    def told(words: str) -> None:
        until(opened, f"document.querySelector('#told').textContent.includes({words!r})")

    opened.goto(tabled)
    until(opened, "document.querySelector('#filters').hidden === false")
    folded = opened.evaluate("!document.querySelector('#filters').open")
    assert folded == (opened.viewport_size["width"] == 400)  # results begin high on a phone
    if folded:
        opened.click("#filters summary")
    labels = [label.split("\n")[0] for label in opened.locator("#columns label").all_inner_texts()]
    assert labels == ["album", "year", "note"]
    search(opened, "a dog")
    assert opened.url == f"{tabled}?text=a+dog"
    opened.select_option("#columns select", label="sea")
    told("where album=sea")
    opened.get_by_label("year").fill(">=2013  <2040")
    opened.get_by_label("year").press("Enter")
    told("where album=sea and year>=2013 and year<2040")
    assert opened.locator("#told").inner_text().startswith("7 pictures for “a dog”")
    values = opened.locator("#found .columns").all_inner_texts()
    assert len(values) == 7
    assert all(text.startswith("sea · 20") for text in values)
    assert opened.evaluate("document.documentElement.scrollWidth") <= opened.viewport_size["width"]
    assert least_contrast(opened, f"{READ}, select, summary") >= (4.5,)
    address = opened.url
    assert parse_qs(urlsplit(address).query) == {
        "text": ["a dog"],
        "where": ["album=sea", "year>=2013", "year<2040"],
    }
    opened.locator("#found button").first.click()
    opened.wait_for_selector(SHOWN)
    assert opened.locator("#why-columns").inner_text().startswith("album: sea, year: 20")
    opened.click("#more")
    told("more like 1 picture, where album=sea")
    opened.go_back()
    told("7 pictures")
    assert opened.url == address
    opened.go_back()  # before all filters
    until(opened, "!document.querySelector('#told').textContent.includes('where')")
    assert opened.input_value("#columns select") == ""
    assert opened.get_by_label("year").input_value() == ""
    opened.goto("about:blank")
    opened.goto(f"{tabled}?text=a+dog&where=note~note+7&where=album>a")
    told("where album>a and note~note 7")
    assert opened.get_by_label("note").input_value() == "note 7"
    assert opened.locator("#columns select option:checked").inner_text() == "album>a"
    opened.select_option("#columns select", label="home")
    told("1 picture for “a dog”, where album=home and note~note 7")
    clean(opened, tabled)


@pytest.fixture(scope="module")
def dated(tmp_path_factory) -> Iterator[str]:
    """The address of a server of large pictures with the days on which they were taken."""
    root = tmp_path_factory.mktemp("dated")
    recipes_cases.pixel_model(root / "model")
    (root / "photos").mkdir()
    lines = ["image,caption,taken"]
    for row in range(8):
        (root / "photos" / f"{row}.jpg").write_bytes(content(painted(row, 1200), "jpeg"))
        lines.append(f"{row}.jpg,a dog {row},{date(2024, 2, 25) + timedelta(row)}")
    (root / "photos" / "captions.csv").write_text("\n".join(lines))
    made = ("index", root / "model", root / "photos", "--output", root / "index")
    assert main([str(word) for word in made]) == 0
    with running(root / "index") as (where, _):
        yield where


def days(opened) -> list[str]:
    return sorted(opened.locator("#found .columns").all_inner_texts())


@pytest.mark.parametrize("opened", LOOKS, indirect=True)
def test_dates_have_a_first_and_a_last_day(opened, dated):
    opened.goto(dated)
    until(opened, "document.querySelector('#filters').hidden === false")
    opened.evaluate("document.querySelector('#filters').open = true")
    search(opened, "a dog")
    assert len(days(opened)) == 8
    opened.get_by_label("taken from").fill("2024-02-27")
    until(opened, "document.querySelectorAll('#found li').length === 6")
    opened.get_by_label("taken to").fill("2024-02-29")  # the last day is within
    until(opened, "document.querySelectorAll('#found li').length === 3")
    assert days(opened) == ["2024-02-27", "2024-02-28", "2024-02-29"]
    assert parse_qs(urlsplit(opened.url).query)["where"] == [
        "taken>=2024-02-27",
        "taken<2024-03-01",
    ]
    assert opened.evaluate("document.documentElement.scrollWidth") <= opened.viewport_size["width"]
    address = opened.url
    opened.go_back()  # both dates are one step
    until(opened, "document.querySelectorAll('#found li').length === 8")
    assert opened.get_by_label("taken from").input_value() == ""
    opened.go_forward()
    until(opened, "document.querySelectorAll('#found li').length === 3")
    opened.goto("about:blank")
    opened.goto(address)
    until(opened, "document.querySelectorAll('#found li').length === 3")
    assert opened.get_by_label("taken from").input_value() == "2024-02-27"
    assert opened.get_by_label("taken to").input_value() == "2024-02-29"
    opened.get_by_label("taken from").fill("")
    until(opened, "document.querySelectorAll('#found li').length === 5")
    clean(opened, dated)


@pytest.mark.parametrize("opened", LOOKS, indirect=True)
def test_back_closes_the_full_picture_and_keeps_the_search(opened, dated):
    width = "document.querySelector('#why-picture').naturalWidth"
    opened.goto(dated)
    search(opened, "a dog")
    address, found = opened.url, opened.locator("#found").inner_html()
    opened.locator("#found button").nth(2).click()
    until(opened, f"{width} > 0")
    small = opened.evaluate(width)
    opened.click("#enlarge")
    until(opened, f"{width} === 1200")
    assert small < 500
    shown = opened.locator("#why-picture").bounding_box()
    assert shown["width"] > 0.7 * min(opened.viewport_size.values())
    assert (
        opened.evaluate("document.querySelector('dialog').scrollWidth")
        <= opened.viewport_size["width"]
    )
    opened.go_back()
    until(opened, "!document.querySelector('#why').open")
    assert (opened.url, opened.locator("#found").inner_html()) == (address, found)
    for close in ("Escape", "#close"):  # leave nothing that Back would have to pass
        opened.locator("#found button").first.click()
        until(opened, "document.querySelector('#why').open")
        opened.keyboard.press(close) if close == "Escape" else opened.click(close)
        until(opened, "history.state === null")
        assert (opened.url, opened.locator("#found").inner_html()) == (address, found)
    opened.go_back()
    until(opened, "document.querySelectorAll('#found li').length === 0")
    assert opened.url == dated
    clean(opened, dated)


@pytest.mark.parametrize("opened", [("light", 400), ("dark", 400)], indirect=True)
def test_results_begin_in_the_first_half_of_a_phone(opened, tabled):
    opened.set_viewport_size({"width": 400, "height": 800})
    top = "document.querySelector('#found li').getBoundingClientRect().top"
    opened.goto(tabled)
    search(opened, "a dog")
    assert opened.evaluate(top) < 400
    drop(opened, "new.png", "image/png", content(painted(5)))
    until(opened, "document.querySelector('#told').textContent.includes('new.png')")
    assert opened.evaluate(top) < 400
    clean(opened, tabled)


def test_an_address_with_an_unknown_column(opened, tabled):
    opened.goto(f"{tabled}?text=a+dog&where=albun%3Dsea")
    until(opened, "document.querySelector('#wrong').textContent !== ''")
    assert "did you mean 'album'" in opened.locator("#wrong").inner_text()
    search(opened, "a cat")
    assert opened.locator("#wrong").inner_text() == ""
    assert opened.url == f"{tabled}?text=a+cat"


def test_a_query_has_an_address_and_the_back_button_returns_to_it(opened, plain):
    def shown() -> list[str]:
        until(opened, "document.querySelector('#told').textContent.includes('for')")
        return opened.locator("#found img").evaluate_all("all => all.map(i => i.dataset.of)")

    opened.goto(plain)
    search(opened, "a red dog & cat")
    first, address = shown(), opened.url
    assert address == f"{plain}?text=a+red+dog+%26+cat"
    search(opened, "a blue square")
    second = shown()
    opened.locator("#found button").first.click()
    opened.click("#similar")
    until(opened, "document.querySelector('#told').textContent.includes('is like')")
    assert opened.url.startswith(f"{plain}?id=")
    drop(opened, "new.png", "image/png", content(painted(5)))
    until(opened, "document.querySelector('#told').textContent.includes('new.png')")
    assert opened.url == plain  # a visitor's picture has no address
    opened.go_back()
    until(opened, "document.querySelector('#told').textContent.includes('is like')")
    opened.go_back()
    until(opened, "document.querySelector('#told').textContent.includes('blue')")
    assert (opened.input_value("#text"), shown()) == ("a blue square", second)
    opened.go_back()
    until(opened, "document.querySelector('#told').textContent.includes('red dog')")
    assert shown() == first
    opened.go_back()  # to the page before any query
    until(opened, "document.querySelectorAll('#found li').length === 0")
    assert opened.input_value("#text") == ""
    opened.goto(f"{address}&find=captions")
    until(opened, "document.querySelector('#told').textContent.includes('red dog')")
    assert opened.input_value("#text") == "a red dog & cat"
    clean(opened, plain)


@pytest.mark.parametrize(("probability", "told"), [(0.12, True), (0.8, False), (None, False)])
def test_the_page_says_that_nothing_matches(opened, plain, probability, told):
    one = SearchResult(id="a.png", score=0.1, caption="a dog", image="a.png")
    results = (one.model_copy(update={"probability": probability}),)
    answer = SearchResponse(find="images", reranker=None, note=None, results=results)
    opened.goto(plain)
    opened.route("**/search", lambda route: route.fulfill(json=answer.model_dump()))
    opened.fill("#text", "a cat")
    opened.press("#text", "Enter")
    opened.wait_for_selector("#found li")
    text = opened.locator("#told").inner_text()
    assert ("Nothing here matches: the best has a probability of 12 %." in text) == told
    assert opened.locator("#found .name").all_inner_texts() == ["a dog", "a.png"]


def test_the_page_says_what_verdicts_rest_on(opened, plain):
    opened.goto(plain)
    until(opened, "document.querySelector('#explains').textContent !== ''")
    assert "were never compared" in opened.locator("#explains").inner_text()


def test_dropped_file_that_is_no_picture(opened, plain):
    opened.goto(plain)
    until(opened, "document.querySelector('#explains').textContent !== ''")
    drop(opened, "a.svg", "image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    until(opened, "document.querySelector('#wrong').textContent !== ''")
    assert "no picture that can be read" in opened.locator("#wrong").inner_text()
    drop(opened, "phone.heic", "image/heic", b"\0\0\0\x18ftypheic" + bytes(5000))
    heic = (
        "damaged"
        if find_spec("pillow_heif")
        else "is HEIC, which this server reads with pip install"
    )
    until(opened, f"document.querySelector('#wrong').textContent.includes({heic!r})")
    assert not opened.locator("#given").is_visible()
    drop(opened, "large.png", "image/png", bytes(60_000))
    assert "at most 0.1 are accepted" in opened.locator("#wrong").inner_text()
    search(opened, "a dog")
    assert opened.locator("#wrong").inner_text() == ""
    assert opened.locator("#found li").count() == 24


def test_captions_are_text_and_never_markup(opened, plain):
    opened.goto(plain)
    search(opened, NASTY)
    assert opened.locator(f'#found img[alt="{names(30)[0]}"]').count() <= 1
    assert opened.locator("#found img[src=x]").count() == 0
    assert opened.locator("#told img").count() == 0
    opened.locator("#found button").first.click()
    opened.wait_for_selector(SHOWN)
    assert opened.locator("#said").text_content().startswith("<img")
    assert opened.locator("#said img").count() == 0
    assert opened.locator("#found img").count() == opened.locator("#found li").count()


def test_keyboard_only(opened, explained):
    opened.goto(explained)
    until(opened, "document.activeElement.id === 'text'")
    opened.keyboard.type("A red circle.")
    opened.keyboard.press("Enter")
    opened.wait_for_selector("#found li")
    for wanted in ("BUTTON", "INPUT", "BUTTON"):  # search, the file, the first picture
        opened.keyboard.press("Tab")
        while opened.evaluate("document.activeElement.tagName") != wanted:
            opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.closest('li') !== null")
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert opened.evaluate(ring) == "solid"
    opened.keyboard.press("Enter")
    opened.wait_for_selector(SHOWN)
    assert opened.evaluate("document.activeElement.id") == "caption"
    assert "Score" in opened.locator("#why-told").inner_text()
    opened.keyboard.press("Escape")
    assert not opened.locator("#why").is_visible()
    assert opened.evaluate("document.activeElement.closest('li') !== null")


def test_a_screen_reader_has_a_name_for_everything(opened, explained):
    opened.goto(explained)
    search(opened, "A red circle.")
    opened.locator("#found button").first.click()
    opened.wait_for_selector(SHOWN)
    nameless = """() => [...document.querySelectorAll('button, input, img, section, dialog, form')]
      .filter(one => !(one.ariaLabel || one.alt || one.textContent.trim() || one.labels?.length
        || one.getAttribute('aria-labelledby'))).map(one => one.outerHTML.slice(0, 80))"""
    assert opened.evaluate(nameless) == []
    tree = opened.locator("#why").aria_snapshot()
    assert 'textbox "Caption to check against this picture"' in tree
    assert "table" in tree


def test_a_key_is_asked_for(opened, tmp_path):
    root = indexed(tmp_path, 4)
    with running(root / "index", "--key", "open sesame") as (where, _):
        opened.goto(where)
        opened.wait_for_selector("#key-line:not([hidden])")
        opened.fill("#text", "a dog")
        opened.fill("#key", "wrong")
        opened.press("#key", "Enter")
        until(opened, "document.querySelector('#wrong').textContent.includes('wrong')")
        opened.fill("#key", "open sesame")
        opened.press("#key", "Enter")
        opened.wait_for_selector("#found li")
        until(opened, "document.querySelector('#found img').naturalWidth > 0")
        assert opened.locator("#found img").first.get_attribute("src").startswith("blob:")
        opened.wait_for_selector("#key-line", state="hidden")


def test_stale_request_is_aborted_and_not_shown(opened, plain):
    held, failed = [], []
    opened.on("requestfailed", lambda request: failed.append(request.url))
    opened.goto(plain)
    drop(opened, "new.png", "image/png", content(painted(5)))
    opened.wait_for_selector("#found li")
    opened.route("**/explain", lambda route: held.append(route))
    opened.click("#given-explain")
    opened.fill("#caption", "a red dog")
    opened.press("#caption", "Enter")
    until(opened, "document.querySelector('#why-told').textContent === 'Reading…'")
    opened.keyboard.press("Escape")
    while not failed:
        opened.wait_for_timeout(20)
    assert failed == [f"{plain}explain"]
    opened.unroute("**/explain")
    opened.click("#given-explain")
    assert opened.locator("#why-told").text_content() == ""
    assert not opened.locator("#answer").is_visible()
    opened.fill("#caption", "a dog")
    opened.press("#caption", "Enter")
    opened.wait_for_selector(SHOWN)
    assert opened.locator("#words tr").count() == 2
    clean(opened, plain)


def test_late_picture_does_not_replace_a_newer_one(opened, tmp_path):
    root, held = indexed(tmp_path, 4), []

    def first_held(route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    with running(root / "index", "--key", "k") as (where, _):
        opened.goto(where)
        opened.wait_for_selector("#key-line:not([hidden])")
        opened.fill("#key", "k")
        search(opened, "a dog")
        until(opened, "[...document.images].filter(one => one.naturalWidth).length === 4")
        opened.route("**/picture*", first_held)
        opened.locator("#found button").nth(0).click()
        until(opened, "document.querySelector('#why').open")
        while not held:
            opened.wait_for_timeout(20)
        opened.keyboard.press("Escape")
        opened.locator("#found button").nth(1).click()
        shown = "document.querySelector('#why-picture')"
        until(opened, f"{shown}.naturalWidth > 0")
        second = opened.evaluate(f"{shown}.src")
        with opened.expect_response("**/picture*"):
            held[0].continue_()
        opened.wait_for_timeout(300)  # time to show the wrong one
        assert opened.evaluate(f"{shown}.src") == second
