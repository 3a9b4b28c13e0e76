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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import cast, final

import torch
from torch import Tensor

from counterfoil.data.scenes.grammar import (
    ADJECTIVES,
    NOUNS,
    NUMBERS,
    PATTERN_NOUNS,
    PRONOUNS,
    RELATION_WORDS,
    SHAPE_OF,
    SIDES,
    Form,
    Kind,
    Link,
    Parse,
    Phrase,
    Span,
    Words,
    articles,
    parse,
    write,
)
from counterfoil.data.scenes.world import OPPOSITE, RELATIONS, Dice, Scene, Thing, relates


def is_true(caption: str, scene: Scene) -> bool | None:
    """Return whether a caption is true of a scene; None where the grammar does not cover it."""
    parsed = parse(caption)
    return None if parsed is None else holds(parsed.form, scene)


def holds(form: Form, scene: Scene) -> bool:
    """Return True if a claim is true of a scene."""
    things = scene.things
    if len(form.phrases) > len(things):  # no thing is assigned to two phrases
        return False
    choices = [_choices(phrase, scene) for phrase in form.phrases]
    if not all(choices):
        return False
    for groups in product(*choices):
        places = [place for group in groups for place in group]
        disjoint = len(set(places)) == len(places)
        if not disjoint or (form.complete and len(places) < len(things)):
            continue
        if all(
            relates(link.relation, things[one], things[other])
            for link in form.links
            for one in groups[link.subject]
            for other in groups[link.object]
        ):
            return True
    return False


@final
class Claims:
    """The truth of captions about scenes, asked for some of both at a time.

    Attributes:
        decided: (T,) bool, captions that the grammar covers.
    """

    def __init__(self, scenes: Sequence[Scene], captions: Sequence[str]) -> None:
        parses = [parse(caption) for caption in captions]
        self.decided = torch.tensor([parsed is not None for parsed in parses], dtype=torch.bool)
        self._scenes, self._forms = scenes, [parsed and parsed.form for parsed in parses]
        # most captions speak of things that a scene does not have: each phrase is asked once
        numbers: dict[Phrase, int] = {}
        rows = [
            [numbers.setdefault(phrase, len(numbers)) for phrase in form.phrases] if form else []
            for form in self._forms
        ]
        fits = _have_things(scenes, list(numbers))
        self._fits = torch.cat([fits, torch.ones(len(scenes), 1, dtype=torch.bool)], 1)
        most = max(map(len, rows), default=0)
        padded = [row + [len(numbers)] * (most - len(row)) for row in rows]
        self._phrases = torch.tensor(padded, dtype=torch.long).view(len(captions), most)

    def true(self, images: Tensor, texts: Tensor) -> Tensor:
        """(i, t) bool for (i,) rows of scenes and (t,) rows of captions; False if undecided."""
        fits, possible = self._fits[images], self.decided[texts].expand(len(images), -1).clone()
        for phrases in self._phrases[texts].unbind(1):
            possible &= fits[:, phrases]
        rows, columns = possible.nonzero(as_tuple=True)
        pairs = zip(images[rows].tolist(), texts[columns].tolist(), strict=True)
        held = [holds(cast(Form, self._forms[text]), self._scenes[image]) for image, text in pairs]
        possible[rows, columns] = torch.tensor(held, dtype=torch.bool)
        return possible


def truths(scenes: Sequence[Scene], captions: Sequence[str]) -> Tensor:
    """(I, T) int8: 1 where the caption is true of the scene, 0 where false, -1 undecided."""
    claims = Claims(scenes, captions)
    true = claims.true(torch.arange(len(scenes)), torch.arange(len(captions)))
    return true.to(torch.int8).masked_fill(~claims.decided, -1)


def _have_things(scenes: Sequence[Scene], phrases: Sequence[Phrase]) -> Tensor:
    """(S, P) bool: whether a scene has the things that a phrase speaks of, see `_choices`."""
    # scenes share their looks, so each look is asked about once
    looks: dict[tuple[str, str, str, str], Thing] = {}
    for scene in scenes:
        looks |= {thing.look: thing for thing in scene.things}
    fitting = [[phrase.fits(thing) for phrase in phrases] for thing in looks.values()]
    place = {look: row for row, look in enumerate(looks)}
    has = torch.zeros(len(scenes), len(looks), dtype=torch.float32)
    for row, scene in enumerate(scenes):
        for thing in scene.things:
            has[row, place[thing.look]] += 1
    found = has @ torch.tensor(fitting, dtype=torch.float32).view(len(looks), len(phrases))
    wanted = torch.tensor([float(phrase.count or 0) for phrase in phrases])
    return torch.where(wanted > 0, found == wanted, found > 0)


