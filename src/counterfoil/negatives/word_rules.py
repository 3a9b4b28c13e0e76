"""Which captions may be true, by their words alone: the rules of a `Sieve` for captions as text.

On captions that a writer made token by token of whole words, what `Sieve` keeps is kept here.

>>> told = Told(["A dog runs on grass.", "Two dogs run."])
>>> [left_out(rule, told, (("dog", "dogs"),)) for rule in ("captions", "lemmas", "inflection")]
[True, True, True]
>>> left_out("captions", told, (("runs", "running"),)), left_out("lemmas", told, (("", "running"),))
(False, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal, TypeAlias, final

from counterfoil.corpus.words import split
from counterfoil.data.caption_edits import wordnet_synonyms
from counterfoil.data.phrases import inflection, lemma
from counterfoil.negatives.written_store import WrittenFoil

Rule = Literal["captions", "lemmas", "wordnet", "inflection"]
Exchanged: TypeAlias = tuple[tuple[str, str], ...]


@final
class Told:
    """The words of all captions of an image.

    Attributes:
        words: as they stand there, in lower case.
        lemmas: their dictionary forms.
    """

    def __init__(self, captions: Sequence[str]) -> None:
        self.words = frozenset(word for caption in captions for word in split(caption))
        self.lemmas = frozenset(map(lemma, self.words))
        self._wider: frozenset[str] | None = None

    @property
    def wider(self) -> frozenset[str]:
        """Them, their synonyms and wider terms.

        Raises:
            ValueError: WordNet is not installed.
        """
        if self._wider is None:
            self._wider = self.words.union(*map(wordnet_synonyms, self.words))
        return self._wider


def exchanged(foil: WrittenFoil) -> Exchanged:
    """Words that were exchanged, as (old, new); "" where there is none on a side.

    Where a change has more words on one side, they are paired from the last one on.
    """
    found: list[tuple[str, str]] = []
    for change in foil.changed:
        old, new = reversed(split(change.old)), reversed(split(change.new))
        found += [pair for pair in zip_longest(old, new, fillvalue="") if len(set(pair)) > 1]
    return tuple(found)


def written_anew(caption: str) -> Exchanged:
    """All words of a caption that was made of no other."""
    return tuple(("", word) for word in split(caption))


def left_out(rule: Rule, told: Told, words: Exchanged) -> bool:
    """Whether a rule leaves a caption out; see `counterfoil.negatives.candidates.Sieve`.

    Args:
        rule: "captions", "lemmas" and "wordnet": all new words, some form of each, or what some
            form of each is a synonym or a wider term of, occur in the captions of the image;
            "inflection": a new word has another ending than the old one.
        told: those captions.
        words: what was exchanged.

    Raises:
        ValueError: WordNet is not installed.
    """
    new = [word for _, word in words if word]
    if rule == "captions":
        return all(word in told.words for word in new)
    if rule == "lemmas":
        return all(lemma(word) in told.lemmas for word in new)
    if rule == "wordnet":
        return all(word in told.wider or lemma(word) in told.wider for word in new)
    return any(old and word and inflection(old) != inflection(word) for old, word in words)
