from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.corpus.inflection import inflection, lemma
from counterfoil.corpus.rewriting import Rewriting, plain, rewritten
from counterfoil.corpus.words import Words, spans, split

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
    found = rewritten(TEXT, SPANS, new)
    assert found.text == wanted
    assert back(found, TEXT) == TEXT


def back(found: Rewriting, text: str) -> str:
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
    found = rewritten(TEXT, SPANS, new)
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
    found = rewritten(text, places, new)
    assert back(found, text) == text
    for (start, stop), _ in found.changes:
        inside = [text[start - 1 : start], text[start : start + 1]]
        after = [text[stop - 1 : stop], text[stop : stop + 1]]
        if set(new.values()) <= {"x", "ab"} and text.replace(" ", "").isalnum():
            assert not all(sign.isalnum() for sign in inside), "a word begins here"
            assert not all(sign.isalnum() for sign in after), "and one ends here"


@given(st.text(alphabet="aB '\"`.,-1é\u0130<unk>\t", max_size=30))
def test_spans_are_the_words_of_split(text: str) -> None:
    found = spans(text)
    assert len(found) == len(split(text))
    assert all(0 <= start < stop <= len(text) for start, stop in found)
    for (start, stop), word in zip(found, split(text), strict=True):
        if text.lower() == text and '"' not in text:
            assert text[start:stop] == word


@given(st.lists(st.sampled_from(["a", "Dog", "runs", ",", "it's", '"so"', "T-shirt"]), min_size=1))
def test_a_word_for_itself_changes_nothing(words: list[str]) -> None:
    text = " ".join(words)
    reader = Words.of([text])
    ids, places = reader.encode([text])[0], reader.spans([text])[0]
    assert len(ids) == len(places)
    told = {n: text[a:b] for n, (a, b) in enumerate(places) if a < b}
    assert rewritten(text, places, told) == Rewriting(text, ())


def test_cut_texts_have_as_many_spans() -> None:
    reader = Words.of(["a dog runs"], longest=2)
    assert reader.spans(["a dog runs"]) == [[(0, 0), (0, 1), (2, 5), (0, 0)]]
    assert reader.wordless == (0, 1, 2, 3)


def test_plain_letters() -> None:
    assert [plain(t) for t in ("##a", "▁b", "c</w>", "Ġd", "e")] == list("abcde")


@pytest.mark.parametrize(
    "word, stem, ending",
    [
        ("children", "child", "s"),
        ("playing", "play", "ing"),
        ("smiling", "smile", "ing"),
        ("jumped", "jump", "ed"),
        ("carried", "carry", "ed"),
        ("watches", "watch", "s"),
        ("wearing", "wear", "ing"),
        ("standing", "stand", "ing"),
        ("swimming", "swim", "ing"),
        ("falling", "fall", "ing"),
        ("bus", "bus", ""),
        ("tennis", "tennis", ""),
        ("king", "king", ""),
        ("is", "is", ""),
        ("t-shirts", "t-shirts", ""),
        ("bed", "bed", ""),
    ],
)
def test_forms(word: str, stem: str, ending: str) -> None:
    assert (lemma(word), inflection(word)) == (stem, ending)
