"""Captions with some tokens exchanged, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PIECE = "##"  # begins a piece that continues a word
BLANKS = ("Ġ", "▁")  # begin a piece that begins a word, where pieces do


def rewritten(text: str, spans: Sequence[tuple[int, int]], new: Mapping[int, str]) -> str:
    """A caption with other tokens in some places; everything else stays as it was written.

    Args:
        text: the caption.
        spans: first character of each of its tokens and the one after its last.
        new: tokens by place, as the tokenizer spells them.

    >>> spans = [(0, 0), (0, 1), (2, 5), (7, 11), (11, 12)]
    >>> rewritten("A dog  runs.", spans, {1: "one", 3: "##fish"})
    'One dogfish.'
    """
    out, at = "", 0
    for place, (start, stop) in enumerate(spans):
        if start == stop:
            continue
        gap, said = text[at:start], text[start:stop]
        if place in new:
            gap, said = _joined(new[place], gap, said, out + gap)
        out, at = out + gap + said, stop
    return out + text[at:]


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
