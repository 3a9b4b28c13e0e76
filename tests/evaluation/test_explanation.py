"""What is said of captions, written down and read back."""

from __future__ import annotations

import json

import pytest

from counterfoil.evaluation.explain import (
    CorrectedCaption,
    ExplainedWord,
    Explanation,
    WordCorrection,
)

WORDS = (
    ExplainedWord("A", 0, 1, doubt=0.1),
    ExplainedWord("red", 2, 5, doubt=1 / 3, kept=0.25, corrections=(WordCorrection("blue", 0.7),)),
    ExplainedWord("dog", 6, 9, gain=-0.5),
)


@pytest.mark.parametrize(
    "one",
    [
        Explanation("A red dog", 0.1, WORDS, CorrectedCaption("A blue dog", 0.3, ((2, 6),)), 9),
        Explanation("!", -2.0, ()),
    ],
    ids=["whole", "bare"],
)
def test_it_comes_back_as_it_was(one: Explanation) -> None:
    assert Explanation.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@pytest.mark.parametrize("plain", [{}, {"words": [{"word": 1}]}, {"words": 3}])
def test_what_is_no_explanation(plain: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError)):
        Explanation.from_dict(plain)
