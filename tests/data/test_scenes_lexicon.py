"""The parser reads each word of the lexicon with the meaning that the lexicon gives it."""

from __future__ import annotations

import pytest

from counterfoil.data.scenes import grammar
from counterfoil.data.scenes.grammar import articles, parse
from counterfoil.data.scenes.world import COLOURS, PATTERNS, RELATIONS, SHAPES, SIZES


def read(text: str):
    """The phrases of a caption and their links."""
    parsed = parse(articles(text))
    assert parsed is not None, text
    return parsed.form


def first(text: str):
    return read(text).phrases[0]


def test_everything_in_a_scene_has_words():
    assert set(grammar.NOUNS) == {*SHAPES, None}
    values = {kind: set(words) for kind, words in grammar.ADJECTIVES.items()}
    assert values == {"colour": set(COLOURS), "size": set(SIZES), "pattern": set(PATTERNS)}
    assert set(grammar.PATTERN_NOUNS) == set(PATTERNS) - {"plain"}
    assert set(grammar.RELATION_WORDS) == set(RELATIONS)
    assert set(grammar.NUMBERS) == set(range(1, 7))


def test_no_word_means_two_things():
    lexicon = [word for pairs in grammar.NOUNS.values() for pair in pairs for word in pair]
    for table in (*grammar.ADJECTIVES.values(), grammar.PATTERN_NOUNS):
        lexicon += [word for choices in table.values() for word in choices]
    assert len(lexicon) == len(set(lexicon))
    for listed in (grammar.NUMBERS, grammar.RELATION_WORDS):
        phrases = [phrase for choices in listed.values() for phrase in choices]
        assert len(phrases) == len(set(phrases))


@pytest.mark.parametrize("shape", grammar.NOUNS, ids=str)
def test_shapes(shape):
    for single, plural in grammar.NOUNS[shape]:
        assert first(f"A {single}.").shape == shape
        assert (first(f"Two {plural}.").shape, first(f"Two {plural}.").count) == (shape, 2)
        assert parse(articles(f"A {plural}.")) is None
        assert parse(f"Two {single}.") is None


@pytest.mark.parametrize("kind", grammar.ADJECTIVES)
def test_adjectives(kind):
    for value, choices in grammar.ADJECTIVES[kind].items():
        for word in choices:
            assert getattr(first(f"A {word} star."), kind) == value


def test_patterns_behind_the_thing():
    for pattern, words in grammar.PATTERN_NOUNS.items():
        for word in words:
            assert first(f"A star with {word}.").pattern == pattern


@pytest.mark.parametrize("count", grammar.NUMBERS)
def test_numbers(count):
    for words in grammar.NUMBERS[count]:
        noun = "star" if count == 1 else "stars"
        assert first(f"{' '.join(words)} {noun}.").count == count


@pytest.mark.parametrize("relation", grammar.RELATION_WORDS)
def test_relations(relation):
    for words in grammar.RELATION_WORDS[relation]:
        form = read(f"A star {' '.join(words)} a circle.")
        (link,) = form.links
        ends = form.phrases[link.subject].shape, form.phrases[link.object].shape
        assert (link.relation, *ends) == (relation, "star", "circle")
        copula = read(f"A star is {' '.join(words)} a circle.")
        assert copula == form


def test_openings_and_closings_change_nothing_but_completeness():
    bare = read("A star and a moon.")
    for words in grammar.OPENINGS:
        assert read(f"{' '.join(words)} a star and a moon.") == bare
    for words in grammar.CLOSINGS:
        closed = read(f"A star and a moon {' '.join(words)}.".replace(" ,", ","))
        assert (closed.phrases, closed.complete, bare.complete) == (bare.phrases, True, False)


def test_joints_are_read_between_what_stands_alone():
    for words in grammar.LOOSE:
        assert read(f"A star {' '.join(words)} a moon.") == read("A star and a moon.")
    one, other = "a star above a moon", "a heart left of a cross"
    for words in grammar.FIRM:
        joined = " ".join(words)
        assert len(read(f"{one} {joined} {other}.").links) == 2, joined


def test_nothing_outside_the_lexicon_is_read():
    for text in ("A dog.", "A crimson star.", "A star atop a moon.", "Seven stars."):
        assert parse(text) is None
