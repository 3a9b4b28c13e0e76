"""Each word that the rules for phrases know is met by them, and says what it is listed for."""

from __future__ import annotations

from itertools import combinations

import pytest

from counterfoil.corpus import phrase_lexicon as lexicon
from counterfoil.corpus.phrase_rules import Rules, tagged

SINGLE = {name: found for name, found in vars(lexicon).items() if isinstance(found, frozenset)}
CLOSED = {
    "DETERMINERS": "determiner",
    "BE": "be",
    "PRONOUNS": "other",
    "OTHER": "other",
    "PREPOSITIONS": "preposition",
    "ADVERBS": "adverb",
}


def tags(text: str) -> list[tuple[str, str]]:
    return [(word.text, word.tag) for word in tagged(text)]


def said(phrase: tuple[str, ...]) -> str:
    return " ".join(phrase)


def test_all_words_are_met_as_they_are_listed():
    assert len(SINGLE) == 14
    for name, words in SINGLE.items():
        met = {
            word for word in words if tags(f"zzz {word}")[1:] and tags(f"zzz {word}")[1][0] == word
        }
        assert met == words, name


@pytest.mark.parametrize("name", CLOSED)
def test_words_of_closed_classes_are_so_anywhere(name):
    for word in SINGLE[name] - {"back"}:  # which may be a thing
        for text in (f"zzz {word} dog", f"a red {word}.", f"runs {word}"):
            assert (word, CLOSED[name]) in tags(text), text


def test_a_word_is_in_one_closed_class_at_the_most():
    for one, other in combinations((*CLOSED, "NUMBERS"), 2):
        assert not SINGLE[one] & SINGLE[other], (one, other)


@pytest.mark.parametrize("phrase", lexicon.COMPOUND, ids=said)
def test_compound_prepositions_are_one(phrase):
    found = tags(f"A dog {said(phrase)} a cat.")
    tag = "other" if phrase in lexicon.JOINED else "preposition"
    assert found[1:5] == [
        ("dog", "noun"),
        (said(phrase), tag),
        ("a", "determiner"),
        ("cat", "noun"),
    ]


@pytest.mark.parametrize("phrase", lexicon.OPENINGS, ids=said)
def test_what_opens_a_caption_says_nothing_of_the_picture(phrase):
    text = f"{said(phrase).capitalize()} two brown dogs"
    ((*found,),) = Rules().phrases([text], [""])
    assert [one.text(text) for one in found] == ["two", "brown", "dogs"]


def test_words_that_are_things_too_depend_on_what_follows():
    assert lexicon.ALSO_NOUNS <= lexicon.ATTRIBUTES
    for word in lexicon.ALSO_NOUNS - {"back"}:
        assert tags(f"the {word} dog")[1] == (word, "attribute")
        assert tags(f"a dog behind the {word}")[-1] == (word, "noun")


def test_things_that_look_like_verbs_are_things():
    for word in lexicon.NOUN_ING - {"being"}:  # a form of "to be" where it is one word
        assert tags(f"the {word} runs")[1] == (word, "noun")
    for word in lexicon.NOUN_S - lexicon.ATTRIBUTES:
        assert tags(f"the {word} run")[1] == (word, "noun")


@pytest.mark.parametrize(
    ("text", "tag"),
    [("They're running", "be"), ("A man's dog", "be"), ("They don't run", "other")],
)
def test_what_is_written_together_is_taken_apart(text, tag):
    assert [found for word, found in tags(text) if "'" in word] == [tag]
