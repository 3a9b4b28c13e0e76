"""The page of explained captions, as text and as elements."""

from __future__ import annotations

import html
import re

import pytest

from counterfoil.evaluate.explain_page import (
    BY_DOUBT,
    ExplainedCard,
    ExplainPage,
    depths,
    percent,
    render,
    signed,
)
from counterfoil.evaluate.explanation import Corrected, Correction, Explanation, Word
from counterfoil.report.page import PageItem, Provenance

PICTURE = "data:image/png;base64,AA=="
NEW = (Correction("blue & <b>", 0.61), Correction("green", 0.004))
FOUND = Explanation(
    'A "red" <i>.',
    0.125,
    (
        Word("A", 0, 1, doubt=0.02),
        Word("red", 3, 6, doubt=0.93, kept=0.01, corrections=NEW),
        Word("<i>", 8, 11, doubt=0.25),
    ),
    Corrected('A "blue" <i>.', 0.875, ((3, 7),)),
)
GAINS = Explanation(
    "b c d", 0.5, (Word("b", 0, 1, gain=0.2), Word("c", 2, 3, gain=-0.3), Word("d", 4, 5, gain=0.1))
)


def card(found=FOUND, picture=PICTURE, place=0):
    return ExplainedCard(PageItem("<image>", picture), found, 0.5, place)


def page(*cards):
    return ExplainPage(
        "<title>", "A <headline>.", "protocol", BY_DOUBT, "doubt", cards, Provenance("run")
    )


def spoken(text: str) -> str:
    """What is read aloud: all text, without elements."""
    body = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    body = re.sub(r"</t[hd]>", " ", body)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", body)).split())


def test_a_caption_is_the_sum_of_its_parts():
    assert "".join(part.text for part in card().parts) == FOUND.caption
    assert [part.text for part in card().parts if part.tint is not None] == ["A", "red", "<i>"]
    assert [part.marked for part in card().parts if part.tint is not None] == [False, True, False]
    assert "".join(text for text, _ in card().new) == FOUND.corrected.text
    assert [text for text, new in card().new if new] == ["blue"]


def test_numbers_are_told_to_those_who_see_no_colour():
    text = spoken(render(page(card())))
    assert 'A (2 % doubt) "red 93 % doubt" <i> (25 % doubt).' in text
    assert 'Corrected A "blue" <i>.' in text
    assert "red 93 % blue & <b> 61 %, green < 1 %" in text
    assert "Score 0.125 · <image>" in text
    assert "Score 0.875" in text


def test_everything_is_escaped_and_nothing_is_fetched():
    text = render(page(card()))
    assert "<i>" not in text
    assert "<b>" not in text
    assert "&lt;title&gt;" in text
    assert 'alt="&lt;image&gt;"' in text
    assert "http" not in text
    assert text.count("<ins>") == 1


def test_several_captions_fold_their_tables():
    text = render(page(card(place=1), card(picture=None, place=2)))
    assert text.count("<details>") == 2
    assert text.count("<img") == 1
    assert 'aria-label="2: &lt;image&gt;"' in text
    assert "<details>" not in render(page(card()))


def test_no_captions_at_all():
    assert "A &lt;headline&gt;." in render(page())


def test_gains_are_coloured_by_the_greatest():
    assert depths(GAINS) == pytest.approx([1.0, 0.0, 0.5])
    assert depths(FOUND) == [0.02, 0.93, 0.25]
    assert [row[1] for row in card(GAINS).rows] == ["+0.200", "−0.300", "+0.100"]
    assert card(GAINS).new == ()


def test_numbers_are_rounded_honestly():
    assert [percent(p) for p in (0, 0.0001, 0.5, 0.9999, 1)] == [
        "0 %",
        "< 1 %",
        "50 %",
        "> 99 %",
        "100 %",
    ]
    assert [signed(g) for g in (0.0004, -0.0004, 0.0006)] == ["0.000", "0.000", "+0.001"]


def test_where_the_model_stopped_reading():
    cut = Explanation("A red dog", 0.5, FOUND.words[:1], unread=1)
    assert "too long: the model reads it up to “A”" in spoken(render(page(card(cut))))