def _choices(phrase: Phrase, scene: Scene) -> list[tuple[int, ...]]:
    """Groups of things that a phrase may stand for."""
    fitting = tuple(place for place, thing in enumerate(scene.things) if phrase.fits(thing))
    if phrase.count is None:
        return [(place,) for place in fitting]
    return [fitting] if len(fitting) == phrase.count else []


# Five captions of a scene, with increasing detail.
#
# 0   one or two things, few attributes              "A red circle and a square."
# 1   two things, sometimes with a relation           "A red circle above a square."
# 2   two things with one or two relations            "A small red circle left of a blue star."
# 3   most things, with one or two relations
# 4   all things with almost all attributes


@final
@dataclass(frozen=True, slots=True)
class _Detail:
    """Probabilities of the details of a caption."""

    things: tuple[int, ...]  # numbers of things to choose from; 4 means all
    links: tuple[int, ...]  # numbers of relations to choose from
    colour: float  # probability that the colour of a thing is mentioned
    size: float  # the same for its size
    pattern: float  # the same for its pattern
    shape: float = 1.0  # the same for its shape
    complete: float = 0.0  # probability of "nothing else" if all things are mentioned


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
    captions: list[str] = []
    for detail in DETAILS:
        while (caption := write(_claim(scene, detail, dice), dice)) in captions:
            pass
        captions.append(caption)
    return tuple(captions)


def _claim(scene: Scene, detail: _Detail, dice: Dice) -> Form:
    """A true claim of this much detail."""
    while True:
        groups: dict[Phrase, list[Thing]] = {}  # things described by the same phrase
        for thing in dice.shuffled(scene.things)[: dice.pick(detail.things)]:
            groups.setdefault(_phrase(thing, detail, dice), []).append(thing)
        phrases = tuple(_counted(phrase, things, scene, dice) for phrase, things in groups.items())
        links = _links(list(groups.values()), dice.pick(detail.links), dice)
        all_mentioned = sum(map(len, groups.values())) == len(scene.things)
        form = Form(phrases, links, complete=all_mentioned and dice.chance(detail.complete))
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


def _counted(phrase: Phrase, group: list[Thing], scene: Scene, dice: Dice) -> Phrase:
    """The phrase with the number of its things; "one" only sometimes."""
    if len(group) > 1:
        return replace(phrase, count=len(group))
    alone = sum(map(phrase.fits, scene.things)) == 1
    return replace(phrase, count=1) if alone and dice.chance(0.04) else phrase


def _links(groups: list[list[Thing]], wanted: int, dice: Dice) -> tuple[Link, ...]:
    """Up to `wanted` true relations that the grammar can express."""
    chosen: list[Link] = []
    pairs = dice.shuffled(list(combinations(range(len(groups)), 2)))
    for one, other in pairs:
        true = _relations(groups[one], groups[other])
        if len(chosen) < wanted and true:
            relations = [relation for relation in true if relation != "next to"][:2]
            if len(relations) == wanted == 2 and dice.chance(0.3):
                return tuple(Link(relation, one, other) for relation in relations)
            chosen.append(Link(dice.usual(true), one, other))
    return tuple(chosen)


def _relations(ones: list[Thing], others: list[Thing]) -> list[str]:
    """Relations that hold between all of these and all of the others, the clearest first."""

    def apart(relation: str) -> int:
        if relation == "next to":
            return 300
        across = relation in ("left of", "right of")
        return min(abs(a.x - b.x) if across else abs(a.y - b.y) for a in ones for b in others)

    true = [r for r in RELATIONS if all(relates(r, a, b) for a in ones for b in others)]
    return sorted(true, key=apart, reverse=True)


# Foils: captions that are false by one detail.

Edit = tuple[Span, Words]
SWAPPED: tuple[Kind, ...] = ("size", "pattern", "colour", "object")


@final
@dataclass(frozen=True, slots=True)
class Foil:
    """A false caption that differs from its original in one detail."""

    caption: str
    kind: str  # of the changed detail; "swap" if two details of a kind were exchanged
    words: Words
    changed: tuple[int, ...]  # indices of the changed words; a change of "a" to "an" is not counted


