"""Explanations in a terminal: what they say without colours, and which colours they have."""

from __future__ import annotations

import pytest

from counterfoil.cli.explain import print_caption, print_ranking, styled_caption, styled_correction
from counterfoil.evaluation.explain import (
    CorrectedCaption,
    ExplainedWord,
    Explanation,
    WordCorrection,
)
from counterfoil.evaluation.explanation_page import ExplainedCard
from counterfoil.pipelines import plan
from counterfoil.report.page import PageItem

FOUND = Explanation(
    "A [red] dog runs.",
    0.125,
    (
        ExplainedWord("A", 0, 1, doubt=0.02),
        ExplainedWord("red", 3, 6, doubt=0.93, corrections=(WordCorrection("[blue]", 0.61),)),
        ExplainedWord("dog", 8, 11, doubt=0.5),
        ExplainedWord("runs", 12, 16, doubt=0.25),
    ),
    CorrectedCaption("A [blue] dog runs.", 0.875, ((2, 8),)),
)
GAINS = Explanation(
    "b c d",
    0.5,
    (
        ExplainedWord("b", 0, 1, gain=-0.2),
        ExplainedWord("c", 2, 3, gain=-0.3),
        ExplainedWord("d", 4, 5, gain=-0.1),
    ),
)


def card(found: Explanation = FOUND, place: int = 0) -> ExplainedCard:
    return ExplainedCard(PageItem(f"[b]image {place}"), found, 0.5, place)


@pytest.fixture
def told(monkeypatch, capsys):
    """What is printed, line by line, without blanks at the ends."""
    monkeypatch.setattr(plan.console, "_width", 120)

    def told(print_it, *words: object) -> list[str]:
        print_it(*words)
        return [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]

    return told


def test_doubted_words_bear_their_doubt():
    text = styled_caption(card())
    assert text.plain == "A [red [93 %]] dog [50 %] runs."
    tints = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert {word: tints[word] for word in ("red", "dog", "runs")} == {
        "red": "bold red",
        "dog": "red",
        "runs": "yellow",
    }
    assert "A" not in tints


def test_new_words_stand_between_signs():
    assert styled_correction(card()).plain == "A _[blue]_ dog runs."
    assert styled_correction(card(GAINS)).plain == ""


def test_one_caption_is_told_word_by_word(told):
    lines = told(print_caption, card())
    assert lines[0] == "A [red [93 %]] dog [50 %] runs."
    assert lines[1] == "score 0.125, [b]image 0"
    assert lines[2].split() == ["word", "doubt", "instead"]
    rows = [line.split(maxsplit=3) for line in lines[4:8]]
    assert rows == [
        ["A", "2", "%"],
        ["red", "93", "%", "[blue] 61 %"],
        ["dog", "50", "%"],
        ["runs", "25", "%"],
    ]
    assert lines[-2:] == ["corrected: A _[blue]_ dog runs.", "score 0.875"]


def test_gains_have_no_column_of_other_words(told):
    lines = told(print_caption, card(GAINS))
    assert lines[2].split() == ["word", "gain", "without", "it"]
    assert [line.split() for line in lines[4:]] == [
        ["b", "−0.200"],
        ["c", "−0.300"],
        ["d", "−0.100"],
    ]


def test_the_most_suspicious_are_ranked_with_their_worst_word(told):
    lines = told(print_ranking, [card(place=1), card(GAINS, place=2)])
    assert lines[0].split() == ["image", "score", "doubt", "caption"]
    first, correction, second = lines[2:]
    assert " ".join(first.split()) == "1 [b]image 1 0.125 93 % A [red [93 %]] dog [50 %] runs."
    assert correction == "→ A _[blue]_ dog runs."
    assert second.split() == ["2", "[b]image", "2", "0.500", "−0.100", "b", "c", "d"]


def test_a_caption_without_words_has_no_worst(told):
    lines = told(print_ranking, [card(Explanation("?!", 0.25, ()), place=1)])
    assert lines[2].split() == ["1", "[b]image", "1", "0.250", "?!"]
