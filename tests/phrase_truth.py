"""Precision and recall of a parser of phrases on `scenes`, where the truth is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from counterfoil.corpus.phrases import KINDS, Agreement, Kind, Parser, Phrase, agreement
from counterfoil.corpus.scenes.lexicon import PRONOUNS
from counterfoil.corpus.scenes.reader import parse
from counterfoil.corpus.words import spans

_KINDS: dict[str, Kind] = {
    "object": "object",
    "number": "attribute",
    "size": "attribute",
    "pattern": "attribute",
    "colour": "attribute",
    "relation": "relation",
}


def true_phrases(caption: str) -> tuple[Phrase, ...] | None:
    """The phrases of a caption of `scenes`, from left to right; None outside its grammar.

    The pronoun of a relation, as in "above it", is not part of it.
    """
    parsed = parse(caption)
    if parsed is None:
        return None
    places, found = spans(caption), []
    for span in parsed.spans:
        stop = span.stop - (span.kind == "relation" and parsed.words[span.stop - 1] in PRONOUNS)
        if span.kind in _KINDS:
            where = places[span.start][0], places[stop - 1][1]
            found.append(Phrase(_KINDS[span.kind], (where,)))
    return tuple(found)


def measured(parser: Parser, captions: Sequence[str]) -> Mapping[Kind | None, Agreement]:
    """Agreement of found phrases with the true ones, by kind and, under None, over all.

    Args:
        parser: the parser.
        captions: of `scenes`; those outside its grammar are left out.
    """
    pairs = [(text, true) for text in captions if (true := true_phrases(text)) is not None]
    texts = [text for text, _ in pairs]
    found, wanted = parser.phrases(texts, texts), [true for _, true in pairs]
    return {kind: agreement(found, wanted, kind) for kind in (None, *KINDS)}
