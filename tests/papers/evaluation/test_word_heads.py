"""Replacements of words by the heads of a model, and edits of captions."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import explain_cases as cases
from counterfoil.data.caption_edits import TextChange
from counterfoil.data.tokenizers import word_spans
from counterfoil.evaluation.explain import without_word
from counterfoil.evaluation.word_heads import (
    ImageSentences,
    SentenceWord,
    WordHeads,
    group_tokens,
    rank_replacements,
    replace_words,
    spell,
)

IMAGE = torch.tensor([3, 0, 5])
SENTENCES = ("A red skate dog.", "surf", "An orange skates near surfs")
SKATE, SURF, SKATES, NEAR = (
    SentenceWord(0, (3, 4)),
    SentenceWord(1, (1,)),
    SentenceWord(2, (3, 4, 5)),
    SentenceWord(2, (6,)),
)
SPELT = {SKATE: ["sk", "##ate"], SURF: ["surf"], SKATES: ["sk", "##ate", "##s"], NEAR: ["near"]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return cases.pieces(tmp_path_factory.mktemp("pieces"))


@pytest.fixture(scope="module")
def reader(tokenizer) -> WordHeads:
    model = cases.model(tokenizer)
    seen = cases.tailored_cases.processor()
    return WordHeads(model, tokenizer, model.encode_images(seen.images(torch.arange(8))))


@pytest.fixture(scope="module")
def told(tokenizer) -> ImageSentences:
    ids = tokenizer.encode(SENTENCES)
    width = max(map(len, ids))
    rows = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids])
    return ImageSentences(rows, rows != 0, IMAGE)


def slow(reader, told: ImageSentences, word: SentenceWord) -> dict[tuple[int, ...], float]:
    """All that could stand in the place of a word, with log probabilities."""
    one = reader.images.rows(told.image[word.row : word.row + 1])
    ids = told.ids[word.row][told.mask[word.row]].tolist()
    return cases.every_rewording(reader.model, one, ids, word.tokens, reader.tokenizer)


def test_words_are_where_they_are_asked_for(tokenizer, told):
    for word, spelt in SPELT.items():
        assert tokenizer.tokens(told.ids[word.row, list(word.tokens)].tolist()) == spelt


def test_a_beam_of_one_goes_on_with_the_best_beginning(reader, told):
    (answer,) = rank_replacements(reader, told, [SKATES], 1)
    every = slow(reader, told, SKATES)
    (written,) = answer.best
    begun: tuple[int, ...] = ()
    for piece in range(3):
        totals: dict[int, list[float]] = {}
        for ids, log in every.items():
            if ids[:piece] == begun:
                totals.setdefault(ids[piece], []).append(log)
        begun += (max(totals, key=lambda token: torch.tensor(totals[token]).logsumexp(0).item()),)
    assert written.ids == begun
    assert written.log_prob == pytest.approx(every[begun], abs=1e-5)


def test_every_token_may_stand_there_and_nothing_for_nothing(reader, told):
    special = cases.unwritten(reader.tokenizer)
    (answer,) = rank_replacements(reader, told, [SURF], 1000)
    found = {one.ids[0] for one in answer.best}
    assert found.isdisjoint(special)
    assert len(found) == len(slow(reader, told, SURF))
    assert rank_replacements(reader, told, [], 5) == []


WORDS = st.sampled_from(
    ["a", "An", "red", "Orange", "DOG", "cat's", "can", "don't", "3", "çà", "x"]
)
GAPS = st.sampled_from([" ", "  ", ", ", ". ", " - ", ' "'])
NEW = st.sampled_from(["blue", "apple", "Two dogs", "hour", "unicycle", ".", "n't", "9"])


@st.composite
def captions(draw):
    """A caption and changes of some of its words."""
    words = draw(st.lists(WORDS, min_size=1, max_size=8))
    gaps = [draw(GAPS) for _ in words]
    text = "".join(word + gap for word, gap in zip(words, gaps)).rstrip(' -"')
    parts = word_spans(text)
    chosen = sorted(draw(st.sets(st.sampled_from(range(len(parts))))))
    return text, [TextChange(*parts[at], draw(NEW)) for at in chosen]


def bare(text: str) -> str:
    return re.sub(r"\s", "", text)


@given(captions())
def test_only_what_is_exchanged_changes(case):
    text, changes = case
    new, where = replace_words(text, changes)
    told = [new[start:stop] for start, stop in where]
    articles = [text for text in told if text.lower() in ("a", "an")]
    assert [one for one in told if one not in articles] == [change.new for change in changes]
    assert all(0 <= start < stop <= len(new) for start, stop in where)
    assert list(where) == sorted(where)
    kept, old = _outside(new, where), _outside(text, [(c.start, c.stop) for c in changes])
    if not articles:
        assert bare(kept) == bare(old)


@given(captions())
def test_nothing_exchanged_is_nothing_changed(case):
    text, changes = case
    assert replace_words(text, []) == (text, ())
    same = [TextChange(c.start, c.stop, text[c.start : c.stop]) for c in changes]
    assert bare(replace_words(text, same)[0]).lower().replace("an", "a") == bare(
        text
    ).lower().replace("an", "a")


@given(captions())
def test_new_words_touch_no_letters(case):
    text, changes = case
    new, where = replace_words(text, changes)
    for start, stop in where:
        inside = new[start:stop]
        if inside[0].isalnum() and not inside.startswith("n't"):
            assert not new[:start][-1:].isalnum()
        if inside[-1].isalnum():
            after = new[stop:]
            assert not after[:1].isalnum() or after.startswith("n't")


@given(captions())
def test_articles_agree_with_new_words_alone(case):
    text, changes = case
    for change in changes:
        new, where = replace_words(text, [change])
        if len(where) == 2:
            article = new[slice(*where[0])]
            assert article.lower() in ("a", "an")
            assert (article.lower() == "an") == (change.new in ("apple", "hour"))
            assert new[: where[0][0]] == text[: where[0][0]]


def test_articles_keep_their_capitals():
    assert replace_words("A red dog", [TextChange(2, 5, "orange")]) == (
        "An orange dog",
        ((0, 2), (3, 9)),
    )
    assert replace_words("an owl", [TextChange(3, 6, "dog")]) == ("a dog", ((0, 1), (2, 5)))
    assert (
        replace_words("an owl", [TextChange(0, 2, "the"), TextChange(3, 6, "dog")])[0] == "the dog"
    )
    assert replace_words("a cat", [TextChange(2, 5, "dog")]) == ("a dog", ((2, 5),))


def test_words_that_were_one_are_written_apart_but_not_from_nt():
    assert replace_words("cannot", [TextChange(0, 3, "will")])[0] == "will not"
    assert replace_words("doesn't", [TextChange(0, 4, "is")])[0] == "isn't"
    assert replace_words("doesn't", [TextChange(4, 7, "ever")])[0] == "does ever"
    assert replace_words("a man's hat", [TextChange(2, 5, "dog")])[0] == "a dog's hat"


def test_capitals_are_those_of_the_old_word():
    assert spell(["big", "##ger"], "Red") == "Bigger"
    assert spell(["blue"], "RED") == "BLUE"
    assert spell(["blue"], "I") == "Blue"
    assert spell(["iPod"], "red") == "iPod"
    assert spell(["``"], '"') == '"'


@given(st.lists(st.integers(0, 3), max_size=6))
def test_every_token_but_special_ones_has_its_word(lengths):
    """Words of 1 to 4 tokens of one sign each, with a blank between."""
    spans_, words, at = [(0, 0)], [-1], 0
    for word, more in enumerate(lengths):
        for _ in range(more + 1):
            spans_.append((at, at + 1))
            words.append(word)
            at += 1
        at += 1
    found = group_tokens([*spans_, (0, 0)], [*words, -1])
    assert [len(place.tokens) for place in found] == [more + 1 for more in lengths]
    assert [token for place in found for token in place.tokens] == list(range(1, len(spans_)))
    assert [place.stop - place.start for place in found] == [more + 1 for more in lengths]


@given(captions())
def test_a_word_left_out_leaves_the_others(case):
    text, _ = case
    for start, stop in word_spans(text):
        less = without_word(text, start, stop)
        assert bare(less) == bare(text[:start] + text[stop:])
        assert not less.startswith(" ") or text.startswith(" ")


def _outside(text: str, where) -> str:
    out, at = "", 0
    for start, stop in where:
        out, at = out + text[at:start], stop
    return out + text[at:]
