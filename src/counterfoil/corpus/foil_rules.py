"""Captions made false by rule: another noun, another number, another relation (VSE-C).

Shi et al., "Learning Visually-Grounded Semantics from Contrastive Adversarial Samples"
(https://arxiv.org/abs/1806.10348), sections 3.1 to 3.3.

>>> from counterfoil.corpus.sentences import sentence
>>> [edit.on("A dog and two cats.") for edit in numerals(sentence("A dog and two cats."))][:2]
['Two dogs and two cats.', 'Three dogs and two cats.']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal, TypeAlias, final

from counterfoil.corpus.foil_words import (
    NUMBERS,
    article,
    other_prepositions,
    plural,
    singular,
)
from counterfoil.corpus.inflection import inflection
from counterfoil.corpus.phrase_lexicon import BE
from counterfoil.corpus.sentences import Sentence, Word

Kind: TypeAlias = Literal["noun", "numeral", "relation"]
KINDS: tuple[Kind, ...] = ("noun", "numeral", "relation")
LINKS = (",", "with", "and", "or")
BOTH_WAYS = (  # as true the other way round
    "plus", "along with", "together with", "as", "well", "also", "next to", "beside", "near",
    "alongside", "close to", "by",
)  # fmt: skip
ARTICLES = ("a", "an")
Candidates: TypeAlias = Callable[[str], Iterable[str]]


@final
@dataclass(frozen=True, slots=True)
class Change:
    """Other words in one place.

    Attributes:
        start: first character of the old ones.
        stop: the one after their last.
        new: what stands there instead.
    """

    start: int
    stop: int
    new: str


@final
@dataclass(frozen=True, slots=True)
class Edit:
    """What makes a foil of a caption.

    Attributes:
        kind: by which rule.
        changes: from left to right; they do not overlap.
    """

    kind: Kind
    changes: tuple[Change, ...]

    def on(self, text: str) -> str:
        """The foil; it begins with a capital where the caption does."""
        return self.spans(text)[0]

    def spans(self, text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The foil, and where the changed words stand in it."""
        out, at = "", 0
        places: list[tuple[int, int]] = []
        for change in self.changes:
            out += text[at : change.start]
            new = change.new
            if not out.strip() and text[change.start].isupper():
                new = new[:1].upper() + new[1:]
            places.append((len(out), len(out) + len(new)))
            out, at = out + new, change.stop
        return out + text[at:], tuple(places)


def nouns(found: Sentence, candidates: Candidates, *, agree: bool = True) -> Iterator[Edit]:
    """The head of a noun phrase replaced by other nouns.

    Args:
        found: the caption.
        candidates: nouns for a noun.
        agree: only those in the same number, and with the right article; the authors' code takes
            all as they are.
    """
    for first, stop in found.chunks:
        if not all(_plain(word.text) for word in found.words[first:stop]):
            continue
        head = found.words[stop - 1]
        for new in candidates(head.text):
            if not agree:
                yield Edit("noun", (Change(head.start, head.stop, new),))
            elif (inflection(new) == "s") == (inflection(head.text) == "s"):
                yield Edit("noun", (*_led(found.words, stop - 1, new), _instead(head, new)))


def numerals(found: Sentence, *, agree: bool = True) -> Iterator[Edit]:
    """The number of some things replaced by each of 28 number words of another value.

    "a", "an" and "one" are 1. The noun changes between singular and plural with it, the verb does
    not.

    Args:
        found: the caption.
        agree: "a" and "an" where they are right; the authors' code puts either anywhere.

    Departs from the authors' code in: a number that ends the caption is left alone (C2: it loops
    for ever); so are runs of several numbers.
    """
    words = found.words
    for at, word in enumerate(words):
        value = _value(words, at)
        last = None if value is None else _counted(words, at + 1)
        if last is None:
            continue
        noun = words[last]
        for new, other in NUMBERS.items():
            if other == value:
                continue
            form = singular(noun.text) if other == 1 else noun.text
            form = plural(noun.text) if value == 1 else form
            follows = form if last == at + 1 else words[at + 1].text
            if agree and new in ARTICLES and not _fits(words, at, new, follows):
                continue
            more = () if form == noun.text else (_instead(noun, form),)
            yield Edit("numeral", (_instead(word, new), *more))


