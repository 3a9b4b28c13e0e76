"""Scenes and claims that the tests of scenes share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations

from hypothesis import strategies as st

from counterfoil.data.scenes.grammar import Form, Link, Phrase
from counterfoil.data.scenes.truth import describe
from counterfoil.data.scenes.world import (
    COLOURS,
    PATTERNS,
    RELATIONS,
    SHAPES,
    SIZES,
    Scene,
    Thing,
    lay_out,
)

HAND_MADE = Scene(
    "by hand",
    (
        Thing("circle", "red", "big", "plain", 250, 250, 170),
        Thing("circle", "blue", "small", "striped", 700, 250, 100),
        Thing("star", "red", "small", "dotted", 250, 560, 100),
        Thing("heart", "black", "small", "plain", 700, 800, 100),
    ),
)


@cache
def all_scenes() -> list[Scene]:
    return [lay_out(3, "train", number) for number in range(600)]


@cache
def all_captions() -> list[tuple[str, ...]]:
    """Of each scene, the vaguest first."""
    return [describe(one) for one in all_scenes()]


def few(values, count):
    """A few values, so that phrases and scenes of small worlds often agree."""
    return st.none() | st.sampled_from(values[:count])


phrases = st.builds(
    Phrase,
    count=st.sampled_from([None, None, None, 1, 2, 3]),
    size=few(SIZES, 2),
    pattern=few(PATTERNS, 2),
    colour=few(COLOURS, 2),
    shape=few(SHAPES, 2),
)


@st.composite
def forms(draw, most=4):
    members = tuple(draw(st.lists(phrases, min_size=1, max_size=most)))
    pairs = list(permutations(range(len(members)), 2))
    chosen: list[Link] = []
    if pairs:
        for one, other in draw(st.lists(st.sampled_from(pairs), max_size=2)):
            chosen.append(Link(draw(st.sampled_from(RELATIONS)), one, other))
    return Form(members, tuple(chosen), draw(st.booleans()))


@st.composite
def small_worlds(draw):
    """Scenes where things often look alike."""
    one = draw(st.sampled_from(all_scenes()))
    things = []
    for thing in one.things:
        look = [draw(st.sampled_from(kind[:2])) for kind in (SHAPES, COLOURS, SIZES, PATTERNS)]
        things.append(type(thing)(*look, thing.x, thing.y, thing.radius))
    return Scene(one.id, tuple(things))


def canonical(form):
    """One form for all orders of mention and both directions of telling a relation."""
    orders = permutations(range(len(form.phrases)))
    return min((_ordered(form, order) for order in orders), key=str)


def _ordered(form, order):
    place = {old: new for new, old in enumerate(order)}
    links = set()
    for link in form.links:
        moved = replace(link, subject=place[link.subject], object=place[link.object])
        links.add(min(moved, moved.turned(), key=str))
    phrases = tuple(form.phrases[old] for old in order)
    return Form(phrases, tuple(sorted(links, key=str)), form.complete)
