"""Phrases by rule, by spaCy and from files; each word of the lexicon has its part of speech."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.data.phrases import (
    CaptionPhrase,
    PhraseFile,
    PhraseKind,
    PhraseParser,
    RulePhraseParser,
    SpacyPhraseParser,
    compound_prepositions,
    inflection,
    lemma,
    lexicon,
    tag_words,
    touched_tokens,
)
from counterfoil.data.scenes import scenes
from counterfoil.data.scenes.grammar import PRONOUNS, parse
from counterfoil.data.tokenizers import word_spans


def told(parser: Any, text: str, name: str = "") -> list[tuple[str, str]]:
    return [(phrase.kind, phrase.text(text)) for phrase in parser.phrases([text], [name])[0]]


def listed(text: str) -> list[str]:
    """O:dog A:red R:in"""
    return [f"{kind[0].upper()}:{words}" for kind, words in told(RulePhraseParser(), text)]


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("A man rides a horse.", "O:man R:rides O:horse"),
        ("Two dogs run on the beach", "A:Two O:dogs R:run R:on O:beach"),
        ("A dog is running fast in the sand .", "O:dog R:running R:in O:sand"),
        ("a brown and black dog", "A:brown A:black O:dog"),
        ("A picture of a striped shirt", "A:striped O:shirt"),
        ("There is a running greyhound", "A:running O:greyhound"),
        ("An orange ball beside an orange", "A:orange O:ball R:beside O:orange"),
        ("A tennis racket", "O:tennis racket"),
        ("a dog with spots", "O:dog A:with spots"),
        ("A boy jumps off of a building", "O:boy R:jumps R:off O:building"),
        ("People dressed in red", "O:People R:dressed R:in A:red"),
        ("He sat on his father's shoulders", "R:sat R:on O:father O:shoulders"),
        ("A couple of men and a couple", "A:couple O:men O:couple"),
        ("Women in front of a store", "O:Women R:in front of O:store"),
        ("", ""),
        ("???", ""),
        ("Quickly, and then there was nothing.", ""),
    ],
)
def test_rules(text: str, wanted: str) -> None:
    assert " ".join(listed(text)) == wanted


TRUE_KINDS: dict[str, PhraseKind] = {
    "object": "object",
    "number": "attribute",
    "size": "attribute",
    "pattern": "attribute",
    "colour": "attribute",
    "relation": "relation",
}


def true_phrases(caption: str) -> tuple[CaptionPhrase, ...] | None:
    """The phrases of a caption of `scenes`, from left to right; None outside its grammar.

    The pronoun of a relation, as in "above it", is not part of it.
    """
    parsed = parse(caption)
    if parsed is None:
        return None
    places, phrases = word_spans(caption), []
    for span in parsed.spans:
        stop = span.stop - (span.kind == "relation" and parsed.words[span.stop - 1] in PRONOUNS)
        if span.kind in TRUE_KINDS:
            where = places[span.start][0], places[stop - 1][1]
            phrases.append(CaptionPhrase(TRUE_KINDS[span.kind], (where,)))
    return tuple(phrases)


def precision_and_recall(parser: PhraseParser, texts: Sequence[str], kind: PhraseKind | None):
    """Percent of the phrases of a kind that are true, and of the true ones; and how many are."""
    both = given = true = 0
    for text, parsed in zip(texts, parser.phrases(texts, texts), strict=True):
        wanted = {phrase for phrase in true_phrases(text) if kind in (None, phrase.kind)}
        output = {phrase for phrase in parsed if kind in (None, phrase.kind)}
        both, given, true = both + len(output & wanted), given + len(output), true + len(wanted)
    return 100 * both / given, 100 * both / true, true


def test_rules_on_scenes_where_the_truth_is_known() -> None:
    texts = scenes(images=240, seed=11).texts
    least = {"object": (99, 99.5), "attribute": (99, 99), "relation": (80, 99.5), None: (96, 99.5)}
    for kind, (precision, recall) in least.items():
        measured = precision_and_recall(RulePhraseParser(), texts, kind)
        assert measured[0] >= precision, kind
        assert measured[1] >= recall, kind
        assert measured[2] > 300


def test_the_truth_of_a_scene() -> None:
    text = "A star with two small circles above it."
    assert [(p.kind, p.text(text)) for p in true_phrases(text)] == [
        ("object", "star"),
        ("attribute", "two"),
        ("attribute", "small"),
        ("object", "circles"),
        ("relation", "above"),
    ]
    assert true_phrases("A dog in the snow.") is None


@given(st.text(alphabet="aA bredn'ts-,.9éß“\"", max_size=40))
def test_spans_are_inside_apart_and_in_order(text: str) -> None:
    spans = [
        span for phrase in RulePhraseParser().phrases([text], [""])[0] for span in phrase.spans
    ]
    assert all(0 <= start < stop <= len(text) for start, stop in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_places_of_a_phrase_in_several_runs() -> None:
    tokens = [(0, 0), (0, 3), (4, 6), (6, 9), (9, 9), (10, 12)]
    assert touched_tokens(CaptionPhrase("relation", ((5, 7), (11, 12))), tokens) == [2, 3, 5]
    assert touched_tokens(CaptionPhrase("relation", ((3, 4),)), tokens) == []


def stored(folder: Path, graphs: Any) -> PhraseFile:
    (folder / "phrases.json").write_text(json.dumps(graphs))
    return PhraseFile(path=str(folder / "phrases.json"))


TEXT = "Two tall men riding the horses"
GRAPH = [
    ("object", "men"),
    ("attribute", "tall"),
    ("relation", "riding"),
    ("object", "horses"),
]


@pytest.mark.parametrize(
    "graph",
    [
        [["man"], ["man", "tall"], ["man", "ride", "horse"], ["zebra"]],
        [{"tuple": ["man"]}, {"tuple": ["man", "tall"]}, {"tuple": ["man", "ride", "horse"]}],
        [
            {"kind": "object", "spans": [[9, 12]]},
            {"kind": "attribute", "spans": [[4, 8]]},
            {"kind": "relation", "spans": [[13, 19]]},
            {"kind": "object", "spans": [[24, 30]]},
        ],
    ],
)
def test_written_down_by_another_parser(graph: Any, tmp_path: Path) -> None:
    assert sorted(told(stored(tmp_path, {"7#0": graph}), TEXT, "7#0")) == sorted(GRAPH)


@pytest.mark.parametrize(
    "graphs, words",
    [
        ([], "a mapping from caption ids is needed"),
        ({"8": []}, "no phrases of caption '7#0'; parse all"),
        ({"7#0": [["a", "b", "c", "d"]]}, "no tuple of one, two or three"),
        ({"7#0": [{"kind": "object", "spans": [[2, 99]]}]}, "no phrase of a caption of 30"),
        ({"7#0": [{"kind": "thing", "spans": [[2, 3]]}]}, "no phrase of a caption"),
        ({"7#0": 3}, "cannot be read"),
    ],
)
def test_files_of_another_form(graphs: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        stored(tmp_path, graphs).phrases([TEXT], ["7#0"])


class Document(list):
    text: str


def tagged(text: str, kinds: str) -> Document:
    """A caption as spaCy returns it, with these parts of speech."""
    at, document = 0, Document()
    document.text = text
    for word, kind in zip(text.split(), kinds.split(), strict=True):
        at = text.index(word, at)
        document.append(SimpleNamespace(text=word, idx=at, pos_=kind))
    return document


@pytest.mark.parametrize(
    ("text", "kinds", "wanted"),
    [
        (
            TEXT,
            "NUM ADJ NOUN VERB DET NOUN",
            [("attribute", "Two"), *[GRAPH[n] for n in (1, 0, 2, 3)]],
        ),
        (  # compound prepositions are one phrase, and openings none
            "A picture of a swimming pool in front of the left wall",
            "DET NOUN ADP DET NOUN NOUN ADP NOUN ADP DET NOUN NOUN",
            [("object", "swimming pool"), ("relation", "in front of"), ("object", "left wall")],
        ),
    ],
)
def test_spacy(text: str, kinds: str, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimpleNamespace(pipe=lambda texts: [tagged(text, kinds) for text in texts])
    spacy = SimpleNamespace(load=lambda name, **options: model)
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    assert told(SpacyPhraseParser(), text) == wanted


@pytest.mark.parametrize("text", ["", "A picture of", "next to"])
def test_compounds_of_next_to_nothing(text: str) -> None:
    begin, long = compound_prepositions(text)
    wanted = (0, ((0, 7),)) if text == "next to" else (len(text), ())
    assert (begin, long) == wanted


def test_spacy_or_its_model_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ValueError, match="needs spaCy: pip install spacy"):
        SpacyPhraseParser()

    def load(name: str, **options: Any) -> Any:
        raise OSError(name)

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load))
    with pytest.raises(ValueError, match="python -m spacy download en_core_web_sm"):
        SpacyPhraseParser()


KNOWN = lexicon()
SINGLE = {
    field.name: getattr(KNOWN, field.name)
    for field in dataclasses.fields(KNOWN)
    if field.name not in ("compounds", "joined", "openings", "uninflected", "silent_e")
    and isinstance(getattr(KNOWN, field.name), frozenset)
}
COMPOUNDS = [words for many in KNOWN.compounds.values() for words in many]
CLOSED = {
    "determiners": "determiner",
    "be": "be",
    "pronouns": "other",
    "other": "other",
    "prepositions": "preposition",
    "adverbs": "adverb",
}


def tags(text: str) -> list[tuple[str, str]]:
    return [(word.text, word.part) for word in tag_words(text)]


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
    for one, other in combinations((*CLOSED, "numbers"), 2):
        assert not SINGLE[one] & SINGLE[other], (one, other)


def test_compound_prepositions_are_one_word():
    for phrase in map(" ".join, COMPOUNDS):
        tag = "other" if phrase in KNOWN.joined else "preposition"
        wanted = [("dog", "noun"), (phrase, tag), ("a", "determiner"), ("cat", "noun")]
        assert tags(f"A dog {phrase} a cat.")[1:5] == wanted


def test_openings_of_captions_are_not_parsed():
    for phrase in map(" ".join, KNOWN.openings):
        assert listed(f"{phrase.capitalize()} two brown dogs") == ["A:two", "A:brown", "O:dogs"]


def test_words_that_are_things_too_depend_on_what_follows():
    assert KNOWN.also_nouns <= KNOWN.attributes
    for word in KNOWN.also_nouns - {"back"}:
        assert tags(f"the {word} dog")[1] == (word, "attribute")
        assert tags(f"a dog behind the {word}")[-1] == (word, "noun")


def test_things_that_look_like_verbs_are_things():
    for word in KNOWN.noun_ing - {"being"}:  # a form of "to be" where it is one word
        assert tags(f"the {word} runs")[1] == (word, "noun")
    for word in KNOWN.noun_s - KNOWN.attributes:
        assert tags(f"the {word} run")[1] == (word, "noun")


@pytest.mark.parametrize(
    ("text", "tag"),
    [("They're running", "be"), ("A man's dog", "be"), ("They don't run", "other")],
)
def test_what_is_written_together_is_taken_apart(text, tag):
    assert [found for word, found in tags(text) if "'" in word] == [tag]


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
