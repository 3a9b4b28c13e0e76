"""The page of explained captions, as text and as elements."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from counterfoil.evaluation.explain import (
    CorrectedCaption,
    ExplainedWord,
    Explanation,
    WordCorrection,
)
from counterfoil.evaluation.explanation_page import (
    ExplainedCard,
    headline,
    percent,
    render_explanations,
    signed,
    tints,
)
from counterfoil.evaluation.similarity_maps import SimilarityMaps, WordMap
from counterfoil.report.page import PageItem, Provenance

PICTURE = "data:image/png;base64,AA=="
NEW = (WordCorrection("blue & <b>", 0.61), WordCorrection("green", 0.004))
FOUND = Explanation(
    'A "red" <i>.',
    0.125,
    (
        ExplainedWord("A", 0, 1, doubt=0.02),
        ExplainedWord("red", 3, 6, doubt=0.93, kept=0.01, corrections=NEW),
        ExplainedWord("<i>", 8, 11, doubt=0.25),
    ),
    CorrectedCaption('A "blue" <i>.', 0.875, ((3, 7),)),
)
GAINS = Explanation(
    "b c d",
    0.5,
    (
        ExplainedWord("b", 0, 1, gain=0.2),
        ExplainedWord("c", 2, 3, gain=-0.3),
        ExplainedWord("d", 4, 5, gain=0.1),
    ),
)


def card(found=FOUND, picture=PICTURE, place=0):
    return ExplainedCard(PageItem("<image>", picture), found, 0.5, place)


def page(*cards):
    return render_explanations(
        cards,
        title="<title>",
        headline="A <headline>.",
        protocol="protocol",
        provenance=Provenance("run"),
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
    text = spoken(page(card()))
    assert 'A (2 % doubt) "red 93 % doubt" <i> (25 % doubt).' in text
    assert 'Corrected A "blue" <i>.' in text
    assert "red 93 % blue & <b> 61 %, green < 1 %" in text
    assert "Cannot tell · score 0.125 · <image>" in text
    assert "Score 0.875" in text


def test_everything_is_escaped_and_nothing_is_fetched():
    text = page(card())
    assert "<i>" not in text
    assert "<b>" not in text
    assert "&lt;title&gt;" in text
    assert 'alt="&lt;image&gt;"' in text
    assert "http" not in text.replace("http-equiv", "")
    assert text.count("<ins>") == 1


def test_several_captions_fold_their_tables():
    text = page(card(place=1), card(picture=None, place=2))
    assert text.count("<details>") == 2
    assert text.count("<img") == 1
    assert 'aria-label="2: &lt;image&gt;"' in text
    assert "<details>" not in page(card())


def test_no_captions_at_all():
    assert "A &lt;headline&gt;." in page()


def test_gains_are_coloured_by_the_greatest():
    assert tints(GAINS) == pytest.approx([1.0, 0.0, 0.5])
    assert tints(FOUND) == [0.02, 0.93, 0.25]
    assert [row[1] for row in card(GAINS).rows] == ["+0.200", "−0.300", "+0.100"]
    assert card(GAINS).new == ()


def test_without_a_doubt_head_nothing_is_claimed_and_no_function_word_is_named():
    words = (("a", 0.002), ("dog", -0.03), ("in", 0.003), ("the", 0.004), ("snow", -0.01))
    caption = " ".join(text for text, _ in words)
    starts = [caption.index(f"{text}") for text, _ in words]
    explained = Explanation(
        caption,
        0.25,
        tuple(
            ExplainedWord(text, start, start + len(text), gain=gain)
            for (text, gain), start in zip(words, starts, strict=True)
        ),
    )
    told = headline(explained, 0.5)
    assert told == "Cannot tell whether the caption fits the picture. Score 0.250."
    assert tints(explained) == [0.0] * 5  # "the" gains most, and is no content word
    only = Explanation("the", 0.25, (ExplainedWord("the", 0, 3, gain=0.004),))
    assert headline(only, 0.5) == told
    sure = replace(explained, verdict="does not fit")
    assert headline(sure, 0.5) == "The caption does not fit the picture. Score 0.250."


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
    assert "too long: the model reads it up to “A”" in spoken(page(card(cut)))


BOXES = ((0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0))
MAPPED = replace(
    GAINS,
    maps=SimilarityMaps(
        "similarity",
        (WordMap("b", 0, 1, (0.5, -0.25)), WordMap("d", 4, 5, (0.1, 0.2))),
        BOXES,
        (1, 2),
    ),
)


def attribute(text: str, name: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(f'{name}="([^"]*)"', text)]


def test_words_show_their_maps_on_the_picture():
    text = page(card(MAPPED))
    assert attribute(text, "data-levels") == ["99 0", "0 99"]  # "c" has no map
    assert attribute(text, "data-told")[0] == (
        "“b”: most similarity left, row 1, column 1 (0.500), least -0.250"
    )
    assert '<rect x="500" y="0" width="500" height="1000"/>' in text
    assert "Point at a word, or choose it, to see its map on the picture." in text
    assert "no proof that the word is seen there" in text
    assert attribute(text, "<svg class") == ["map"]
    assert "left, row 1, column 1 (0.500)" in spoken(text)
    assert "".join(part.text for part in card(MAPPED).parts) == GAINS.caption


def test_attention_is_told_in_percent_and_begins_at_0():
    maps = SimilarityMaps("attention", (WordMap("b", 0, 1, (0.2, 0.8)),), BOXES)
    text = page(card(replace(GAINS, maps=maps)))
    assert attribute(text, "data-levels") == ["25 99"]
    assert attribute(text, "data-told") == ["“b”: most attention right, region 2 (80\u00a0%)"]
    assert '<svg class="map regions"' in text


def test_without_boxes_or_a_picture_the_regions_are_numbered():
    bare = replace(MAPPED.maps, boxes=None, grid=None)
    for text in (page(card(replace(MAPPED, maps=bare))), page(card(MAPPED, picture=None))):
        assert "<svg" not in text
        assert "Point at a word, or choose it, to see its best place." in text
        assert len(attribute(text, "data-told")) == 2
    text = page(card(replace(MAPPED, maps=bare)))
    assert "region 1 (0.500)" in spoken(text)
    assert "the data have no boxes" in spoken(text)


def test_a_caption_of_one_word_has_a_map():
    maps = SimilarityMaps("similarity", (WordMap("dog", 0, 3, (0.5, 0.5)),), BOXES)
    shown = card(Explanation("dog.", 0.5, (), maps=maps))
    assert [part.text for part in shown.parts] == ["dog", "."]
    assert [row[0] for row in shown.rows] == ["dog"]
    assert attribute(page(shown), "data-levels") == ["0 0"]


def test_a_page_without_maps_says_why_and_has_no_script():
    text = render_explanations(
        [card(GAINS)],
        title="a",
        headline="b",
        protocol="c",
        provenance=Provenance("run"),
        no_maps="<none> has maps",
    )
    assert '<p class="quiet">&lt;none&gt; has maps</p>' in text
    assert "<script" not in text
    assert "button" not in text
