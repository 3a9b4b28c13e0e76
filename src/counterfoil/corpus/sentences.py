"""Captions as rules for foils see them: words, parts of speech, noun phrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from counterfoil.corpus import phrase_lexicon as lexicon
from counterfoil.corpus.foil_words import NUMBERS
from counterfoil.corpus.phrase_rules import Tagged, tagged

PartOfSpeech: TypeAlias = Literal[
    "noun", "number", "adjective", "conjunction", "preposition", "determiner", "other"
]


@final
@dataclass(frozen=True, slots=True)
class Word:
    """A word of a caption.

    Attributes:
        text: lower-cased.
        start: its first character.
        stop: the one after its last.
        part: of speech.
    """

    text: str
    start: int
    stop: int
    part: PartOfSpeech


@final
@dataclass(frozen=True, slots=True)
class Sentence:
    """A caption, parsed.

    Attributes:
        text: as it was written.
        words: from left to right.
        chunks: first word of each noun phrase and the one after its last; the last is its head.
    """

    text: str
    words: tuple[Word, ...]
    chunks: tuple[tuple[int, int], ...]


def sentence(text: str) -> Sentence:
    """A caption parsed by the rules of `counterfoil.corpus.phrase_rules`.

    >>> found = sentence("Two brown dogs and a cat.")
    >>> [text[slice(found.words[i].start, found.words[k - 1].stop)]
    ...     for text in [found.text] for i, k in found.chunks]
    ['Two brown dogs', 'a cat']
    """
    words = tuple(Word(one.text, one.start, one.stop, _part(one)) for one in tagged(text))
    return Sentence(text, words, tuple(_chunks(words)))


def _part(word: Tagged) -> PartOfSpeech:
    if word.tag in ("noun", "determiner", "preposition"):
        return word.tag
    if word.tag == "attribute":
        if word.text in NUMBERS or word.text.isdigit():
            return "number"
        return "determiner" if word.text in lexicon.NUMBERS else "adjective"
    return "conjunction" if word.text in ("and", "or") else "other"


def _chunks(words: Sequence[Word]) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(words):
        head = _past(words, at)
        stop = head
        while stop < len(words) and words[stop].part == "noun":
            stop += 1
        if stop > head:
            found.append((at, stop))
        at = max(stop if stop > head else at + 1, at + 1)
    return found


def _past(words: Sequence[Word], at: int) -> int:
    """The place behind determiners, numbers and adjectives that begin here."""
    parts: list[PartOfSpeech] = [word.part for word in words]
    while at < len(parts) and parts[at] == "determiner":
        at += 1
    while at < len(parts):
        joined = parts[at] == "conjunction" and parts[at - 1 : at] == ["adjective"]
        if parts[at] not in ("number", "adjective") and not (
            joined and parts[at + 1 : at + 2] == ["adjective"]
        ):
            break
        at += 1
    return at
