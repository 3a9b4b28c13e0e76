from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from counterfoil.data.scenes import grammar
from counterfoil.data.scenes.grammar import Form, Link, Phrase, articles, parse, write
from counterfoil.data.scenes.truth import foils, is_true
from counterfoil.data.scenes.world import COLOURS, PATTERNS, RELATIONS, SHAPES, SIZES, Dice
from counterfoil.data.tokenizers import split_words
from scenes_cases import all_captions, all_scenes, canonical, forms


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


def test_adjectives_patterns_and_numbers():
    for kind, values in grammar.ADJECTIVES.items():
        for value, word in ((value, word) for value, words in values.items() for word in words):
            assert getattr(first(f"A {word} star."), kind) == value
    for pattern, words in grammar.PATTERN_NOUNS.items():
        for word in words:
            assert first(f"A star with {word}.").pattern == pattern
    for words, count in grammar.COUNT_OF.items():
        assert first(f"{' '.join(words)} {'star' if count == 1 else 'stars'}.").count == count


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


@settings(max_examples=200, deadline=None)
@given(forms(), st.integers(0, 10**6))
def test_what_is_written_is_read_back(form, number):
    try:
        caption = write(form, Dice(str(number)))
    except ValueError as error:
        assume("relations may join" not in str(error))
        raise
    read = parse(caption)
    assert read is not None, caption
    assert canonical(read.form) == canonical(form), caption
    assert parse(caption.lower().rstrip(".")).form == read.form


def test_a_claim_too_tangled_for_words_is_refused():
    phrases = (Phrase(shape="star"),) * 4
    chain = tuple(Link("left of", at, at + 1) for at in range(3))
    with pytest.raises(ValueError, match="at most 3 phrases"):
        write(Form(phrases, chain), Dice("x"))


@pytest.mark.parametrize(
    "caption",
    [
        "",
        ".",
        "A dog.",
        "A circles.",
        "Two circle.",
        "A red blue circle.",
        "A small tiny circle.",
        "A striped circle with dots.",
        "A circle left of.",
        "A circle of left a star.",
        "A circle left of a star and a square.",
        "A square and a circle left of a star.",
        "A circle is.",
        "There is a circle is above a star.",
        "A circle and and a star.",
        "A circle with a star.",
        "A circle, nothing else, a star.",
        "Nothing else.",
        "A circle above it.",
        "Above a star.",
        "Über einem Stern.",
        "A circle. A star.",
        "No circle.",
    ],
)
def test_outside_the_grammar(caption):
    assert parse(caption) is None
    assert is_true(caption, all_scenes()[0]) is None


@pytest.mark.parametrize(
    "caption, form",
    [
        ("a circle", "a circle"),
        ("There are 2 tiny violet discs.", "2 small purple circle"),
        ("A orange star", "a orange star"),
        ("A star and another star, nothing else.", "a star; a star; nothing else"),
        ("A star with a moon to its left.", "a star; a moon; 1 left of 0"),
        ("Two stars with a moon above them.", "2 star; a moon; 1 above 0"),
        ("Over a star, there is a moon.", "a star; a moon; 1 above 0"),
        ("A moon over and right of a star.", "a moon; a star; 0 above 1; 0 right of 1"),
        (
            "A moon over a star and left of a heart.",
            "a moon; a star; a heart; 0 above 1; 0 left of 2",
        ),
        (
            "A moon over a star, which is left of a heart.",
            "a moon; a star; a heart; 0 above 1; 1 left of 2",
        ),
        (
            "A moon over a star, and a heart; a star is under a square.",
            "a moon; a star; a heart; a star; a square; 0 above 1; 3 below 4",
        ),
        (
            "A moon with stripes beside a star with spots",
            "a striped moon; a dotted star; 0 next to 1",
        ),
    ],
)
def test_readings(caption, form):
    assert str(parse(caption).form) == form


def test_spans_say_which_words_say_what():
    read = parse("There is a tiny red disc with dots on the left side of a pair of stars.")
    assert [(span.kind, read.text(span), span.place) for span in read.spans] == [
        ("phrase", "a tiny red disc with dots", 0),
        ("size", "tiny", 0),
        ("colour", "red", 0),
        ("object", "disc", 0),
        ("pattern", "with dots", 0),
        ("relation", "on the left side of", 0),
        ("phrase", "a pair of stars", 1),
        ("number", "a pair of", 1),
        ("object", "stars", 1),
    ]


def test_spans_cover_all_that_a_caption_says():
    for captions in all_captions()[:200]:
        for caption in captions:
            read = parse(caption)
            assert list(read.words) == split_words(caption)
            assert len(read.of("phrase")) == len(read.of("object")) == len(read.form.phrases)
            assert len(read.of("relation")) == len(read.form.links)
            for place, phrase in enumerate(read.form.phrases):
                mine = {span.kind for span in read.spans if span.place == place} - {"relation"}
                said = {kind for kind in ("size", "pattern", "colour") if getattr(phrase, kind)}
                assert mine - {"phrase", "object", "number"} == said
                assert ("number" in mine) == (phrase.count is not None)


def vocabulary():
    told = (caption for captions in all_captions() for caption in captions)
    return st.sampled_from(sorted({word for caption in told for word in split_words(caption)}))


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 599),
    st.integers(0, 4),
    st.integers(0, 40),
    st.deferred(vocabulary) | st.text(max_size=5),
)
def test_captions_with_a_word_exchanged_are_read_or_refused(number, level, place, word):
    words = split_words(all_captions()[number][level])
    words[place % len(words)] = word
    caption = "  ".join(words)
    if parse(caption) is None:
        assert is_true(caption, all_scenes()[number]) is None
    else:
        assert is_true(caption, all_scenes()[number]) in (True, False)
        for foil in foils(caption, all_scenes()[number], torch.Generator()):
            assert is_true(foil.caption, all_scenes()[number]) is False
