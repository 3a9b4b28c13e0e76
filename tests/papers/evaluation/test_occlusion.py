"""Scores without each word, one sentence at a time."""

from __future__ import annotations

import math

import pytest
import torch

import tailored_cases as cases
from counterfoil.core.types import Embeddings
from counterfoil.evaluation.explain import explain_by_occlusion

CAPTIONS = ("Red dogs near cats.", "birds", "A cat, a dog")
LESS = (
    ("dogs near cats.", "Red near cats.", "Red dogs cats.", "Red dogs near."),
    (),
    ("cat, a dog", "A, a dog", "A cat, dog", "A cat, a"),
)


@pytest.fixture(scope="module")
def seen():
    return cases.processor()


@pytest.fixture(scope="module")
def model(seen):
    return cases.host(seen, outputs=("rank",)).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def images(seen, model):
    return model.encode_images(seen.images(torch.arange(8)))


def test_gains_are_differences_of_scores(seen, model, images, monkeypatch):
    rows = torch.tensor([4, 0, 2])
    monkeypatch.setattr("counterfoil.evaluation.exchanges.SCORE_BATCH", 3)
    found = explain_by_occlusion(model, seen.processor.process_texts, images, CAPTIONS, rows)

    def score(row, text):
        texts = model.encode_texts(seen.processor.process_texts([text]))
        return float(model.loss_scores(model.score_pairs(images.rows(row[None]), texts)))

    for one, row, text, less in zip(found, rows, CAPTIONS, LESS):
        assert one.score == pytest.approx(score(row, text), abs=1e-6)
        gains = [score(row, other) - score(row, text) for other in less]
        assert [word.gain for word in one.words] == pytest.approx(gains, abs=1e-6)
        assert one.doubt is None
        assert not one.doubts
        assert one.corrected is None


def test_words_are_those_with_letters(seen, model, images):
    found = explain_by_occlusion(
        model, seen.processor.process_texts, images, CAPTIONS, torch.arange(3)
    )
    assert [[word.text for word in one.words] for one in found] == [
        ["Red", "dogs", "near", "cats"],
        [],
        ["A", "cat", "a", "dog"],
    ]


def test_scores_that_are_no_numbers(seen, model, images):
    broken = Embeddings(images.tokens * math.nan, images.mask)
    with pytest.raises(ValueError, match=r"near cats\.' is not a number"):
        explain_by_occlusion(
            model, seen.processor.process_texts, broken, CAPTIONS[:1], torch.tensor([0])
        )
