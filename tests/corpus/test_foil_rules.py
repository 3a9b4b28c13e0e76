from __future__ import annotations

import pytest

from counterfoil.corpus.foil_rules import (
    Change,
    Edit,
    noun_vocabulary,
    nouns,
    numerals,
    prepositions,
    swaps,
)
from counterfoil.corpus.foil_words import NUMBERS, PREPOSITIONS, other_prepositions, related
from counterfoil.corpus.sentences import sentence


def foils(rule, caption: str, *more, **settings) -> list[str]:
    return [edit.on(caption) for edit in rule(sentence(caption), *more, **settings)]


@pytest.mark.parametrize(
    ("caption", "chunks"),
    [
        ("A man and a big brown dog.", ["A man", "a big brown dog"]),
        ("Several men by the two old and wet tents", ["Several men", "the two old and wet tents"]),
        ("There is a red fire truck.", ["a red fire truck"]),
        ("He runs.", []),
        ("", []),
    ],
)  # fmt: skip
def test_noun_phrases(caption, chunks):
    found = sentence(caption)
    places = [
        (found.words[first].start, found.words[stop - 1].stop) for first, stop in found.chunks
    ]
    assert [caption[start:stop] for start, stop in places] == chunks


def test_a_noun_takes_its_article_along_and_keeps_its_number():
    words = {"dog": ("apple", "cats", "bird"), "umbrella": ("tree",)}
    made = foils(nouns, "A dog holds an umbrella.", lambda word: words.get(word, ()))
    assert made == [
        "An apple holds an umbrella.",
        "A bird holds an umbrella.",
        "A dog holds a tree.",
    ]
    made = foils(nouns, "A dog runs.", lambda word: ("apple", "cats"), agree=False)
    assert made == ["A apple runs.", "A cats runs."]


def test_numbers_take_the_noun_along():
    made = foils(numerals, "Three small boys sit.")
    assert len(made) == len(NUMBERS) - 2
    assert {"One small boy sit.", "A small boy sit.", "Two small boys sit."} <= set(made)
    assert "An small boy sit." not in made
    assert "Three small boys sit." not in made
    assert {made.split()[1] for made in foils(numerals, "One woman sits.")} == {"women"}


@pytest.mark.parametrize("caption", ["The boy jumps.", "A few people.", "two", "Route 66", ""])
def test_what_has_no_number_of_things(caption):
    assert foils(numerals, caption) == []


def test_articles_do_not_follow_a_determiner():
    assert not [made for made in foils(numerals, "The two dogs.") if " a " in made]


def test_swapped_phrases_keep_the_capital_at_the_front():
    assert foils(swaps, "A dog chases the black cat.") == ["The black cat chases a dog."]


def test_linked_phrases_are_not_swapped():
    assert foils(swaps, "A train , a car and a truck are waiting at the station .") == [
        "The station , a car and a truck are waiting at a train .",
        "A train , the station and a truck are waiting at a car .",
        "A train , a car and the station are waiting at a truck .",
    ]
    assert foils(swaps, "A man with a hat.") == []
    assert foils(swaps, "A dog near a dog.") == []


def test_prepositions_that_may_be_true_too_are_not_written():
    made = foils(prepositions, "A cup on top of the table.")
    assert "A cup under the table." in made
    assert "A cup on the table." not in made
    assert "A cup near the table." not in made
    for group in PREPOSITIONS:
        for word in group:
            assert not group & set(other_prepositions(word))
    assert other_prepositions("of") == ()


def test_where_the_changed_words_stand():
    edit = Edit("noun", (Change(0, 1, "an"), Change(2, 5, "apple")))
    foil, spans = edit.spans("A dog.")
    assert foil == "An apple."
    assert [foil[start:stop] for start, stop in spans] == ["An", "apple"]


def test_vocabulary_counts_nouns_only():
    found = [
        sentence(text) for text in ("A dog runs.", "A dog and a cat are running.", "A red dog.")
    ]
    assert noun_vocabulary(found, at_least=1) == ("dog", "cat")
    assert noun_vocabulary(found, at_least=2) == ("dog",)


def test_related_goes_both_ways():
    for word in ("man", "circle", "puppies"):
        assert all(word in related(other) or related(word) for other in related(word))
        assert all(related(word) & {other} == {other} for other in related(word))
    assert "person" in related("women")
    assert "dog" not in related("cat")
