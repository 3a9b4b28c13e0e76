"""Pictures of foils: a scene changed as little as needed, of which the foil is true.

>>> from counterfoil.data.scenes import scene
>>> from counterfoil.data.scenes.truth import is_true
>>> one = scene("scene-7-train-00000")
>>> caption, foil = "A blue triangle and a pink square.", "A blue star and a pink square."
>>> other = foil_scene(caption, foil, one)
>>> [is_true(text, shown) for shown in (one, other) for text in (caption, foil)]
[True, False, False, True]
>>> [str(thing) for thing in set(other.things) - set(one.things)]
['small checked blue star at (235, 819)']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import combinations
from typing import Any

from counterfoil.data.scenes.grammar import Form, Phrase, parse
from counterfoil.data.scenes.truth import holds
from counterfoil.data.scenes.world import (
    KINDS,
    RADII,
    Dice,
    Scene,
    Thing,
    Things,
    is_clear,
    placed,
    somewhere,
)

FEWEST, MOST = 2, 4  # things of a scene
PLACES = 16  # tried for a thing that moves
PAIRS = 30  # first changes that are followed by a second
ANEW = 300  # layouts of all things


def foil_scene(caption: str, foil: str, scene: Scene) -> Scene | None:
    """A scene of which a foil is true and its caption false, changed as little as was found.

    First every single change is tried, those of few attributes first: a thing takes on what the
    foil says, or loses an attribute; two things exchange one; then things move, come or go. Then
    pairs of changes, then all things at new places. The same on every machine.

    Args:
        caption: which the foil was made of.
        foil: see `counterfoil.data.scenes.truth.foils`.
        scene: of the caption; the foil is false of it.

    Returns:
        The scene, named after the given one and both captions; None if none was found.

    Raises:
        ValueError: the caption or the foil is outside the grammar.
    """
    forms: list[Form] = []
    for text in (caption, foil):
        parsed = parse(text)
        if parsed is None:
            raise ValueError(f"{text!r} is outside the grammar of scenes; no picture is known")
        forms.append(parsed.form)
    wrong, true = forms
    name = f"{scene.id}-{sha256(f'{caption} {foil}'.encode()).hexdigest()[:10]}"
    dice = Dice(f"picture {name}")
    for things in _tried(scene.things, true, dice):
        other = replace(scene, id=name, things=things)
        if holds(true, other) and not holds(wrong, other) and _is_clear(things):
            return other
    return None


def _tried(things: Things, form: Form, dice: Dice) -> Iterator[Things]:
    """What a scene may become, from the least changed on; things may overlap."""

    def ordered(made: Iterable[Things]) -> list[Things]:
        """In order of the attributes and places that differ; else in random order."""
        return sorted(dice.shuffled(list(made)), key=lambda new: _apart(new, things))

    looks = ordered(_others(things, form, dice))
    yield from looks
    places = ordered(_moved(things, form, dice))
    yield from places
    once = [*looks, *places]
    twice = []
    for _ in range(PAIRS):
        first = dice.pick(once)
        twice += [*_others(first, form, dice), *_moved(first, form, dice, times=2)]
    yield from ordered(twice)
    bare = replace(form, links=())
    fit = [new for new in (things, *twice) if holds(bare, Scene("", new))]
    for _ in range(ANEW if fit else 0):
        if anew := placed(dice.shuffled(dice.pick(fit)), dice):
            yield anew


def _apart(made: Things, things: Things) -> int:
    """Attributes and places that differ; a thing that comes or goes counts as all of its own."""
    differing = sum(
        [a != b for a, b in zip(one.look, other.look)].count(True)
        + ((one.x, one.y) != (other.x, other.y))
        for one, other in zip(made, things)
    )
    return differing + (len(KINDS) + 1) * abs(len(made) - len(things))


def _others(things: Things, form: Form, dice: Dice) -> Iterator[Things]:
    """The things where one has other attributes, or two have each other's."""
    for at, thing in enumerate(things):
        new = [_told(thing, phrase, dice) for phrase in form.phrases]
        for kind, values in KINDS.items():
            others = [value for value in values if value != getattr(thing, kind)]
            new.append(_with(thing, {kind: dice.pick(others)}, dice))
        yield from ((*things[:at], one, *things[at + 1 :]) for one in new)
    for a, b in combinations(range(len(things)), 2):
        for kind in KINDS:
            one, other = things[a], things[b]
            pair = {
                a: _with(one, {kind: getattr(other, kind)}, dice),
                b: _with(other, {kind: getattr(one, kind)}, dice),
            }
            yield tuple(pair.get(at, thing) for at, thing in enumerate(things))


def _moved(things: Things, form: Form, dice: Dice, times: int = PLACES) -> Iterator[Things]:
    """The things where one is elsewhere, two have changed places, or some came or one went."""
    for at, thing in enumerate(things):
        rest = (*things[:at], *things[at + 1 :])
        for _ in range(times):
            yield (*things[:at], somewhere(thing, rest, dice), *things[at + 1 :])
        if len(rest) >= FEWEST:
            yield rest
    for a, b in combinations(range(len(things)), 2):
        one, other = things[a], things[b]
        pair = {a: replace(one, x=other.x, y=other.y), b: replace(other, x=one.x, y=one.y)}
        yield tuple(pair.get(at, thing) for at, thing in enumerate(things))
    for phrase in form.phrases:
        missing = (phrase.count or 1) - sum(map(phrase.fits, things))
        for _ in range(times if len(things) + max(1, missing) <= MOST else 0):
            more = things
            for _ in range(max(1, missing)):
                more = (*more, somewhere(_told(dice.pick(things), phrase, dice), more, dice))
            yield more


def _told(thing: Thing, phrase: Phrase, dice: Dice) -> Thing:
    """The thing with all that a phrase says."""
    said = {kind: getattr(phrase, kind) for kind in KINDS}
    return _with(thing, {kind: value for kind, value in said.items() if value}, dice)


def _with(thing: Thing, values: dict[str, Any], dice: Dice) -> Thing:
    """The thing with other attributes; its radius is that of its size."""
    if values.get("size", thing.size) != thing.size:
        values["radius"] = dice.between(*RADII[values["size"]])
    return replace(thing, **values)


def _is_clear(things: Things) -> bool:
    return all(is_clear(thing, things[:at]) for at, thing in enumerate(things))