def foils(caption: str, scene: Scene, rng: torch.Generator) -> list[Foil]:
    """All captions that differ in one detail and are false of the scene, in random order.

    The first ones differ in kind. A colour, pattern, size, shape, number or relation is replaced,
    or two things exchange one of theirs; wordings are random. The caption itself may be false.
    """
    parsed = parse(caption)
    if parsed is None:
        raise ValueError(
            f"{caption!r} is outside the grammar of scenes, so its foils cannot be judged"
        )
    dice = Dice(f"foils {int(torch.randint(2**62, (), generator=rng))}")
    false: dict[str, Foil] = {}
    for kind, edits in (*_replacements(parsed, dice), *_swaps(parsed)):
        foil = _edited(caption, parsed, kind, edits)
        if is_true(foil.caption, scene) is False:
            false.setdefault(foil.caption, foil)
    ranked, counts = [], Counter[str]()
    for foil in dice.shuffled(list(false.values())):
        ranked.append((counts[foil.kind], foil))
        counts[foil.kind] += 1
    # the first of each kind, then the second of each, and so on
    return [foil for _, foil in sorted(ranked, key=lambda pair: pair[0])]


def foils_by_kind(caption: str, scene: Scene, rng: torch.Generator) -> Iterator[Foil]:
    """The first of the `foils` of each kind."""
    kinds: set[str] = set()
    for foil in foils(caption, scene, rng):
        if foil.kind in kinds:
            break  # the first ones differ in kind
        kinds.add(foil.kind)
        yield foil


def _replacements(parsed: Parse, dice: Dice) -> Iterator[tuple[str, list[Edit]]]:
    for span in parsed.of("size", "pattern", "colour", "object", "number", "relation"):
        for other in _others(parsed, span, dice):
            yield span.kind, [(span, other)]


def _others(parsed: Parse, span: Span, dice: Dice) -> list[Words]:
    """Replacements of a span, one wording for each other meaning."""
    words = parsed.words[span.start : span.stop]
    match span.kind:
        case "pattern" if words[0] == "with":
            return [("with", dice.usual(w)) for w in PATTERN_NOUNS.values() if words[1] not in w]
        case "size" | "colour" | "pattern":
            choices = ADJECTIVES[span.kind].values()
            return [(dice.usual(w),) for w in choices if words[0] not in w]
        case "object":
            shape, plural = SHAPE_OF[words[0]]
            if shape is None:
                return []
            others = [pairs for other, pairs in NOUNS.items() if other not in (None, shape)]
            return [(dice.usual(pairs)[plural],) for pairs in others]
        case "number":
            count = parsed.form.phrases[span.place].count
            # "one" has no neighbour that agrees with the singular noun
            numbers = () if count in (None, 1) else (2, 3, 4)
            return [NUMBERS[other][0] for other in numbers if other != count]
    return _other_relations(parsed.form.links, span.place, words, dice)


def _other_relations(links: tuple[Link, ...], place: int, words: Words, dice: Dice) -> list[Words]:
    link = links[place]
    taken = {link.relation}  # "above and below" would be nonsense rather than false
    for other in links:
        if other is not link and (other.subject, other.object) == (link.subject, link.object):
            taken |= {other.relation, OPPOSITE[other.relation]}
    pronoun = next((w for w in words if w in (*PRONOUNS, *SIDES)), None)
    ending = () if pronoun is None else (PRONOUNS[pronoun in ("them", "their")],)
    return [
        _mirrored(words, relation) or (*dice.usual(wordings), *ending)
        for relation, wordings in RELATION_WORDS.items()
        if relation not in taken
    ]


def _mirrored(words: Words, relation: str) -> Words:
    """Wording of the opposite side, as "to the left of"; () for words without a side."""
    side = {"left of": ("right", "left"), "right of": ("left", "right")}.get(relation)
    if side is None or side[0] not in words:
        return ()
    return tuple(side[1] if word == side[0] else word for word in words)


def _swaps(parsed: Parse) -> Iterator[tuple[str, list[Edit]]]:
    """Exchanges of nouns of one number, or of modifiers of one length."""
    for kind in SWAPPED:
        for one, other in combinations(parsed.of(kind), 2):
            first = parsed.words[one.start : one.stop]
            second = parsed.words[other.start : other.stop]
            if kind == "object":
                alike = SHAPE_OF[first[0]][1] == SHAPE_OF[second[0]][1]
            else:
                alike = len(first) == len(second)
            if alike and first != second:
                yield "swap", [(one, second), (other, first)]


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
        aligned = len(old) == len(new) and any(a == b for a, b in zip(old, new))
        changed += [
            span.start + shift + at for at, word in enumerate(new) if not aligned or word != old[at]
        ]
        shift += len(new) - len(old)
    text = articles(text[0].upper() + text[1:] if caption[0].isupper() else text)
    reparsed = parse(text)
    assert reparsed is not None, text
    return Foil(text, kind, reparsed.words, tuple(changed))
