"""Replaced tokens, and the rules that make captions false."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.data.caption_edits import (
    PREPOSITIONS,
    CaptionEdit,
    RewrittenCaption,
    TextChange,
    noun_vocabulary,
    other_prepositions,
    related_nouns,
    replace_nouns,
    replace_numbers,
    replace_prepositions,
    replace_tokens,
    swap_noun_phrases,
    token_text,
)
from counterfoil.data.phrases import NUMBER_WORDS, parse_sentence
from counterfoil.data.tokenizers import WordTokenizer, split_words, word_spans

TEXT = "Man's  best, friend"
SPANS = [(0, 0), (0, 3), (3, 5), (7, 11), (11, 12), (13, 19), (0, 0)]


@pytest.mark.parametrize(
    "new, wanted",
    [
        ({}, TEXT),
        ({1: "dog"}, "Dog's  best, friend"),
        ({3: "WORST"}, "Man's  WORST, friend"),
        ({5: "##ly"}, "Man's  best,ly"),
        ({2: "'ll", 5: "Ġenemy"}, "Man'll  best, enemy"),
        ({4: "and"}, "Man's  best and friend"),
    ],
)
def test_rewritten(new: dict[int, str], wanted: str) -> None:
    found = replace_tokens(TEXT, SPANS, new)
    assert found.text == wanted
    assert back(found, TEXT) == TEXT


def back(found: RewrittenCaption, text: str) -> str:
    """The caption, made of its rewriting by what is said of the changes."""
    out = found.text
    for (start, stop), (begin, end) in reversed(found.changes):
        assert out[begin:end] != text[start:stop]
        out = out[:begin] + text[start:stop] + out[end:]
    return out


@pytest.mark.parametrize(
    "new, wanted",
    [
        ({}, []),
        ({1: "man"}, []),
        ({1: "dog"}, [("Man", "Dog")]),
        ({2: "'ll"}, [("'s", "'ll")]),
        ({1: "dog", 2: "##s"}, [("Man's", "Dogs")]),
        ({5: "##ly", 3: "worst"}, [("best", "worst"), (" friend", "ly")]),
        ({4: "and"}, [("best,", "best and")]),
    ],
)
def test_whole_words_are_changed(new: dict[int, str], wanted: list[tuple[str, str]]) -> None:
    found = replace_tokens(TEXT, SPANS, new)
    assert [(TEXT[slice(*old)], found.text[slice(*now)]) for old, now in found.changes] == wanted


@given(
    st.lists(st.sampled_from(["ab", "C", "de", ",", "1"]), min_size=1, max_size=8),
    st.lists(st.sampled_from(["", " "]), min_size=8, max_size=8),
    st.dictionaries(st.integers(0, 7), st.sampled_from(["x", "##y", "ab", ",", "Ġz"]), max_size=8),
)
def test_changes_lead_back(words: list[str], gaps: list[str], new: dict[int, str]) -> None:
    text, places = "", []
    for word, gap in zip(words, gaps):
        places.append((len(text), len(text) + len(word)))
        text += word + gap
    found = replace_tokens(text, places, new)
    assert back(found, text) == text
    for (start, stop), _ in found.changes:
        inside = [text[start - 1 : start], text[start : start + 1]]
        after = [text[stop - 1 : stop], text[stop : stop + 1]]
        if set(new.values()) <= {"x", "ab"} and text.replace(" ", "").isalnum():
            assert not all(sign.isalnum() for sign in inside), "a word begins here"
            assert not all(sign.isalnum() for sign in after), "and one ends here"


@given(st.text(alphabet="aB '\"`.,-1é\u0130<unk>\t", max_size=30))
def test_spans_are_the_words_of_split(text: str) -> None:
    found = word_spans(text)
    assert len(found) == len(split_words(text))
    assert all(0 <= start < stop <= len(text) for start, stop in found)
    for (start, stop), word in zip(found, split_words(text), strict=True):
        if text.lower() == text and '"' not in text:
            assert text[start:stop] == word


@given(st.lists(st.sampled_from(["a", "Dog", "runs", ",", "it's", '"so"', "T-shirt"]), min_size=1))
def test_a_word_for_itself_changes_nothing(words: list[str]) -> None:
    text = " ".join(words)
    reader = WordTokenizer.of([text])
    ids, places = reader.encode([text])[0], reader.spans([text])[0]
    assert len(ids) == len(places)
    told = {n: text[a:b] for n, (a, b) in enumerate(places) if a < b}
    assert replace_tokens(text, places, told) == RewrittenCaption(text, ())


def test_cut_texts_have_as_many_spans() -> None:
    reader = WordTokenizer.of(["a dog runs"], longest=2)
    assert reader.spans(["a dog runs"]) == [[(0, 0), (0, 1), (2, 5), (0, 0)]]
    assert reader.wordless == (0, 1, 2, 3)


def test_plain_letters() -> None:
    assert [token_text(t) for t in ("##a", "▁b", "c</w>", "Ġd", "e")] == list("abcde")


def foils(rule, caption: str, *more, **settings) -> list[str]:
    return [edit.apply(caption) for edit in rule(parse_sentence(caption), *more, **settings)]


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
    found = parse_sentence(caption)
    places = [
        (found.words[first].start, found.words[stop - 1].stop) for first, stop in found.chunks
    ]
    assert [caption[start:stop] for start, stop in places] == chunks


def test_a_noun_takes_its_article_along_and_keeps_its_number():
    words = {"dog": ("apple", "cats", "bird"), "umbrella": ("tree",)}
    made = foils(replace_nouns, "A dog holds an umbrella.", lambda word: words.get(word, ()))
    assert made == [
        "An apple holds an umbrella.",
        "A bird holds an umbrella.",
        "A dog holds a tree.",
    ]
    made = foils(replace_nouns, "A dog runs.", lambda word: ("apple", "cats"), agree=False)
    assert made == ["A apple runs.", "A cats runs."]


def test_numbers_take_the_noun_along():
    made = foils(replace_numbers, "Three small boys sit.")
    assert len(made) == len(NUMBER_WORDS) - 2
    assert {"One small boy sit.", "A small boy sit.", "Two small boys sit."} <= set(made)
    assert "An small boy sit." not in made
    assert "Three small boys sit." not in made
    assert {made.split()[1] for made in foils(replace_numbers, "One woman sits.")} == {"women"}


@pytest.mark.parametrize("caption", ["The boy jumps.", "A few people.", "two", "Route 66", ""])
def test_what_has_no_number_of_things(caption):
    assert foils(replace_numbers, caption) == []


def test_articles_do_not_follow_a_determiner():
    assert not [made for made in foils(replace_numbers, "The two dogs.") if " a " in made]


def test_swapped_phrases_keep_the_capital_at_the_front():
    assert foils(swap_noun_phrases, "A dog chases the black cat.") == [
        "The black cat chases a dog."
    ]


def test_linked_phrases_are_not_swapped():
    assert foils(swap_noun_phrases, "A train , a car and a truck are waiting at the station .") == [
        "The station , a car and a truck are waiting at a train .",
        "A train , the station and a truck are waiting at a car .",
        "A train , a car and the station are waiting at a truck .",
    ]
    assert foils(swap_noun_phrases, "A man with a hat.") == []
    assert foils(swap_noun_phrases, "A dog near a dog.") == []


def test_prepositions_that_may_be_true_too_are_not_written():
    made = foils(replace_prepositions, "A cup on top of the table.")
    assert "A cup under the table." in made
    assert "A cup on the table." not in made
    assert "A cup near the table." not in made
    for group in PREPOSITIONS:
        for word in group:
            assert not group & set(other_prepositions(word))
    assert other_prepositions("of") == ()


def test_where_the_changed_words_stand():
    edit = CaptionEdit("noun", (TextChange(0, 1, "an"), TextChange(2, 5, "apple")))
    foil, spans = edit.apply_with_spans("A dog.")
    assert foil == "An apple."
    assert [foil[start:stop] for start, stop in spans] == ["An", "apple"]


def test_vocabulary_counts_nouns_only():
    found = [
        parse_sentence(text)
        for text in ("A dog runs.", "A dog and a cat are running.", "A red dog.")
    ]
    assert noun_vocabulary(found, at_least=1) == ("dog", "cat")
    assert noun_vocabulary(found, at_least=2) == ("dog",)


def test_related_goes_both_ways():
    for word in ("man", "circle", "puppies"):
        assert all(
            word in related_nouns(other) or related_nouns(word) for other in related_nouns(word)
        )
        assert all(related_nouns(word) & {other} == {other} for other in related_nouns(word))
    assert "person" in related_nouns("women")
    assert "dog" not in related_nouns("cat")
