"""What is said of captions, written down and read back."""

from __future__ import annotations

import json

import pytest

from counterfoil.evaluate.explanation import Corrected, Correction, Explanation, Word

WORDS = (
    Word("A", 0, 1, doubt=0.1),
    Word("red", 2, 5, doubt=1 / 3, kept=0.25, corrections=(Correction("blue", 0.7),)),
    Word("dog", 6, 9, gain=-0.5),
)


@pytest.mark.parametrize(
    "one",
    [
        Explanation("A red dog", 0.1, WORDS, Corrected("A blue dog", 0.3, ((2, 6),)), 9),
        Explanation("!", -2.0, ()),
    ],
    ids=["whole", "bare"],
)
def test_it_comes_back_as_it_was(one: Explanation) -> None:
    assert Explanation.of(json.loads(json.dumps(one.plain()))) == one


@pytest.mark.parametrize("plain", [{}, {"words": [{"word": 1}]}, {"words": 3}])
def test_what_is_no_explanation(plain: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError)):
        Explanation.of(plain)
