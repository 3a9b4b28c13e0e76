"""Features of the images of a data set, found by id wherever they are kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import torch

from counterfoil.corpus.featurefolder import FeatureTable, open_features
from counterfoil.corpus.precomp import is_precomp, read_precomp
from counterfoil.corpus.regions import Features
from counterfoil.files import read_array


def open_table(path: Path) -> FeatureTable:
    """Features kept in a feature folder, a precomp folder, or one `.npy` file.

    Rows of a `.npy` file are in the order of the data set's images.

    Raises:
        ValueError: it is none of these, or it is damaged.
    """
    if path.is_file() and path.suffix == ".npy":
        array = read_array(path, "image features")
        return FeatureTable(None, Features.of(array, where=str(path)))
    if (path / "features.json").exists():
        return open_features(path)
    if is_precomp(path):
        corpus = read_precomp(path)
        assert corpus.features is not None
        return FeatureTable(corpus.image_ids, corpus.features)
    raise ValueError(
        f"{path} holds no image features: looked for features.json beside features.npy, for "
        "train_ims.npy and the like, and for a single .npy file"
    )


def features_of(image_ids: Sequence[str], path: Path) -> Features:
    """The features of these images, in this order.

    Ids are compared as they are; failing that without folder and file ending; failing that by the
    number they end in, as COCO's file names do.

    Raises:
        ValueError: images have no features there.
    """
    table = open_table(path)
    if table.ids is None:
        if len(table.features) != len(image_ids):
            raise ValueError(
                f"{path} has {len(table.features)} rows for {len(image_ids)} images; one row for "
                "each image in the order of the data set is needed, or a folder that names them"
            )
        return table.features
    fewest = list(image_ids)
    for key in (str, _stem, _number):
        rows = _rows(image_ids, table.ids, key)
        lost = [name for name, row in zip(image_ids, rows) if row is None]
        if not lost:
            return table.features.subset(torch.tensor(rows, dtype=torch.long))
        fewest = min(fewest, lost, key=len)
    raise ValueError(
        f"{len(fewest)} of {len(image_ids)} images have no features in {path}, such as "
        f"{fewest[0]!r}; ids there look like {next(iter(table.ids), '')!r}"
    )


def _rows(
    asked: Sequence[str], known: Sequence[str], key: Callable[[str], str | None]
) -> list[int | None]:
    """Row of each id by its key; None where there is none, all None where keys are not unique."""
    keys, wanted = [key(name) for name in known], [key(name) for name in asked]
    if len(set(keys)) < len(keys) or len(set(wanted)) < len(wanted):
        return [None] * len(asked)
    place = {name: row for row, name in enumerate(keys) if name is not None}
    return [None if name is None else place.get(name) for name in wanted]


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


def _number(name: str) -> str | None:
    digits = re.search(r"\d+$", _stem(name))
    return str(int(digits[0])) if digits else None
