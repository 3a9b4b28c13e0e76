"""Phrases by rule: closed classes, endings, neighbours, and a small lexicon.

>>> caption = "Two men in red shirts are riding a small wooden boat next to the shore."
>>> for phrase in Rules().phrases([caption], [""])[0]:
...     print(phrase.kind, phrase.text(caption))
attribute Two
object men
relation in
attribute red
object shirts
relation riding
attribute small
attribute wooden
object boat
relation next to
object shore
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from counterfoil.corpus import phrase_lexicon as lexicon
from counterfoil.corpus.inflection import inflection, lemma
from counterfoil.corpus.phrase_lexicon import Tag
from counterfoil.corpus.phrases import Kind, Phrase, Span

_WORD = re.compile(r"'(?:s|re)\b|n't\b|[^\W_]+?(?=n't\b)|[^\W_]+(?:-[^\W_]+)*|[^\w\s]|_")
_NAMES: dict[Tag, Kind] = {"noun": "object", "attribute": "attribute"}
_BEFORE_NOUN = frozenset({"determiner", "attribute", "preposition"})
_CLOSED: tuple[tuple[frozenset[str], Tag], ...] = (
    (lexicon.DETERMINERS, "determiner"),
    (lexicon.BE, "be"),
    (lexicon.PRONOUNS, "other"),
    (lexicon.OTHER, "other"),
    (lexicon.PREPOSITIONS, "preposition"),
    (lexicon.ADVERBS, "adverb"),
    (lexicon.NUMBERS, "attribute"),
)


@final
@dataclass(frozen=True, slots=True)
class _Piece:
    """A word or several that belong together.

    Attributes:
        words: lower-cased.
        start: first character.
        stop: the one after the last.
    """

    words: tuple[str, ...]
    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True)
class Tagged:
    """A word, or a compound preposition, and its part of speech.

    Attributes:
        text: lower-cased, with single blanks.
        start: its first character.
        stop: the one after its last.
        tag: its part of speech.
    """

    text: str
    start: int
    stop: int
    tag: Tag


@final
class Rules:
    """Finds nouns as objects, adjectives and numbers as attributes, verbs and prepositions as
    relations.

    Nouns side by side are one phrase; every adjective, verb and preposition is one of its own. What
    opens a caption, as "a picture of" does, says nothing of the picture and is none.
    """

    def phrases(self, texts: Sequence[str], ids: Sequence[str]) -> list[tuple[Phrase, ...]]:
        """The phrases of each caption, from left to right; ids do not matter."""
        return [_phrases(text) for text in texts]


def tagged(text: str) -> tuple[Tagged, ...]:
    """The words of a caption with their parts of speech, without what merely opens it.

    >>> [(word.text, word.tag) for word in tagged("A dog sits next to it.")][1:4]
    [('dog', 'noun'), ('sits', 'verb'), ('next to', 'preposition')]
    """
    pieces = _pieces(text)
    return tuple(
        Tagged(" ".join(piece.words), piece.start, piece.stop, tag)
        for piece, tag in zip(pieces, _tags(pieces), strict=True)
    )


def compounds(text: str) -> tuple[int, tuple[Span, ...]]:
    """Where a caption begins after what merely opens it, and its compound prepositions.

    >>> compounds("A picture of a dog next to it.")
    (13, ((19, 26),))
    """
    pieces = _pieces(text)
    long = (p for p in pieces if len(p.words) > 1 and p.words not in lexicon.JOINED)
    return pieces[0].start if pieces else len(text), tuple((p.start, p.stop) for p in long)


def _phrases(text: str) -> tuple[Phrase, ...]:
    pieces = _pieces(text)
    tags = _tags(pieces)
    found: list[Phrase] = []
    at = 0
    while at < len(pieces):
        stop, kind = at + 1, _kind(pieces, tags, at)
        if kind == "object":
            while stop < len(pieces) and tags[stop] == "noun":
                stop += 1
        elif kind == "attribute" and tags[at] == "preposition":
            stop += 1
        if kind is not None:
            found.append(Phrase(kind, ((pieces[at].start, pieces[stop - 1].stop),)))
        at = stop
    return tuple(found)


def _kind(pieces: list[_Piece], tags: list[Tag], at: int) -> Kind | None:
    """What the phrase that begins here says; None where none does."""
    tag, words = tags[at], pieces[at].words
    if tag == "preposition":
        if words == ("with",) and pieces[at + 1 : at + 2]:
            return "attribute" if pieces[at + 1].words[0] in lexicon.PATTERNS else "relation"
        return "relation"
    return "relation" if tag == "verb" else _NAMES.get(tag)


def _pieces(text: str) -> list[_Piece]:
    """Words with their places, without the opening; compound prepositions in one piece."""
    found = [_Piece((m[0].lower(),), *m.span()) for m in _WORD.finditer(text)]
    words = [piece.words[0] for piece in found]
    at = max((len(o) for o in lexicon.OPENINGS if tuple(words[: len(o)]) == o), default=0)
    out: list[_Piece] = []
    while at < len(found):
        choices = lexicon.COMPOUND_BY.get(words[at], ())
        long = max((len(c) for c in choices if tuple(words[at : at + len(c)]) == c), default=1)
        out.append(_Piece(tuple(words[at : at + long]), found[at].start, found[at + long - 1].stop))
        at += long
    return out


def _tags(pieces: list[_Piece]) -> list[Tag]:
    """The part of speech of each piece, from left to right."""
    words = [piece.words[0] if len(piece.words) == 1 else "" for piece in pieces]
    fixed = [_fixed(piece) for piece in pieces]
    tags: list[Tag] = []
    for at, word in enumerate(words):
        after = fixed[at + 1] if at + 1 < len(words) else "other"
        before: Tag = tags[-1] if tags else "determiner"
        following = words[at + 1] if at + 1 < len(words) else ""
        tags.append(_tag(word, fixed[at], before, after, following, words[at - 1] if at else ""))
    return tags


def _fixed(piece: _Piece) -> Tag | None:
    """The part of speech of a word of a closed class; None where it depends."""
    word = piece.words[0]
    if len(piece.words) > 1:
        return "other" if piece.words in lexicon.JOINED else "preposition"
    for known, tag in _CLOSED:
        if word in known:
            return tag
    if word.isdigit():
        return "attribute"
    if not word[0].isalpha():
        return "other"
    return (
        "adverb" if word.endswith("ly") and word not in lexicon.ENDED_LY and len(word) > 4 else None
    )


def _tag(
    word: str, fixed: Tag | None, before: Tag, after: Tag | None, following: str, previous: str
) -> Tag:
    """The part of speech of a word between its neighbours.

    Args:
        word: the word, "" for a compound preposition.
        fixed: what it is in any case, if that is known.
        before: what stands before it.
        after: what stands behind it, None where that depends.
        following: the word behind it.
        previous: the word before it.
    """
    if word in ("one", "ones") and after not in (None, "attribute"):
        return "attribute" if word == "one" and before != "attribute" else "other"
    if word in ("pair", "couple") and following != "of":
        return "noun"
    if word == "back" and before == "determiner":
        return "noun"
    if fixed is not None:
        return fixed
    noun_next = after is None or after == "attribute"
    if word.rpartition("-")[2] in lexicon.ATTRIBUTES:
        return _attribute_or_noun(word, before, noun_next, following)
    ending = inflection(word)
    if ending in ("ing", "ed"):
        return _participle(word, ending, before, noun_next and not _verbal(following))
    if (
        lemma(word) in lexicon.VERBS
        and word not in lexicon.NOUN_S
        and _acts(word, ending, before, after, previous)
    ):
        return "verb"
    return "noun"


def _attribute_or_noun(word: str, before: Tag, noun_next: bool, following: str) -> Tag:
    """Words such as "orange", "square", "top", "baby" are things where no thing follows."""
    if word in lexicon.ALSO_NOUNS and not (noun_next and not _verbal(following)):
        return "noun" if before in _BEFORE_NOUN else "attribute"
    return "attribute"


def _participle(word: str, ending: str, before: Tag, noun_next: bool) -> Tag:
    if word in lexicon.NOUN_ING:
        return "noun"
    if before in ("determiner", "attribute") and noun_next:
        return "attribute"
    if before == "determiner" and ending == "ing":
        return "noun"
    if before == "preposition" and ending == "ed" and noun_next:
        return "attribute"
    return "verb"


def _acts(word: str, ending: str, before: Tag, after: Tag | None, previous: str) -> bool:
    """Whether a word that may be a verb is one here."""
    if before in ("determiner", "attribute", "preposition"):
        return False
    if previous == "to" or before == "be":
        return True
    follows = after in ("determiner", "preposition", "adverb", "other", None, "attribute")
    if ending == "s":
        return before in ("noun", "other", "adverb") and previous not in (",",) and follows
    if before == "verb":
        return False
    plural = inflection(previous) == "s" or previous in ("people", "and", "who", "that", "they")
    return plural and follows and after is not None


def _verbal(word: str) -> bool:
    """Whether a word is most likely a verb wherever it stands."""
    ending = inflection(word)
    if ending == "s":
        return lemma(word) in lexicon.VERBS and word not in lexicon.NOUN_S
    return ending == "ing" and word not in lexicon.NOUN_ING
