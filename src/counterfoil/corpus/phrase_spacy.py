"""Phrases by spaCy's tagger, where spaCy and one of its models are installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, final

from counterfoil.corpus.phrase_rules import compounds
from counterfoil.corpus.phrases import Kind, Phrase

_KINDS: dict[str, Kind] = {
    "NOUN": "object",
    "PROPN": "object",
    "ADJ": "attribute",
    "NUM": "attribute",
    "VERB": "relation",
    "ADP": "relation",
}


@final
class Spacy:
    """Nouns are objects, adjectives and numbers attributes, verbs and prepositions relations.

    As by `Rules`, compound prepositions such as "next to" are one phrase, and what opens a caption
    is none.

    Args:
        model: name of an installed spaCy model.

    Raises:
        ValueError: spaCy or the model is not installed.
    """

    def __init__(self, *, model: str = "en_core_web_sm") -> None:
        self.model = model
        self._read = _loaded(model)

    def phrases(self, texts: Sequence[str], ids: Sequence[str]) -> list[tuple[Phrase, ...]]:
        """The phrases of each caption, from left to right; ids do not matter."""
        return [_phrases(document) for document in self._read.pipe(list(texts))]


def _phrases(document: Any) -> tuple[Phrase, ...]:
    begin, long = compounds(document.text)
    found: list[Phrase] = []
    for token in document:
        start, stop = token.idx, token.idx + len(token.text)
        inside = next((span for span in long if span[0] <= start < span[1]), None)
        kind = _KINDS.get(token.pos_)
        if inside is not None:
            kind, (start, stop) = "relation", inside
        if kind is None or start < begin or (inside is not None and token.idx > start):
            continue
        beside = found and kind == "object" == found[-1].kind
        if beside and document.text[found[-1].spans[0][1] : start].isspace():
            start = found.pop().spans[0][0]
        found.append(Phrase(kind, ((start, stop),)))
    return tuple(found)


def _loaded(model: str) -> Any:
    try:
        spacy: Any = import_module("spacy")
    except ImportError:
        raise ValueError(
            "the parser 'spacy' needs spaCy: pip install spacy; the parser 'rules' needs nothing"
        ) from None
    try:
        return spacy.load(model, disable=["parser", "lemmatizer", "ner"])
    except OSError:
        raise ValueError(
            f"the spaCy model {model!r} is not installed: python -m spacy download {model}; the "
            "parser 'rules' needs nothing"
        ) from None
