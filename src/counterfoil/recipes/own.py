"""Recipes for a user's own data: any host by itself, or taught by others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from counterfoil.recipes import bases, members, modern, ndgl, online, photos, tags_own
from counterfoil.recipes.measures import Evaluate
from counterfoil.recipes.profiles import Dataset
from counterfoil.recipes.recipe import Recipe, Stage
from counterfoil.spec import unknown

TAUGHT = "ndgl/"


def recipe(name: str, *, pixels: bool, teachers: Sequence[str] = ()) -> Recipe:
    """Train a host and measure it on the test split as it is.

    Args:
        name: a host, or ``ndgl/HOST`` for one that is taught: by two of its kind, trained before;
            on photos also ViLT, by itself or with captions that it writes, and a text tower beside
            a frozen MobileNetV2, by itself or with negatives that it mines.
        pixels: whether there are no features, so that pictures are looked at; what is for photos
            looks at them in any case.
        teachers: saved models that teach instead.

    Raises:
        ValueError: no such host, or teachers of one that is not taught.
    """
    like: Dataset = "scenes" if pixels else "flickr8k"
    if teachers and not name.startswith(TAUGHT):
        raise ValueError(f"{name!r} learns from no teachers; name {TAUGHT + name!r} to have it do")
    for host in members.HOSTS:
        if name == host:
            return online.own(host, pixels=pixels)
    for written in tags_own.NAMES:
        if name == written:
            return tags_own.own(written)
    for photo in photos.NAMES:
        if name == photo:
            return photos.own(photo)
    for base in modern.HOSTS:
        if name == base and like in modern.sets(base):
            return _whole(bases.recipe(base, like), name)
    for student in ndgl.HOSTS:
        if name == TAUGHT + student and like in ndgl.sets(student):
            return _whole(ndgl.recipe(student, like, saved=tuple(teachers)), name)
    raise ValueError(unknown(name, known(like), "a model to train"))


def known(like: Dataset) -> list[str]:
    """What can be trained where data are like these."""
    hosts = [host for host in modern.HOSTS if like in modern.sets(host)]
    taught = [TAUGHT + host for host in ndgl.HOSTS if like in ndgl.sets(host)]
    seeing = (*tags_own.NAMES, *photos.NAMES) if like == "scenes" else ()
    return [*members.HOSTS, *hosts, *taught, *seeing]


def _whole(found: Recipe, name: str) -> Recipe:
    stages: list[Stage] = [
        replace(stage, protocol="whole") if isinstance(stage, Evaluate) else stage
        for stage in found.stages
    ]
    about = found.about.split("; ")[-1]
    return replace(found, name=f"{name}-own", stages=tuple(stages), about=f"{about}, own data")
