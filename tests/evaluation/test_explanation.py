"""Explanations are stored in parts and read back unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterfoil.evaluation.explain import (
    CorrectedCaption,
    ExplainedWord,
    Explanation,
    ExplanationCheckpoint,
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
def test_it_comes_back_as_it_was(one: Explanation, tmp_path: Path) -> None:
    checkpoint = ExplanationCheckpoint(tmp_path / "out.jsonl", {}, resume=False)
    checkpoint.save(3, [one])
    assert checkpoint.load(3) == [one]
    assert checkpoint.load(2) is None


@pytest.mark.parametrize("plain", [{}, [{}], [{"words": [{"word": 1}]}], [{"words": 3}], "{"])
def test_damaged_parts_are_refused(plain: object, tmp_path: Path) -> None:
    checkpoint = ExplanationCheckpoint(tmp_path / "out.jsonl", {}, resume=False)
    checkpoint.save(0, [])
    text = plain if isinstance(plain, str) else json.dumps(plain)
    checkpoint.parts.path(0).write_text(text)
    with pytest.raises(ValueError, match=r"holds no explanations: .+; delete it"):
        checkpoint.load(0)
