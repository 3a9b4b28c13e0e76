"""The audit in a browser: keys, buttons, what is kept, and what is saved for the readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from browser_cases import elsewhere
from corpus_cases import write_picture
from counterfoil.audit import (
    AuditPage,
    AuditSection,
    Finding,
    ReviewedBounds,
    ReviewItem,
    render_audit,
)
from counterfoil.core.io import write_text
from counterfoil.data.corrections import CORRECTIONS_FILE, Correction
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.bounds import bounds
from counterfoil.report.page import PageItem, Provenance, TextPart, thumbnail

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
CAPTION = ("keep", "drop", "fix")
NASTY = "</script><b>a cat</b> & \"so\" 'on' " + "x" * 60


@pytest.fixture
def photos(tmp_path) -> Path:
    texts = {0: ["a dog", NASTY], 1: ["a cat"], 2: ["a bird"], 3: ["a bat"]}
    lines = [{"image": f"{n}.png", "captions": captions} for n, captions in texts.items()]
    for n in texts:
        write_picture(tmp_path / "photos" / f"{n}.png", seed=n)
    told = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "photos" / "captions.jsonl").write_text(told)
    return tmp_path / "photos"


@pytest.fixture
def page(tmp_path) -> Path:
    picture = thumbnail(Image.new("RGB", (300, 200), "teal"))
    shown = PageItem("0.png", picture)
    parts = (TextPart("a"), TextPart(" dog", 0.9, "90 %", True))
    leaked = tuple(
        ReviewItem(name, "", was, ("keep", "drop"), PageItem(was, picture), f"{name} · train")
        for name, was in (("1.png", "a cat"), ("2.png", "a bird"))
    )
    odd = ReviewItem(
        "", "0.png#0", "a dog", CAPTION, PageItem("a dog"), "odd", 0.5, parts, "a wolf"
    )
    nasty = ReviewItem("", "0.png#1", NASTY, CAPTION, PageItem(NASTY))
    pair = ReviewItem(
        "0.png", "3.png#0", "a bat", ("keep", "true"), PageItem("a bat"), "similar words"
    )
    mined = Finding((pair,), shown, ("a dog",))
    sections = (
        AuditSection("leaked", "Leaked images", "Note.", 1, 1, (Finding(leaked),)),
        AuditSection("suspicious", "Suspicious captions", "Note.", 9, 2, (
            Finding((odd,), shown, (NASTY,)), Finding((nasty,), shown, ("a dog",)))),
        AuditSection("false-negatives", "Negatives", "Note.", 1, 1, (mined,)),
    )  # fmt: skip
    earlier = (Correction("drop", "3.png", "", "a bat"),)
    made = AuditPage("Audit", "data", (), (), sections, earlier, "k", Provenance("audit"))
    write_text(tmp_path / "audit.html", render_audit(made))
    return tmp_path / "audit.html"


def test_somebody_decides_and_the_readers_honour_it(browser, page, photos):
    context = browser.new_context()
    sheet, wrong = context.new_page(), []
    sheet.on("pageerror", lambda error: wrong.append(str(error)))
    sheet.goto(page.as_uri())
    assert sheet.locator("b").count() == 0
    assert sheet.inner_text("#told") == "0 of 5 decided"
    sheet.keyboard.press("ArrowRight")
    sheet.keyboard.press("k")
    assert sheet.locator(".here").get_attribute("data-image") == "2.png", "goes on to the next"
    sheet.keyboard.press("d")
    sheet.keyboard.press("f")
    assert sheet.evaluate("document.activeElement.value") == "a wolf"
    sheet.keyboard.press("Escape")
    sheet.keyboard.press("f")
    sheet.keyboard.type("A <wolf>, d k.")
    sheet.keyboard.press("Enter")
    assert sheet.inner_text("#told") == "3 of 5 decided"
    sheet.reload()
    assert sheet.inner_text("#told") == "3 of 5 decided", "closing the page loses nothing"
    assert "A <wolf>, d k." in sheet.inner_text(".fixed >> nth=2")
    sheet.get_by_role("button", name="Open ones only").click()
    assert sheet.locator(".item:visible").count() == 2
    sheet.get_by_role("button", name="Open ones only").click()
    sheet.locator('[data-do="drop"]').nth(3).click()
    sheet.keyboard.press("t")
    assert sheet.inner_text("#told") == "5 of 5 decided"
    sheet.keyboard.press("u")
    sheet.keyboard.press("t")
    with sheet.expect_download() as saving:
        sheet.get_by_role("button", name="Save corrections").click()
    assert saving.value.suggested_filename == CORRECTIONS_FILE
    (photos / CORRECTIONS_FILE).write_bytes(Path(saving.value.path()).read_bytes())
    assert not wrong
    context.close()
    left = load_dataset(photos)
    assert list(left.image_ids) == ["0.png", "1.png"]
    assert list(left.texts) == ["A <wolf>, d k.", "a cat"]
    assert left.corrections.startswith(
        "2 images left out, 3 captions left out, 1 caption rewritten"
    )


def test_a_caption_that_is_true_of_another_picture_is_told_to_the_miners(browser, page, photos):
    context = browser.new_context()
    sheet = context.new_page()
    sheet.goto(page.as_uri())
    sheet.locator('[data-do="true"]').click()
    with sheet.expect_download() as saving:
        sheet.click("#save")
    lines = Path(saving.value.path()).read_text().splitlines()[1:]
    (photos / CORRECTIONS_FILE).write_text("\n".join(lines) + "\n")
    context.close()
    also = load_dataset(photos).extra_positives
    assert also is not None
    assert (also.image.tolist(), also.text.tolist()) == ([0], [4])


def test_a_reload_loses_nothing_where_the_browser_keeps_nothing_of_a_file(browser, page):
    context = browser.new_context()
    context.add_init_script("localStorage.clear()")
    sheet = context.new_page()
    sheet.goto(page.as_uri())
    sheet.keyboard.press("ArrowRight")
    sheet.keyboard.press("k")
    sheet.keyboard.press("d")
    assert sheet.inner_text("#told") == "2 of 5 decided"
    sheet.keyboard.press("ArrowLeft")
    sheet.keyboard.press("u")
    sheet.reload()
    assert sheet.inner_text("#told") == "1 of 5 decided", "what was taken back stays taken back"
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1100])
def test_the_page_fits_and_asks_for_nothing(browser, page, width, scheme):
    shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(page.as_uri())
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert elsewhere(asked, "file:") == []
    assert shown.locator("img:not([alt])").count() == 0
    shown.close()


def test_verdicts_narrow_the_bounds_as_an_evaluation_does(browser, tmp_path):
    """Each verdict changes the two queries that the pair is an answer of."""
    pairs = [
        ReviewItem(f"{n}.png", "9.png#0", "a bat", ("keep", "true"), PageItem("a bat"))
        for n in range(2)
    ]
    queries = (("1??0", 1, 20.0), ("?1", 3, 10.0), ("0?1", 2, 50.0))
    items = {pairs[0].key: [(0, 1), (1, 0)], pairs[1].key: [(0, 2), (2, 1)]}

    def ends(verdicts: tuple[str, str] | None) -> list[float]:
        told = [[list(line), known] for line, known, _ in queries]
        for pair, verdict in zip(pairs, verdicts or (), strict=bool(verdicts)):
            for query, place in items[pair.key]:
                told[query][0][place] = "1" if verdict == "true" else "0"
                told[query][1] += verdict == "true"
        total = [0.0, 0.0]
        for (line, known), (_, _, share) in zip(told, queries, strict=True):
            values = torch.tensor([[-1 if one == "?" else int(one) for one in line]])
            each = bounds(values.to(torch.int8), torch.tensor([known])).map_at_r[:, 0]
            total = [end + share * float(own) for end, own in zip(total, each, strict=True)]
        return total

    low, high = ends(None)
    section = AuditSection(
        "next", "Next", "Note.", 2, 2, (Finding(tuple(pairs)),),
        ReviewedBounds(low, high, queries, items),
    )  # fmt: skip
    made = AuditPage("Audit", "data", (), (), (section,), (), "n", Provenance("audit"))
    write_text(tmp_path / "next.html", render_audit(made))
    sheet = browser.new_page()
    sheet.goto((tmp_path / "next.html").as_uri())
    said = sheet.locator("#ends")
    assert said.inner_text() == f"mAP@R {low:.2f} to {high:.2f} %"
    for verdicts in (("true", "keep"), ("keep", "true")):
        for number, verdict in enumerate(verdicts):
            sheet.locator(".item").nth(number).locator(f'[data-do="{verdict}"]').click()
        now = ends(verdicts)
        assert said.inner_text() == f"mAP@R {now[0]:.2f} to {now[1]:.2f} %"
        assert now[1] - now[0] < high - low
    sheet.close()
