"""Captions with some tokens exchanged, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

Span = tuple[int, int]

PIECE = "##"  # begins a piece that continues a word
BLANKS = ("Ġ", "▁")  # begin a piece that begins a word, where pieces do


@final
@dataclass(frozen=True, slots=True)
class Rewriting:
    """A caption with other words in some places.

    Attributes:
        text: what it is now.
        changes: from left to right, where words stood in the caption and where others stand now;
            whole words, even where only a piece of one is new. All else is as it was.
    """

    text: str
    changes: tuple[tuple[Span, Span], ...]


def rewritten(text: str, spans: Sequence[Span], new: Mapping[int, str]) -> Rewriting:
    """A caption with other tokens in some places; everything else stays as it was written.

    Args:
        text: the caption.
        spans: first character of each of its tokens and the one after its last.
        new: tokens by place, as the tokenizer spells them.

    >>> spans = [(0, 0), (0, 1), (2, 5), (7, 11), (11, 12)]
    >>> rewritten("A dog  runs.", spans, {1: "one", 3: "##fish"})
    Rewriting(text='One dogfish.', changes=(((0, 1), (0, 3)), ((2, 11), (4, 11))))
    """
    out, at = "", 0
    runs: list[tuple[Span, Span]] = []
    for place, (start, stop) in enumerate(spans):
        if start == stop:
            continue
        gap, said = text[at:start], text[start:stop]
        if place in new:
            gap, said = _joined(new[place], gap, said, out + gap)
            same = len(gap) if gap == text[at:start] else 0
            runs.append(((at + same, stop), (len(out) + same, len(out + gap + said))))
        out, at = out + gap + said, stop
    out += text[at:]
    return Rewriting(out, _whole(text, out, runs))


def _whole(text: str, out: str, runs: Iterable[tuple[Span, Span]]) -> tuple[tuple[Span, Span], ...]:
    """Changed runs of characters, widened to whole words; those that changed nothing are dropped.

    Args:
        text: what it was.
        out: what it is now; outside of the runs both are alike.
        runs: where they are not, from left to right.
    """
    found: list[tuple[Span, Span]] = []
    for (start, stop), (begin, end) in runs:
        while start and text[start - 1].isalnum() and _goes_on(text[start:stop], out[begin:end]):
            if found and found[-1][0][1] == start:
                (start, _), (begin, _) = found.pop()
            else:
                start, begin = start - 1, begin - 1
        found.append(((start, stop), (begin, end)))
    found.reverse()
    left: list[tuple[Span, Span]] = []
    for (start, stop), (begin, end) in found:
        before = left[-1][0][0] if left else len(text)
        while stop < before and text[stop].isalnum() and _goes_on(text[stop - 1], out[end - 1]):
            stop, end = stop + 1, end + 1
        left.append(((start, stop), (begin, end)))
    return tuple(run for run in reversed(left) if text[slice(*run[0])] != out[slice(*run[1])])


def _goes_on(*words: str) -> bool:
    """Whether any of them begins with a letter or digit, or with a gap that has been closed."""
    return any(word[:1].isalnum() or word[:1].isspace() for word in words)


def plain(token: str) -> str:
    """The letters of a token, without the signs that say where a word begins or goes on.

    >>> plain("##ing"), plain("Ġdog"), plain("cat</w>")
    ('ing', 'dog', 'cat')
    """
    token = token.removesuffix("</w>").removeprefix(PIECE)
    for blank in BLANKS:
        token = token.removeprefix(blank)
    return token


def _joined(token: str, gap: str, old: str, before: str) -> tuple[str, str]:
    """What stands before a new token, and the token."""
    said = plain(token)
    if not before.strip() and old[:1].isupper():
        said = said[:1].upper() + said[1:]
    if token.startswith(PIECE):
        return "", said
    return gap or (" " if said[:1].isalnum() and before[-1:].isalnum() else ""), said
