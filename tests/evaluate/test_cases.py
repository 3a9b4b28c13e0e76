from __future__ import annotations

import pytest
import torch

from counterfoil.evaluate.cases import differences, picked
from counterfoil.evaluate.cases_page import Case, CaseGroup, CasesPage, render
from counterfoil.evaluate.gallery import Shown
from counterfoil.evaluate.report import Provenance
from counterfoil.evaluation.explain import CorrectedCaption, ExplainedWord, Explanation
from counterfoil.evaluation.explanation_page import ExplainedCard


def test_margins_are_compared_in_units_of_their_spread():
    rng = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 50, generator=rng)
    found = differences(first, second)
    slow = [
        float(b) / float(second.double().std(correction=0))
        - float(a) / float(first.double().std(correction=0))
        for a, b in zip(first, second)
    ]
    assert found.tolist() == pytest.approx(slow)
    torch.testing.assert_close(differences(first * 30, second), found)
    assert differences(torch.ones(3), torch.ones(3)).tolist() == [0, 0, 0]


def test_the_largest_of_each_side_one_a_picture():
    gaps = torch.tensor([5.0, 4, 3, -1, -6, 0, 2])
    images = torch.tensor([0, 0, 1, 1, 2, 3, 4])
    found = picked(gaps, images, 2)
    assert found.second == (0, 2)
    assert found.first == (4,), "row 3 is of a picture that is shown already"
    assert set(found.random) == {5, 6}
    assert picked(gaps, images, 1, seed=3) == picked(gaps, images, 1, seed=3)
    drawn = {picked(gaps, images, 1, seed=seed).random for seed in range(20)}
    assert len(drawn) > 1
    assert picked(gaps.abs(), images, 2).first == ()


def test_the_page_colours_words_and_underlines_corrections():
    words = (ExplainedWord("A", 0, 1, 0.1), ExplainedWord("<cat>", 2, 7, 0.9))
    corrected = CorrectedCaption("A dog.", 0.75, ((2, 5),))
    told = Explanation("A <cat>.", -0.25, words, corrected)
    card = ExplainedCard(Shown("1.jpg", "data:image/png;base64,x"), told, 0.5)
    bare = Explanation("A <cat>.", -0.25, words[:1])
    plain = ExplainedCard(Shown("2.jpg"), bare, 0.5)
    cases = (
        Case(card, "A dog & more.", ((0.5, 0.25), (-0.25, 0.125), (0.75, 0.5))),
        Case(plain, "A dog.", ((0.5, 0.25), (-0.25, 0.125), None)),
    )
    groups = (CaseGroup("For b", "how", cases),)
    page = render(
        CasesPage("t", "h", "p", "n", "doubt", ("a", "b"), groups, Provenance("counterfoil"))
    )
    assert 'class="word marked" style="--depth: 0.900">&lt;cat&gt;<small>' in page
    assert 'class="word" style="--depth: 0.100">A<span class="aside"> (10 % doubt)' in page
    assert "A <ins>dog</ins>." in page
    assert "A dog &amp; more." in page
    assert page.count('<th scope="row">corrected') == 1
    assert page.count('<th scope="row">written') == 2
    assert page.count("<img") == 1
    for score in ("0.500", "−0.250", "0.125", "0.750"):
        assert f"<td>{score}</td>" in page
