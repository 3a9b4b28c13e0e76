"""Words of a caption exchanged for others, while all else stays as it was written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from counterfoil.data.caption_edits import ARTICLES, PIECE, TextChange, article, token_text

_QUOTES = ("``", "''")  # as tokenizers of words spell them
_LAST_WORD = re.compile(r"(\w+)\s+$")


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A word of a caption.

    Attributes:
        start: its first character.
        stop: the one after its last.
        tokens: which tokens of the caption it is made of.
    """

    start: int
    stop: int
    tokens: tuple[int, ...]


def places(spans: Sequence[tuple[int, int]], words: Sequence[int] | None) -> list[Place]:
    """The words of a caption, from the tokens it was divided into; special ones are none.

    Args:
        spans: first character of each token and the one after its last.
        words: which word each token is a piece of; None where every token is a word.

    >>> places([(0, 0), (0, 1), (2, 6), (6, 9), (0, 0)], [-1, 0, 1, 1, -1])
    [Place(start=0, stop=1, tokens=(1,)), Place(start=2, stop=9, tokens=(2, 3))]
    """
    found: dict[int, Place] = {}
    for token, (start, stop) in enumerate(spans):
        if start == stop:
            continue
        word = token if words is None else words[token]
        before = found.get(word)
        if before is None:
            found[word] = Place(start, stop, (token,))
        else:
            found[word] = Place(before.start, stop, (*before.tokens, token))
    return list(found.values())


def lettered(text: str, words: Sequence[Place]) -> list[Place]:
    """Those of a caption's words that have a letter or a digit, so that punctuation is none.

    >>> lettered("9 dogs!", [Place(0, 1, (0,)), Place(2, 6, (1,)), Place(6, 7, (2,))])
    [Place(start=0, stop=1, tokens=(0,)), Place(start=2, stop=6, tokens=(1,))]
    """
    return [word for word in words if any(map(str.isalnum, text[word.start : word.stop]))]


def said(tokens: Sequence[str], old: str) -> str:
    """What tokens say in the place of a word, with its capitals.

    Args:
        tokens: as the tokenizer spells them; the first begins a word.
        old: the word.

    >>> said(["sk", "##ate", "board"], "Surf"), said(["dog"], "CAT"), said(["dog"], "cat")
    ('Skate board', 'DOG', 'dog')
    """
    out = ""
    for token in tokens:
        text = '"' if token in _QUOTES else token_text(token)
        out += text if not out or token.startswith(PIECE) else f" {text}"
    if len(old) > 1 and old.isupper():
        return out.upper()
    return out[:1].upper() + out[1:] if old[:1].isupper() else out


def exchanged(text: str, changes: Sequence[TextChange]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A caption with some words exchanged, and where the new ones stand in it.

    An "a" or "an" before a new word becomes the other where that wants it, and is one of the new
    ones then. Words that were written as one are written apart where letters would meet.

    Args:
        text: the caption.
        changes: from left to right; they do not overlap.

    >>> new, spans = exchanged("A red umbrella, cannot fly.", [TextChange(2, 5, "orange"),
    ...     TextChange(19, 22, "ever")])
    >>> new, [new[start:stop] for start, stop in spans]
    ('An orange umbrella, can ever fly.', ['An', 'orange', 'ever'])
    """
    out, at = "", 0
    found: list[tuple[int, int]] = []
    for change in _agreeing(text, changes):
        out += _apart(out, text[at : change.start])
        new = _apart(out, change.new)
        out, at = out + new, change.stop
        found.append((len(out) - len(change.new), len(out)))
    return out + (_apart(out, text[at:]) if found else text[at:]), tuple(found)


def _agreeing(text: str, changes: Sequence[TextChange]) -> list[TextChange]:
    """The changes, and those of articles before them that they ask for."""
    out: list[TextChange] = []
    for change in changes:
        before = _LAST_WORD.search(text, out[-1].stop if out else 0, change.start)
        word = before[1] if before else ""
        wanted = article(change.new.lower())
        wrong = word.lower() in ARTICLES and word.lower() != wanted
        if before and wrong and change.new[:1].isalpha():
            out.append(TextChange(before.start(1), before.end(1), said([wanted], word)))
        out.append(change)
    return out


def _apart(before: str, after: str) -> str:
    """What follows, with a blank before it where letters would meet; "n't" clings to its verb."""
    meets = before[-1:].isalnum() and after[:1].isalnum() and not after.startswith("n't")
    return f" {after}" if meets else after
