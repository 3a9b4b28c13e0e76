"""Whether a caption is true of a scene, decided by trying what its phrases may stand for.

>>> from counterfoil.corpus.scenes.world import Scene, Thing
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

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterfoil.corpus.scenes.form import Form, Link, Phrase
from counterfoil.corpus.scenes.reader import parse
from counterfoil.corpus.scenes.world import COLOURS, PATTERNS, SHAPES, SIZES, Scene, relates

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
