"""Phrases that another parser has written down, as SPICE and SGAE do.

A JSON mapping from the id of each caption to its graph, in one of three forms:

    {"7#0": [{"kind": "object", "spans": [[2, 5]]}, ...]}            characters
    {"7#0": [["man"], ["man", "tall"], ["man", "ride", "horse"]]}    SPICE's tuples
    {"7#0": {"object": [...], "subject": [...], "rela": [...],       SGAE's lists, an attribute
             "attribute": [["node:man", "attr:tall"], ...]}}         with or without prefixes

SPICE and SGAE name things by their dictionary forms; they are looked for among the caption's words
by theirs, and what is not found is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from counterfoil.corpus.inflection import lemma
from counterfoil.corpus.phrases import KINDS, Kind, Phrase
from counterfoil.corpus.words import spans, split
from counterfoil.files import read_json


@final
class Stored:
    """Phrases from a file.

    Args:
        path: the file.

    Raises:
        ValueError: it is missing or has another form.
    """

    def __init__(self, *, path: str) -> None:
        plain = read_json(Path(path), "phrases of captions")
        if not isinstance(plain, dict):
            raise ValueError(f"{path} holds no phrases: a mapping from caption ids is needed")
        self.path, self._graphs = path, plain

    def phrases(self, texts: Sequence[str], ids: Sequence[str]) -> list[tuple[Phrase, ...]]:
        """The phrases of each caption.

        Raises:
            ValueError: a caption has none in the file, or they have another form.
        """
        return [self._of(text, name) for text, name in zip(texts, ids, strict=True)]

    def _of(self, text: str, name: str) -> tuple[Phrase, ...]:
        if name not in self._graphs:
            raise ValueError(
                f"{self.path} has no phrases of caption {name!r}; parse all captions of the corpus"
            )
        graph = self._graphs[name]
        try:
            if isinstance(graph, list) and all(_is_given(one) for one in graph):
                return tuple(_given(one, len(text)) for one in graph)
            return tuple(
                Phrase(kind, found)
                for kind, words in dict.fromkeys(_named(graph))
                if (found := _found(words, text))
            )
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{self.path}: the phrases of caption {name!r} cannot be read: {error!r}"
            ) from error


def _is_given(plain: Any) -> bool:
    return isinstance(plain, dict) and "kind" in plain


def _given(plain: Mapping[str, Any], length: int) -> Phrase:
    kind, runs = plain["kind"], tuple((int(start), int(stop)) for start, stop in plain["spans"])
    if kind not in KINDS or not runs or not all(0 <= a < b <= length for a, b in runs):
        raise ValueError(f"{plain} is no phrase of a caption of {length} characters")
    return Phrase(kind, runs)


def _named(graph: Any) -> Iterator[tuple[Kind, str]]:
    """Kind and dictionary form of everything in a graph of tuples or lists."""
    if isinstance(graph, dict):
        for one in (*graph.get("subject", ()), *graph.get("object", ())):
            yield "object", _bare(one)
        for one in graph.get("rela", ()):
            yield "relation", _bare(one)
        for pair in graph.get("attribute", ()):
            thing, *said = [pair] if isinstance(pair, str) else pair
            yield "object", _bare(thing)
            yield from (("attribute", _bare(one)) for one in said)
        return
    for one in graph:
        words = one["tuple"] if isinstance(one, dict) else one
        if not 1 <= len(words) <= 3:
            raise ValueError(f"{words} is no tuple of one, two or three names")
        yield "object", words[0]
        if len(words) == 2:
            yield "attribute", words[1]
        if len(words) == 3:
            yield "relation", words[1]
            yield "object", words[2]


def _bare(name: str) -> str:
    return name.removeprefix("node:").removeprefix("attr:").removeprefix("rela:")


def _found(name: str, text: str) -> tuple[tuple[int, int], ...]:
    """Where the words of a name first stand side by side; nothing where they do not."""
    wanted = [lemma(word) for word in split(name)]
    words, places = [lemma(word) for word in split(text)], spans(text)
    for at in range(len(words) - len(wanted) + 1):
        if wanted and words[at : at + len(wanted)] == wanted:
            return ((places[at][0], places[at + len(wanted) - 1][1]),)
    return ()
