"""Captions that are wrong by one detail, and known to be.

>>> from counterfoil.corpus.scenes.world import Scene, Thing
>>> scene = Scene("an example", (
...     Thing("circle", "red", "big", "plain", 300, 800, 160),
...     Thing("star", "blue", "small", "striped", 700, 200, 95),
... ))
>>> rng = torch.Generator().manual_seed(0)
>>> for foil in foils("A red circle left of a blue star.", scene, rng)[:4]:
...     print(foil.kind, foil.caption, [foil.words[at] for at in foil.changed])
colour An orange circle left of a blue star. ['orange']
object A red circle left of a blue square. ['square']
relation A red circle beside a blue star. ['beside']
swap A blue circle left of a red star. ['blue', 'red']
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import final

import torch

from counterfoil.corpus.scenes import lexicon
from counterfoil.corpus.scenes.dice import Dice
from counterfoil.corpus.scenes.form import Link
from counterfoil.corpus.scenes.reader import Kind, Parse, Span, parse
from counterfoil.corpus.scenes.truth import is_true
from counterfoil.corpus.scenes.world import OPPOSITE, Scene
from counterfoil.corpus.scenes.writer import articles

Words = tuple[str, ...]
Edit = tuple[Span, Words]
SWAPPED: tuple[Kind, ...] = ("size", "pattern", "colour", "object")


@final
@dataclass(frozen=True, slots=True)
class Foil:
    """A false caption, one detail away from the one it was made of.

    Attributes:
        caption: the false caption.
        kind: what was changed; "swap" where two details of a kind changed places.
        words: the words of the false caption.
        changed: places of the changed words among them; "a" that became "an" is not counted.
    """

    caption: str
    kind: str
    words: Words
    changed: tuple[int, ...]


def foils(caption: str, scene: Scene, rng: torch.Generator) -> list[Foil]:
    """All captions that say one thing otherwise and are false of the scene, in random order.

    The first ones differ in kind. One colour, pattern, size, shape, number or relation is another
    one, or two things exchange one of theirs. The caption itself need not be true. Wordings are
    chosen at random.

    Raises:
        ValueError: the caption is outside the grammar.
    """
    parsed = parse(caption)
    if parsed is None:
        raise ValueError(
            f"{caption!r} is outside the grammar of scenes, so nothing can be said of its foils"
        )
    dice = Dice(f"foils {int(torch.randint(2**62, (), generator=rng))}")
    found: dict[str, Foil] = {}
    for kind, edits in (*_replacements(parsed, dice), *_swaps(parsed)):
        foil = _edited(caption, parsed, kind, edits)
        if is_true(foil.caption, scene) is False:
            found.setdefault(foil.caption, foil)
    return _varied(dice.shuffled(list(found.values())))


def _varied(shuffled: list[Foil]) -> list[Foil]:
    """The first of each kind, then the second of each, and so on."""
    count: dict[str, int] = {}
    rank: list[int] = []
    for foil in shuffled:
        rank.append(count.setdefault(foil.kind, 0))
        count[foil.kind] += 1
    return [foil for _, _, foil in sorted(zip(rank, range(len(rank)), shuffled))]


def _replacements(parsed: Parse, dice: Dice) -> Iterator[tuple[str, list[Edit]]]:
    for span in parsed.of("size", "pattern", "colour", "object", "number", "relation"):
        for other in _others(parsed, span, dice):
            yield span.kind, [(span, other)]


def _others(parsed: Parse, span: Span, dice: Dice) -> list[Words]:
    """What could stand in the place of these words, one wording for each other meaning."""
    words = parsed.words[span.start : span.stop]
    match span.kind:
        case "size":
            return [(dice.usual(w),) for w in _rest(lexicon.SIZE_WORDS, words[0])]
        case "colour":
            return [(dice.usual(w),) for w in _rest(lexicon.COLOUR_WORDS, words[0])]
        case "pattern" if words[0] == "with":
            return [("with", dice.usual(w)) for w in _rest(lexicon.PATTERN_NOUNS, words[1])]
        case "pattern":
            return [(dice.usual(w),) for w in _rest(lexicon.PATTERN_WORDS, words[0])]
        case "object":
            return _other_nouns(words[0], dice)
        case "number":
            return _other_numbers(parsed, span)
    return _other_relations(parsed.form.links, span.place, words, dice)


def _rest(table: dict[str, Words], word: str) -> list[Words]:
    return [words for words in table.values() if word not in words]


def _other_nouns(noun: str, dice: Dice) -> list[Words]:
    shape, plural = lexicon.SHAPE_OF[noun]
    if shape is None:
        return []
    return [
        (dice.usual(pairs)[plural],)
        for other, pairs in lexicon.NOUNS.items()
        if other not in (None, shape)
    ]


def _other_numbers(parsed: Parse, span: Span) -> list[Words]:
    count = parsed.form.phrases[span.place].count
    if count in (None, 1):  # "one" has no neighbour that the noun's form allows
        return []
    return [lexicon.NUMBERS[other][0] for other in (2, 3, 4) if other != count]


def _other_relations(links: tuple[Link, ...], place: int, words: Words, dice: Dice) -> list[Words]:
    link = links[place]
    taken = {link.relation}  # "above and below" would be nonsense rather than false
    for also in links:
        if also is not link and (also.subject, also.object) == (link.subject, link.object):
            taken |= {also.relation, OPPOSITE[also.relation]}
    pronoun = next((w for w in words if w in (*lexicon.PRONOUNS, *lexicon.SIDES)), None)
    found: list[Words] = []
    for other, wordings in lexicon.RELATION_WORDS.items():
        if other in taken:
            continue
        if mirrored := _mirrored(words, other):
            found.append(mirrored)
        elif pronoun is None:
            found.append(dice.usual(wordings))
        else:
            them = pronoun in ("them", "their")
            found.append((*dice.usual(wordings), lexicon.PRONOUNS[them]))
    return found


def _mirrored(words: Words, other: str) -> Words:
    """The same wording on the other side: "to the left of" for "to the right of"; else nothing."""
    side = {"left of": ("right", "left"), "right of": ("left", "right")}.get(other)
    if side is None or side[0] not in words:
        return ()
    return tuple(side[1] if word == side[0] else word for word in words)


def _swaps(parsed: Parse) -> Iterator[tuple[str, list[Edit]]]:
    for kind in SWAPPED:
        for one, other in combinations(parsed.of(kind), 2):
            first = parsed.words[one.start : one.stop]
            second = parsed.words[other.start : other.stop]
            if first != second and _same_frame(parsed, one, other):
                yield "swap", [(one, second), (other, first)]


def _same_frame(parsed: Parse, one: Span, other: Span) -> bool:
    """Whether each of two spans can stand where the other does."""
    if one.kind == "object":
        return (
            lexicon.SHAPE_OF[parsed.words[one.start]][1]
            == lexicon.SHAPE_OF[parsed.words[other.start]][1]
        )
    return one.stop - one.start == other.stop - other.start


def _edited(caption: str, parsed: Parse, kind: str, edits: list[Edit]) -> Foil:
    """The caption with some spans replaced."""
    places = [match.span() for match in re.finditer(r"\w+(?:-\w+)*|[^\w\s]", caption)]
    assert len(places) == len(parsed.words)
    text, changed, shift = caption, [], 0
    for span, new in reversed(edits):
        start, stop = places[span.start][0], places[span.stop - 1][1]
        text = text[:start] + " ".join(new) + text[stop:]
    for span, new in edits:
        old = parsed.words[span.start : span.stop]
        kept = sum(a == b for a, b in zip(old, new)) if len(old) == len(new) else 0
        changed += [
            span.start + shift + at for at, word in enumerate(new) if not kept or word != old[at]
        ]
        shift += len(new) - len(old)
    text = articles(text[0].upper() + text[1:] if caption[0].isupper() else text)
    reparsed = parse(text)
    assert reparsed is not None, text
    return Foil(text, kind, reparsed.words, tuple(changed))
