"""VSE-C's rules against its generators' output on sentences with parts of speech given."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from counterfoil.data.caption_edits import (
    LINKS,
    CaptionEdit,
    noun_vocabulary,
    replace_nouns,
    replace_numbers,
    replace_prepositions,
    swap_noun_phrases,
)
from counterfoil.data.phrases import NUMBER_WORDS, ParsedCaption, PartOfSpeech, TaggedWord

GOLDEN = os.environ.get("COUNTERFOIL_GOLDEN")
FILE = Path(GOLDEN or ".") / "tags" / "vsec.json"
pytestmark = [
    pytest.mark.golden,
    pytest.mark.skipif(not FILE.is_file(), reason="COUNTERFOIL_GOLDEN is not set"),
]
PARTS: dict[str, PartOfSpeech] = {
    "NOUN": "noun",
    "NUM": "number",
    "ADJ": "adjective",
    "CCONJ": "conjunction",
    "ADP": "preposition",
    "DET": "determiner",
}


@pytest.fixture(scope="module")
def golden() -> Any:
    return json.loads(FILE.read_text(encoding="utf-8"))


def parsed(annotated: Any) -> ParsedCaption:
    words, at = [], 0
    for text, tag in zip(annotated["tokens"], annotated["pos"], strict=True):
        words.append(TaggedWord(text, at, at + len(text), PARTS.get(tag, "other")))
        at += len(text) + 1
    chunks = tuple((first, stop) for first, stop in annotated["noun_chunks"])
    return ParsedCaption(" ".join(annotated["tokens"]), tuple(words), chunks)


def check(
    golden: Any, kind: str, rule: Callable[[str, ParsedCaption], Iterable[CaptionEdit]]
) -> None:
    assert golden[kind]["results"]
    for result in golden[kind]["results"]:
        found = parsed(golden["annotation"][result["split"]][result["index"]])
        assert found.text == result["sentence"]
        made = Counter(edit.apply(found.text) for edit in rule(result["split"], found))
        assert made == Counter(result["negatives"])


def test_vocabulary_of_nouns(golden):
    sentences = [parsed(one) for split in golden["annotation"].values() for one in split]
    known = golden["noun"]["concreteness"]
    concrete = [
        noun
        for noun in noun_vocabulary(sentences, at_least=1)
        if known.get(noun, 0) > golden["noun"]["threshold"]
    ]
    assert sorted(concrete) == sorted(golden["noun"]["replacement_vocabulary"])


def test_nouns(golden):
    senses = {word: set(names) for word, names in golden["noun"]["synsets"].items()}
    above = golden["noun"]["hypernyms"]
    wider = {
        word: names.union(*(above.get(name, ()) for name in names))
        for word, names in senses.items()
    }

    def rule(split: str, found: ParsedCaption) -> Iterable[CaptionEdit]:
        said = {word for one in golden["annotation"][split] for word in one["tokens"]}

        def candidates(word: str) -> list[str]:
            if word not in golden["noun"]["replacement_vocabulary"]:
                return []
            own, none = senses.get(word, set()), set()
            return [
                other
                for other in golden["noun"]["replacement_vocabulary"]
                if other not in said
                and not wider.get(word, own) & senses.get(other, none)
                and not own & wider.get(other, none)
            ]

        return replace_nouns(found, candidates, agree=False)

    check(golden, "noun", rule)


def test_numerals(golden):
    assert set(golden["numeral"]["number_words"]) == set(NUMBER_WORDS)
    check(golden, "numeral", lambda _, found: replace_numbers(found, agree=False))


def test_relations(golden):
    links = [link for link in LINKS if link != ","]  # C1
    groups = golden["preposition_replacements"]

    def rule(_: str, found: ParsedCaption) -> Iterable[CaptionEdit]:
        yield from swap_noun_phrases(found, links=links)
        yield from replace_prepositions(found, lambda word: groups.get(word, ()))

    check(golden, "relation", rule)