def swaps(found: Sentence, *, links: Sequence[str] = LINKS + BOTH_WAYS) -> Iterator[Edit]:
    """Two noun phrases that change places.

    Args:
        found: the caption.
        links: words that alone between two phrases make them one thing, or a list; such phrases,
            and those that are linked through others, are not swapped.

    Departs from the authors' code in: a comma links (C1: it is compared with a string that no token
    equals), and so do what is as true the other way round, such as "next to", and several such
    words together, such as ", and".
    """
    group = list(range(len(found.chunks)))
    for at, ((_, end), (begin, _)) in enumerate(pairwise(found.chunks)):
        between = [word.text for word in found.words[end:begin] if word.text not in BE]
        if between and all(word in links for word in between):
            group[at + 1] = group[at]
    for one, other in combinations(range(len(group)), 2):
        if group[one] == group[other]:
            continue
        left, right = (_place(found, chunk) for chunk in (one, other))
        if _lowered(found, left).lower() != _lowered(found, right).lower():
            changes = Change(*left, _lowered(found, right)), Change(*right, _lowered(found, left))
            yield Edit("relation", changes)


def prepositions(found: Sentence, candidates: Candidates = other_prepositions) -> Iterator[Edit]:
    """A preposition replaced by those that say something else.

    Args:
        found: the caption.
        candidates: prepositions for a preposition. The authors' come from 29 groups of tokens that
            their tagger took for prepositions, "toronto" among them; ours are groups of words, and
            words of several, that may be true of the same two things.
    """
    for word in found.words:
        if word.part == "preposition":
            for new in candidates(word.text):
                yield Edit("relation", (_instead(word, new),))


def noun_vocabulary(found: Iterable[Sentence], *, at_least: int) -> tuple[str, ...]:
    """Nouns of captions by frequency, the most frequent first.

    Args:
        found: captions of the training split.
        at_least: how often a noun stands in them.
    """
    counts: dict[str, int] = {}
    for one in found:
        for word in one.words:
            if word.part == "noun" and _plain(word.text):
                counts[word.text] = counts.get(word.text, 0) + 1
    kept = [word for word, count in counts.items() if count >= at_least]
    return tuple(sorted(kept, key=lambda word: (-counts[word], word)))


def _plain(word: str) -> bool:
    return word.isascii() and word.isalpha()


def _instead(word: Word, new: str) -> Change:
    return Change(word.start, word.stop, new)


def _led(words: Sequence[Word], at: int, new: str) -> tuple[Change, ...]:
    """The article before a place, where it becomes another."""
    before = words[at - 1] if at else None
    if before is None or before.text not in ARTICLES or before.text == article(new):
        return ()
    return (_instead(before, article(new)),)


def _value(words: Sequence[Word], at: int) -> int | None:
    """What a number or an article counts; None where it is neither, or one of several."""
    word = words[at]
    if word.part != "number" and word.text not in ARTICLES:
        return None
    around = [*words[max(at - 1, 0) : at], *words[at + 1 : at + 2]]
    if word.part == "number" and any(other.part == "number" for other in around):
        return None
    return int(word.text) if word.text.isdecimal() else NUMBERS.get(word.text)


def _counted(words: Sequence[Word], at: int) -> int | None:
    """The noun that a number before this place counts."""
    while at < len(words) and words[at].part in ("adjective", "conjunction"):
        at += 1
    last = None
    while at < len(words) and words[at].part == "noun":
        last, at = at, at + 1
    return last


def _fits(words: Sequence[Word], at: int, new: str, follows: str) -> bool:
    """Whether an article may stand in a place."""
    led = at > 0 and words[at - 1].part == "determiner"
    return not led and new == article(follows)


def _place(found: Sentence, chunk: int) -> tuple[int, int]:
    first, stop = found.chunks[chunk]
    return found.words[first].start, found.words[stop - 1].stop


def _lowered(found: Sentence, place: tuple[int, int]) -> str:
    """The words in a place, without the capital that begins a sentence."""
    text = found.text[slice(*place)]
    return text if found.text[: place[0]].strip() else text[:1].lower() + text[1:]
