"""Words that are true wherever a word is, from WordNet through nltk."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

STEPS = 2  # how far up a wider term may be


def wider(word: str) -> frozenset[str]:
    """Synonyms of a lower-cased word and the terms up to two steps wider, itself among them.

    Of the senses of a word only the most frequent one of each part of speech counts.

    Raises:
        ValueError: nltk or its WordNet is not installed.
    """
    net, found = _wordnet(), {word}
    for kind in "nvar":
        level = net.synsets(word, pos=kind)[:1]
        for _ in range(STEPS + 1):
            found |= {name.lower() for sense in level for name in sense.lemma_names()}
            level = [above for sense in level for above in sense.hypernyms()]
    return frozenset(name for name in found if "_" not in name)


@cache
def _wordnet() -> Any:
    try:
        wordnet: Any = import_module("nltk.corpus").wordnet
        wordnet.synsets("dog")
    except (ImportError, LookupError, OSError):  # OSError: files of it are missing
        raise ValueError(
            "the rule 'wordnet' needs nltk and its WordNet: pip install nltk, then python -m "
            "nltk.downloader wordnet; the rule 'lemmas' needs nothing"
        ) from None
    return wordnet
