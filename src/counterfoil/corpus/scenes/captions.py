"""Five captions of a scene, from a passing remark to a full account.

0   one or two things, hardly described            "A red circle and a square."
1   two things, and perhaps how they stand          "A red circle above a square."
2   two things and how they stand                   "A small red circle left of a blue star."
3   most things, with one or two relations
4   all things with everything there is to say of them
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import final

from counterfoil.corpus.scenes.dice import Dice
from counterfoil.corpus.scenes.form import Form, Link, Phrase
from counterfoil.corpus.scenes.truth import holds
from counterfoil.corpus.scenes.world import RELATIONS, Scene, Thing, relates
from counterfoil.corpus.scenes.writer import write


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
