"""Several data sets as one, to be trained on together and measured one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import final

import torch
from PIL import Image

from counterfoil.core.config import parse_choice
from counterfoil.core.types import Pairs
from counterfoil.data.dataset import DATASET, ImageTextDataset, canonical_split, check_dataset
from counterfoil.data.images import PictureFiles, Pictures


def concatenate_datasets(
    datasets: Mapping[str, ImageTextDataset], *, weights: Mapping[str, float] | None = None
) -> ImageTextDataset:
    """Make one data set of several with pictures, to train on; see `ImageTextDataset.separate`.

    Ids begin with the name of their set, as in "coco/beach.jpg", and the column "dataset" holds
    that of each image. A split has the images of all sets that have it. A training ranks dev set by
    set and keeps the epoch with the best mean; lists that are mined hold items of all sets.
    Features, vectors of texts and parsed dependencies are left out.

    Args:
        datasets: by name.
        weights: how often an epoch draws each caption of a set, above 0: 2 for twice, 0.5 for a
            random half, anew each epoch; 1 for sets that are not named.

    Raises:
        TypeError: what is given are no data sets or weights by name.
        ValueError: a name or a weight does not fit, a set has no pictures, or two are the same.

    >>> both = concatenate_datasets({"coco": coco, "mine": mine})  # doctest: +SKIP
    """
    if not (isinstance(datasets, Mapping) and all(isinstance(name, str) for name in datasets)):
        raise TypeError("give data sets by name, as in concatenate_datasets({'coco': coco, …})")
    if not isinstance(weights, Mapping | None):
        raise TypeError("give weights by name of the data set, as in weights={'coco': 2}")
    for dataset in datasets.values():
        check_dataset(dataset, "cf.concatenate_datasets({'mine': data, …})")
    every = dict.fromkeys(datasets, 1.0) | dict(weights or {})
    _check(datasets, every)
    parts = list(datasets.values())
    images = list(accumulate(map(len, parts), initial=0))[:-1]
    texts = list(accumulate((len(part.texts) for part in parts), initial=0))[:-1]
    starts = list(zip(parts, images, texts, strict=True))

    def pairs(of: str) -> Pairs | None:
        own = ((getattr(part, of), image, text) for part, image, text in starts)
        moved = [(each.image + image, each.text + text) for each, image, text in own if each]
        return Pairs(*map(torch.cat, zip(*moved, strict=True))) if moved else None

    judged = [(p.extra_weights, p.extra_positives) for p in parts if p.extra_positives]
    given = [torch.ones(len(each.image)) if own is None else own for own, each in judged]
    columns = dict.fromkeys(column for part in parts for column in part.columns)
    return ImageTextDataset(
        name=" + ".join(datasets),
        image_ids=[f"{name}/{each}" for name, part in datasets.items() for each in part.image_ids],
        text_ids=[f"{name}/{each}" for name, part in datasets.items() for each in part.text_ids],
        texts=[text for part in parts for text in part.texts],
        text_to_image=torch.cat(
            [part.text_to_image + start * (part.text_to_image >= 0) for part, start, _ in starts]
        ),
        splits=[canonical_split(split) for part in parts for split in part.splits],
        pictures=_pictures([part.pictures for part in parts if part.pictures is not None]),
        split_name="+".join(dict.fromkeys(part.split_name for part in parts)),
        extra_positives=pairs("extra_positives"),
        extra_weights=torch.cat(given) if given else None,
        ambiguous=pairs("ambiguous"),
        corrections="; ".join(part.corrections for part in parts if part.corrections),
        columns={
            **{c: [v for p in parts for v in p.columns.get(c, [None] * len(p))] for c in columns},
            DATASET: [name for name, part in datasets.items() for _ in part.image_ids],
        },
        positives=parts[0].positives,
        datasets=every,
    )


def _check(datasets: Mapping[str, ImageTextDataset], weights: Mapping[str, float]) -> None:
    """Refuse names, weights and sets that do not fit together."""
    seen: dict[str, str] = {}
    for name, weight in weights.items():
        parse_choice(datasets, name, "one of these data sets")
        if not (isinstance(weight, int | float) and math.isfinite(weight) and weight > 0):
            raise ValueError(
                f"the weight of {name} is {weight!r}; give a number above 0, as 2 to draw each of "
                "its captions twice an epoch, or leave the data set out"
            )
        if (first := seen.setdefault(datasets[name].fingerprint, name)) != name:
            raise ValueError(
                f"{first} and {name} are the same data; give them once, with the weight 2 to draw "
                "each caption twice an epoch"
            )
        if datasets[name].pictures is None:
            raise ValueError(f"{name} has no pictures, which several data sets are read by")
        if not name or "/" in name:
            raise ValueError(f"{name!r} is no name of a data set; give one without a /")
        if DATASET in datasets[name].columns:
            raise ValueError(
                f"{name} has a column {DATASET!r}, where names of data sets are to stand; rename it"
            )
    if len({dataset.positives for dataset in datasets.values()}) != 1:
        raise ValueError("give at least one data set, and all with one kind of `positives`")


def _pictures(parts: Sequence[Pictures]) -> Pictures:
    if all(isinstance(part, PictureFiles) for part in parts):
        return PictureFiles(row for part in parts for row in part.rows)
    return _PicturesOf((part, row) for part in parts for row in range(len(part)))


@final
class _PicturesOf(Pictures):
    """Pictures of several kinds; a row is the pictures of a set and a row of them."""

    def open(self, row: int) -> Image.Image:
        return self._set(row).open(self.rows[row][1])

    def place(self, row: int) -> str:
        return self._set(row).place(self.rows[row][1])

    def fingerprint(self, row: int) -> str:
        return self._set(row).fingerprint(self.rows[row][1])

    def stored(self, row: int) -> Path | bytes | None:
        return self._set(row).stored(self.rows[row][1])

    def byte_count(self, row: int) -> int | None:
        return self._set(row).byte_count(self.rows[row][1])

    def _set(self, row: int) -> Pictures:
        own: Pictures = self.rows[row][0]
        return own
