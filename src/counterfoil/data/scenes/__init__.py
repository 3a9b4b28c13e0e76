"""Rendered scenes: pictures, captions, and the truth about them.

Every picture shows two to four coloured shapes on a pale ground; five captions of rising detail
describe it. What is in a picture is known, and the grammar that wrote the captions reads them back,
so that for any caption of the grammar, also with words exchanged, one can *decide* whether it is
true of any picture. That is the exact yardstick for false negatives.

>>> corpus = scenes(images=40, seed=7)
>>> corpus.split_names, corpus.image_ids[0], len(corpus.texts)
(('train', 'dev', 'test'), 'scene-7-train-00000', 200)
>>> print(graphs(corpus)[0])
scene-7-train-00000
  small checked pink square at (481, 831)
  small checked blue triangle at (235, 819)
  big dotted yellow diamond at (403, 447)
  big dotted blue square at (793, 455)
>>> for caption in corpus.texts[:5]:
...     print(caption)
A blue triangle and a pink square.
A diamond and a square.
The picture shows a checkered triangle below and to the left of a large diamond.
An image of a yellow rhombus to the left of a big blue square and above a pink square.
We see a small pink square with checks below and to the left of a big blue square with dots, a \
large dotted yellow diamond, and also a small blue triangle with checks.
>>> is_true(corpus.texts[0], graphs(corpus)[0])
True
"""

from __future__ import annotations

import re
from functools import partial
from typing import Literal

import torch
from PIL import Image

from counterfoil.core.config import unknown_name
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import DrawnPictures
from counterfoil.data.scenes.grammar import Form, Link, Parse, Phrase, Span, parse
from counterfoil.data.scenes.render import draw
from counterfoil.data.scenes.truth import CAPTIONS, Foil, describe, foils, holds, is_true, truths
from counterfoil.data.scenes.world import (
    VERSION,
    Scene,
    Thing,
    lay_out,
    meaning,
    region_features,
    relates,
)

__all__ = [
    "Foil",
    "Form",
    "Link",
    "Parse",
    "Phrase",
    "Scene",
    "Span",
    "Thing",
    "describe",
    "draw",
    "foils",
    "graphs",
    "holds",
    "is_true",
    "meaning",
    "parse",
    "region_features",
    "relates",
    "scene",
    "scenes",
    "truths",
]

SPLITS = ("train", "dev", "test")
_MANY = 10**9  # more than there are numbers in a split
_ID = re.compile(r"scene-([0-9]{1,30})-(train|dev|test)-([0-9]{5,9})")


def scenes(
    *,
    images: int = 3000,
    seed: int = 0,
    size: int = 64,
    dev: int | None = None,
    test: int | None = None,
    features: Literal["regions"] | None = None,
) -> ImageTextDataset:
    """A data set of rendered scenes with five captions each.

    No two scenes of a data set have the same `meaning`, and families stay within their split. The
    test split is the same for every number of training images. An image is called
    ``scene-{seed}-{split}-{number}``, which is all that `scene` needs to make it again; its
    captions are called as it is with ``#0``, the vaguest, to ``#4``, the fullest.

    Args:
        images: how many in all; what is not dev or test is for training.
        seed: another seed, another world; it is part of every image id.
        size: side of the pictures in pixels.
        dev: images to choose models with; a sixth of all when None.
        test: images to report on; a sixth of all when None.
        features: "regions" adds region features beside the pictures.

    Raises:
        ValueError: nothing is left for training, a number is negative, or the features are unknown.
    """
    dev, test = (images // 6 if given is None else given for given in (dev, test))
    _check(images, seed, size, dev, test, features)
    found = _collect(seed, {"test": test, "dev": dev, "train": images - dev - test})
    told = [describe(one) for one in found]
    return ImageTextDataset(
        name="scenes",
        image_ids=[one.id for one in found],
        text_ids=[f"{one.id}#{place}" for one in found for place in range(CAPTIONS)],
        texts=[caption for captions in told for caption in captions],
        text_to_image=torch.arange(len(found)).repeat_interleave(CAPTIONS),
        splits=[one.id.split("-")[2] for one in found],
        pictures=_pictures(seed, found, size),
        features=region_features(found) if features == "regions" else None,
    )


def scene(image_id: str) -> Scene:
    """The scene that an image of `scenes` shows.

    Raises:
        ValueError: this is no image id of `scenes`.
    """
    match = _ID.fullmatch(image_id)
    found = match and lay_out(int(match[1]), match[2], int(match[3]))
    if found is None or found.id != image_id:
        raise ValueError(
            f"{image_id!r} is no scene; the images of `scenes` are called as in "
            "'scene-0-train-00042'"
        )
    return found


def graphs(dataset: ImageTextDataset) -> list[Scene]:
    """(I,) what is really in the pictures of a data set made by `scenes`, or of a part of it.

    Raises:
        ValueError: the data set has images that are no scenes.
    """
    return [scene(image_id) for image_id in dataset.image_ids]


def _check(images: int, seed: int, size: int, dev: int, test: int, features: str | None) -> None:
    if min(dev, test, seed) < 0 or size < 1 or dev + test >= images:
        raise ValueError(
            f"{images} scenes with {dev} for dev and {test} for test, seed {seed} and "
            f"{size} pixels were asked for; give more images than dev and test take, and no "
            "negative number"
        )
    if features not in (None, "regions"):
        raise ValueError(unknown_name(str(features), ["regions"], "a kind of features of scenes"))


def _collect(seed: int, wanted: dict[str, int]) -> list[Scene]:
    """So many scenes of each split, none told like another; a number is passed over if it is."""
    seen: set[object] = set()
    found: dict[str, list[Scene]] = {split: [] for split in SPLITS}
    for split, count in wanted.items():
        number = 0
        while len(found[split]) < count:
            one = lay_out(seed, split, number)
            number += 1
            if (told := meaning(one)) not in seen:
                seen.add(told)
                found[split].append(one)
    return [one for split in SPLITS for one in found[split]]


def _pictures(seed: int, found: list[Scene], size: int) -> DrawnPictures:
    """Pictures drawn when asked for; everything that pixels depend on is in name and row."""
    rows = []
    for one in found:
        _, _, split, number = one.id.split("-")
        rows.append(SPLITS.index(split) * _MANY + int(number))
    return DrawnPictures(partial(_drawn, seed, size), rows, f"scenes-{VERSION}-{seed}-{size}px")


def _drawn(seed: int, size: int, row: int) -> Image.Image:
    split, number = divmod(row, _MANY)
    return draw(lay_out(seed, SPLITS[split], number), size)
