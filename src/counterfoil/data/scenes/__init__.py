"""Rendered scenes: pictures, captions, and the exact truth of any caption about any picture.

Every picture shows two to four coloured shapes on a pale ground; five captions of rising detail
describe it. The contents of a picture are known, and the grammar that wrote the captions also
parses them. So it can be decided whether any caption of the grammar, also an edited one, is true of
any picture: an exact measure of false negatives.

>>> from counterfoil.data.scenes.truth import is_true
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
from counterfoil.data.scenes.render import draw
from counterfoil.data.scenes.truth import CAPTIONS, describe
from counterfoil.data.scenes.world import VERSION, Scene, lay_out, meaning, region_features

SPLITS = ("train", "dev", "test")
_ROWS_PER_SPLIT = 10**9  # more than there are scenes in a split
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

    No two scenes have the same `meaning`, and families stay within their split. The test split is
    the same for every number of training images. Image ids are ``scene-{seed}-{split}-{number}``,
    from which `scene` computes the scene; caption ids add ``#0``, the vaguest, to ``#4``, the
    fullest.

    Args:
        images: number of images of all splits; those not in dev or test are for training.
        seed: of all random choices; part of every image id.
        size: side of the pictures in pixels.
        dev: images of the dev split; a sixth of all if None.
        test: images of the test split; a sixth of all if None.
        features: "regions" adds region features to the pictures.

    Raises:
        ValueError: nothing is left for training, a number is negative, or the features are unknown.
    """
    dev, test = (images // 6 if count is None else count for count in (dev, test))
    if min(dev, test, seed) < 0 or size < 1 or dev + test >= images:
        raise ValueError(
            f"there cannot be {images} scenes with {dev} for dev and {test} for test, seed {seed} "
            f"and {size} pixels; give more images than dev and test take, and no negative number"
        )
    if features not in (None, "regions"):
        raise ValueError(unknown_name(str(features), ["regions"], "a kind of features of scenes"))
    world = _distinct_scenes(seed, {"test": test, "dev": dev, "train": images - dev - test})
    rows = []
    for scene in world:
        _, _, split, number = scene.id.split("-")
        rows.append(SPLITS.index(split) * _ROWS_PER_SPLIT + int(number))
    # Pixels depend on this name and the row alone.
    pictures = DrawnPictures(
        partial(_draw_row, seed, size), rows, f"scenes-{VERSION}-{seed}-{size}px"
    )
    return ImageTextDataset(
        name="scenes",
        image_ids=[scene.id for scene in world],
        text_ids=[f"{scene.id}#{place}" for scene in world for place in range(CAPTIONS)],
        texts=[caption for scene in world for caption in describe(scene)],
        text_to_image=torch.arange(len(world)).repeat_interleave(CAPTIONS),
        splits=[scene.id.split("-")[2] for scene in world],
        pictures=pictures,
        features=region_features(world) if features == "regions" else None,
    )


def scene(image_id: str) -> Scene:
    """The scene of an image of `scenes`."""
    match = _ID.fullmatch(image_id)
    layout = match and lay_out(int(match[1]), match[2], int(match[3]))
    if layout is None or layout.id != image_id:
        raise ValueError(
            f"{image_id!r} is no scene; the images of `scenes` are called as in "
            "'scene-0-train-00042'"
        )
    return layout


def graphs(dataset: ImageTextDataset) -> list[Scene]:
    """(I,) scenes of the images of a data set made by `scenes`, or of a part of it."""
    return [scene(image_id) for image_id in dataset.image_ids]


def _distinct_scenes(seed: int, counts: dict[str, int]) -> list[Scene]:
    """Scenes of each split, no two with one meaning: a number with a repeated one is skipped."""
    meanings: set[object] = set()
    chosen: dict[str, list[Scene]] = {split: [] for split in SPLITS}
    for split, count in counts.items():
        number = 0
        while len(chosen[split]) < count:
            candidate = lay_out(seed, split, number)
            number += 1
            if (key := meaning(candidate)) not in meanings:
                meanings.add(key)
                chosen[split].append(candidate)
    return [scene for split in SPLITS for scene in chosen[split]]


def _draw_row(seed: int, size: int, row: int) -> Image.Image:
    split, number = divmod(row, _ROWS_PER_SPLIT)
    return draw(lay_out(seed, SPLITS[split], number), size)
