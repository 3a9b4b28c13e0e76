"""Truth of captions about scenes, captions of a scene, and foils.

Truth is decided by search: every assignment of things to the phrases of a caption is tried.

>>> from counterfoil.data.scenes.world import Scene, Thing
>>> scene = Scene("an example", (
...     Thing("circle", "red", "big", "plain", 300, 800, 160),
...     Thing("circle", "blue", "small", "striped", 700, 200, 95),
... ))
>>> is_true("A red circle is below a striped circle.", scene)
True
>>> is_true("A circle is above a striped circle.", scene)
False
>>> is_true("One circle.", scene), is_true("A circle.", scene), is_true("Two circles.", scene)
(False, True, True)
>>> is_true("A happy circle.", scene) is None
True
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterfoil.data.scenes import grammar
from counterfoil.data.scenes.grammar import (
    Form,
    Kind,
    Link,
    Parse,
    Phrase,
    Span,
    articles,
    parse,
    write,
)
from counterfoil.data.scenes.world import (
    COLOURS,
    OPPOSITE,
    PATTERNS,
    RELATIONS,
    SHAPES,
    SIZES,
    Dice,
    Scene,
    Thing,
    relates,
)

Group = tuple[int, ...]


def is_true(caption: str, scene: Scene) -> bool | None:
    """Whether a caption is true of a scene; None where the grammar does not cover it."""
    parsed = parse(caption)
    return None if parsed is None else holds(parsed.form, scene)


def holds(form: Form, scene: Scene) -> bool:
    """Whether a claim is true of a scene."""
    choices = [_choices(phrase, scene) for phrase in form.phrases]
    return all(choices) and _found(form, scene, choices, ())


def truths(scenes: Sequence[Scene], captions: Sequence[str]) -> Tensor:
    """(I, T) int8: 1 where the caption is true of the scene, 0 where false, -1 undecided."""
    out = np.zeros((len(scenes), len(captions)), np.int8)
    looks = _looks(scenes)
    for column, caption in enumerate(captions):
        parsed = parse(caption)
        if parsed is None:
            out[:, column] = -1
            continue
        hopeful = np.all([_any_fits(phrase, looks) for phrase in parsed.form.phrases], axis=0)
        for row in hopeful.nonzero()[0].tolist():
            out[row, column] = holds(parsed.form, scenes[row])
    return torch.from_numpy(out)


def _choices(phrase: Phrase, scene: Scene) -> list[Group]:
    """The things that a phrase may stand for."""
    fitting = tuple(place for place, thing in enumerate(scene.things) if phrase.fits(thing))
    if phrase.count is None:
        return [(place,) for place in fitting]
    return [fitting] if len(fitting) == phrase.count else []


def _found(form: Form, scene: Scene, choices: list[list[Group]], chosen: tuple[Group, ...]) -> bool:
    """Whether the phrases after the chosen ones can be given things too."""
    used = {place for group in chosen for place in group}
    if len(chosen) == len(choices):
        return not form.complete or len(used) == len(scene.things)
    return any(
        used.isdisjoint(group)
        and _linked(form.links, scene, (*chosen, group))
        and _found(form, scene, choices, (*chosen, group))
        for group in choices[len(chosen)]
    )


def _linked(links: Sequence[Link], scene: Scene, chosen: tuple[Group, ...]) -> bool:
    """Whether the links between the last of these groups and the others hold."""
    last = len(chosen) - 1
    return all(
        relates(link.relation, scene.things[one], scene.things[other])
        for link in links
        if max(link.subject, link.object) == last
        for one in chosen[link.subject]
        for other in chosen[link.object]
    )


def _looks(scenes: Sequence[Scene]) -> npt.NDArray[np.int8]:
    """(I, 4, 4) size, pattern, colour and shape of each thing by number; -1 for no thing."""
    out = np.full((len(scenes), 4, 4), -1, np.int8)
    for row, scene in enumerate(scenes):
        for place, thing in enumerate(scene.things):
            out[row, place] = [kind.index(v) for kind, v in zip(_KINDS, thing.look)]
    return out


def _any_fits(phrase: Phrase, looks: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """(I,) whether any thing of a scene fits; never wrong in saying no."""
    fits = looks[:, :, 0] >= 0
    said = (phrase.size, phrase.pattern, phrase.colour, phrase.shape)
    for axis, (kind, value) in enumerate(zip(_KINDS, said)):
        if value is not None:
            fits &= looks[:, :, axis] == kind.index(value)
    return np.asarray(fits.any(1), np.bool_)


_KINDS = (SIZES, PATTERNS, COLOURS, SHAPES)


# Five captions of a scene, from a passing remark to a full account.
#
# 0   one or two things, hardly described            "A red circle and a square."
# 1   two things, and perhaps how they stand          "A red circle above a square."
# 2   two things and how they stand                   "A small red circle left of a blue star."
# 3   most things, with one or two relations
# 4   all things with everything there is to say of them


@final
@dataclass(frozen=True, slots=True)
class _Detail:
    """How much a caption says.

    Attributes:
        things: how many things it tells of; 4 is as many as there are.
        links: how many relations.
        colour: how probable it is that a thing's colour is told.
        size: the same for its size.
        pattern: the same for its pattern.
        shape: the same for its shape.
        complete: how probable "nothing else" is where all is told.
    """

    things: tuple[int, ...]
    links: tuple[int, ...]
    colour: float
    size: float
    pattern: float
    shape: float = 1.0
    complete: float = 0.0


DETAILS = (
    _Detail((1, 2, 2), (0,), colour=0.8, size=0.2, pattern=0.2, shape=0.95, complete=0.1),
    _Detail((2,), (0, 1), colour=0.8, size=0.15, pattern=0.15, shape=0.97, complete=0.1),
    _Detail((2,), (1, 1, 1, 2), colour=0.85, size=0.4, pattern=0.4),
    _Detail((3,), (1, 2), colour=1.0, size=0.35, pattern=0.4, complete=0.15),
    _Detail((4,), (2,), colour=1.0, size=0.85, pattern=1.0, complete=0.2),
)
CAPTIONS = len(DETAILS)


def describe(scene: Scene) -> tuple[str, ...]:
    """Five different captions that are true of a scene, the shortest first."""
    dice = Dice(f"captions of {scene.id}")
    told: list[str] = []
    for detail in DETAILS:
        while (caption := write(_claim(scene, detail, dice), dice)) in told:
            pass
        told.append(caption)
    return tuple(told)


def _claim(scene: Scene, detail: _Detail, dice: Dice) -> Form:
    """A true claim of this much detail."""
    while True:
        things = dice.shuffled(scene.things)[: dice.pick(detail.things)]
        groups = _grouped([(_phrase(thing, detail, dice), thing) for thing in things])
        phrases = tuple(_counted(phrase, group, scene, dice) for phrase, group in groups)
        links = _links([group for _, group in groups], dice.pick(detail.links), dice)
        told = sum(len(group) for _, group in groups) == len(scene.things)
        form = Form(phrases, links, complete=told and dice.chance(detail.complete))
        if holds(form, scene):
            return form


def _phrase(thing: Thing, detail: _Detail, dice: Dice) -> Phrase:
    pattern = detail.pattern if thing.pattern != "plain" else detail.pattern / 4
    return Phrase(
        None,
        thing.size if dice.chance(detail.size) else None,
        thing.pattern if dice.chance(pattern) else None,
        thing.colour if dice.chance(detail.colour) else None,
        thing.shape if dice.chance(detail.shape) else None,
    )


def _grouped(told: list[tuple[Phrase, Thing]]) -> list[tuple[Phrase, list[Thing]]]:
    """Things told in the same words are told together."""
    groups: dict[Phrase, list[Thing]] = {}
    for phrase, thing in told:
        groups.setdefault(phrase, []).append(thing)
    return list(groups.items())


def _counted(phrase: Phrase, group: list[Thing], scene: Scene, dice: Dice) -> Phrase:
    """The phrase with a number where it tells of several, and now and then of one."""
    if len(group) > 1:
        return replace(phrase, count=len(group))
    alone = sum(map(phrase.fits, scene.things)) == 1
    return replace(phrase, count=1) if alone and dice.chance(0.04) else phrase


def _links(groups: list[list[Thing]], wanted: int, dice: Dice) -> tuple[Link, ...]:
    """Up to so many true relations that one clause, or one clause each, can tell."""
    chosen: list[Link] = []
    pairs = dice.shuffled(list(combinations(range(len(groups)), 2)))
    for one, other in pairs:
        true = _relations(groups[one], groups[other])
        if len(chosen) < wanted and true:
            both = [relation for relation in true if relation != "next to"][:2]
            if len(both) == wanted == 2 and dice.chance(0.3):
                return tuple(Link(relation, one, other) for relation in both)
            chosen.append(Link(dice.usual(true), one, other))
    return tuple(chosen)


def _relations(ones: list[Thing], others: list[Thing]) -> list[str]:
    """The relations in which each of these stands to each of those, the plainest first."""

    def apart(relation: str) -> int:
        if relation == "next to":
            return 300
        across = relation in ("left of", "right of")
        return min(abs(a.x - b.x) if across else abs(a.y - b.y) for a in ones for b in others)

    true = [r for r in RELATIONS if all(relates(r, a, b) for a in ones for b in others)]
    return sorted(true, key=apart, reverse=True)


# Foils: captions that are false by one detail.

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
            return [(dice.usual(w),) for w in _rest(grammar.SIZE_WORDS, words[0])]
        case "colour":
            return [(dice.usual(w),) for w in _rest(grammar.COLOUR_WORDS, words[0])]
        case "pattern" if words[0] == "with":
            return [("with", dice.usual(w)) for w in _rest(grammar.PATTERN_NOUNS, words[1])]
        case "pattern":
            return [(dice.usual(w),) for w in _rest(grammar.PATTERN_WORDS, words[0])]
        case "object":
            return _other_nouns(words[0], dice)
        case "number":
            return _other_numbers(parsed, span)
    return _other_relations(parsed.form.links, span.place, words, dice)


def _rest(table: dict[str, Words], word: str) -> list[Words]:
    return [words for words in table.values() if word not in words]


def _other_nouns(noun: str, dice: Dice) -> list[Words]:
    shape, plural = grammar.SHAPE_OF[noun]
    if shape is None:
        return []
    return [
        (dice.usual(pairs)[plural],)
        for other, pairs in grammar.NOUNS.items()
        if other not in (None, shape)
    ]


def _other_numbers(parsed: Parse, span: Span) -> list[Words]:
    count = parsed.form.phrases[span.place].count
    if count in (None, 1):  # "one" has no neighbour that the noun's form allows
        return []
    return [grammar.NUMBERS[other][0] for other in (2, 3, 4) if other != count]


def _other_relations(links: tuple[Link, ...], place: int, words: Words, dice: Dice) -> list[Words]:
    link = links[place]
    taken = {link.relation}  # "above and below" would be nonsense rather than false
    for also in links:
        if also is not link and (also.subject, also.object) == (link.subject, link.object):
            taken |= {also.relation, OPPOSITE[also.relation]}
    pronoun = next((w for w in words if w in (*grammar.PRONOUNS, *grammar.SIDES)), None)
    found: list[Words] = []
    for other, wordings in grammar.RELATION_WORDS.items():
        if other in taken:
            continue
        if mirrored := _mirrored(words, other):
            found.append(mirrored)
        elif pronoun is None:
            found.append(dice.usual(wordings))
        else:
            them = pronoun in ("them", "their")
            found.append((*dice.usual(wordings), grammar.PRONOUNS[them]))
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
            grammar.SHAPE_OF[parsed.words[one.start]][1]
            == grammar.SHAPE_OF[parsed.words[other.start]][1]
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
