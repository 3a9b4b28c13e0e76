"""The sheet in a browser: what keys and buttons do, and what it saves."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from counterfoil.evaluate.gallery import thumbnail
from counterfoil.evaluate.judge_page import Question, judge_page

SENTENCES = ('A dog </script><b>runs</b> & "jumps".', "Zwei Hunde – größer.", "A cat.")


def questions() -> list[Question]:
    picture = thumbnail(Image.new("RGB", (40, 30), (200, 30, 30)))
    return [Question(f"s{n}", picture, text) for n, text in enumerate(SENTENCES, 1)]


def page() -> str:
    return judge_page("s0123", 2, questions(), "annotator-2.csv")


def test_the_page_needs_nothing_else_and_holds_what_is_asked():
    text = page()
    told = text.split('type="application/json">')[1].split("</script>")[0]
    plain = json.loads(told)
    assert [item["sentence"] for item in plain["items"]] == list(SENTENCES)
    assert plain["sheet"] == "s0123"
    assert plain["annotator"] == 2
    assert "http" not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert "annotator-2.csv" in text


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_somebody_judges(browser, tmp_path, scheme):
    path = tmp_path / "annotator-2.html"
    path.write_text(page(), encoding="utf-8")
    context = browser.new_context(color_scheme=scheme)
    sheet = context.new_page()
    errors: list[str] = []
    sheet.on("pageerror", lambda error: errors.append(str(error)))
    sheet.goto(path.as_uri())
    assert sheet.inner_text("#sentence") == SENTENCES[0]
    assert sheet.locator("b").count() == 0
    assert sheet.evaluate("document.getElementById('picture').naturalWidth") == 40
    sheet.keyboard.press("f")
    assert sheet.inner_text("#sentence") == SENTENCES[1]
    sheet.get_by_role("button", name="Unsure").click()
    assert sheet.inner_text("#place") == "3 of 3"
    sheet.keyboard.press("ArrowLeft")
    assert sheet.get_attribute("[data-answer=unsure]", "aria-pressed") == "true"
    sheet.keyboard.press("T")
    assert sheet.inner_text("#told") == "2 of 3 answered."
    sheet.keyboard.press("Control+f")
    sheet.reload()
    assert sheet.inner_text("#place") == "3 of 3", "goes on where it was left"
    sheet.locator("[data-answer=false]").focus()
    sheet.keyboard.press("Enter")
    assert "Please save" in sheet.inner_text("#told")
    with sheet.expect_download() as saving:
        sheet.click("#json")
    plain = json.loads(Path(saving.value.path()).read_text())
    wanted = {"s1": "false", "s2": "true", "s3": "false"}
    assert plain == {"sheet": "s0123", "annotator": 2, "answers": wanted}
    assert saving.value.suggested_filename == "answers-2.json"
    with sheet.expect_download() as saving:
        sheet.click("#csv")
    rows = list(csv.DictReader(Path(saving.value.path()).read_text().splitlines()))
    assert {row["item"]: row["answer"] for row in rows} == wanted
    assert {(row["sheet"], row["annotator"]) for row in rows} == {("s0123", "2")}
    assert not errors
    context.close()


@pytest.mark.slow
def test_a_reload_goes_on_where_the_browser_keeps_nothing_of_a_file(browser, tmp_path):
    path = tmp_path / "annotator-2.html"
    path.write_text(page(), encoding="utf-8")
    context = browser.new_context()
    context.add_init_script("localStorage.clear()")
    sheet = context.new_page()
    sheet.goto(path.as_uri())
    sheet.keyboard.press("f")
    sheet.keyboard.press("t")
    sheet.keyboard.press("ArrowLeft")
    sheet.keyboard.press("u")
    sheet.reload()
    assert sheet.inner_text("#place") == "3 of 3"
    sheet.keyboard.press("ArrowLeft")
    assert sheet.get_attribute("[data-answer=unsure]", "aria-pressed") == "true"
    context.close()


@pytest.mark.slow
def test_another_window_goes_on_with_what_was_answered_last(browser, tmp_path):
    path = tmp_path / "annotator-2.html"
    path.write_text(page(), encoding="utf-8")
    context = browser.new_context()
    first = context.new_page()
    first.goto(path.as_uri())
    first.keyboard.press("f")
    other = context.new_page()
    other.goto(path.as_uri())
    other.keyboard.press("ArrowLeft")
    other.keyboard.press("t")
    first.reload()
    first.keyboard.press("ArrowLeft")
    assert first.get_attribute("[data-answer=true]", "aria-pressed") == "true"
    context.close()
