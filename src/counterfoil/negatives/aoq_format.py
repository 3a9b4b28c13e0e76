"""Lists in the files that AOQ's released code reads and writes.

``i2t_<data>.npy`` (n, 2000) and ``t2i_<data>.npy`` (5n, 400), int32, most similar first; rows are
those of the training split, whose captions 5i to 5i+4 describe image i.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterfoil.core.io import read_array, write_array
from counterfoil.data.dataset import Relation
from counterfoil.negatives.store import HardNegativeLists

CAPTIONS = 5
READ = (300, 60)  # how many texts and images the released training code reads of the lists


def aoq_paths(folder: Path, data: str) -> tuple[Path, Path]:
    """The file of texts by image and that of images by text.

    Args:
        folder: where both files are.
        data: what follows the underscore, as in "f30k".
    """
    return folder / f"i2t_{data}.npy", folder / f"t2i_{data}.npy"


def aoq_file_names(folder: Path) -> list[str]:
    """What follows the underscore in the names of the lists in a folder, in order."""
    found = [*folder.glob("i2t_*.npy"), *folder.glob("t2i_*.npy")]
    return sorted({path.stem[len("i2t_") :] for path in found})


def read_aoq(folder: Path, data: str, relation: Relation) -> HardNegativeLists:
    """The lists of AOQ's mining scripts.

    Args:
        folder: where both files are.
        data: what follows the underscore, as in "f30k".
        relation: of the training split.

    Raises:
        ValueError: a file is missing or not such a list, or it is of another data set.
    """
    _five(relation)
    i2t, t2i = aoq_paths(folder, data)
    texts = _read(i2t, relation.images, len(relation.text_to_image))
    images = _read(t2i, len(relation.text_to_image), relation.images)
    lists = HardNegativeLists(texts, images)
    lists.check(relation)
    return lists


def write_aoq(lists: HardNegativeLists, folder: Path, data: str, relation: Relation) -> None:
    """Write both files.

    Args:
        lists: complete ones; the files have no way to say "none".
        folder: where to write.
        data: what follows the underscore, as in "f30k".
        relation: of the training split.

    Raises:
        ValueError: images without exactly five captions in order, or short lists.
    """
    _five(relation)
    lists.check(relation)
    short = int((lists.texts < 0).any(1).sum() + (lists.images < 0).any(1).sum())
    if short:
        raise ValueError(
            f"{short} lists are shorter than the others, which AOQ's files cannot say; mine "
            "shorter lists"
        )
    for path, rows in zip(aoq_paths(folder, data), (lists.texts, lists.images), strict=True):
        write_array(path, rows.numpy())


def _five(relation: Relation) -> None:
    if not torch.equal(
        relation.text_to_image, torch.arange(CAPTIONS * relation.images) // CAPTIONS
    ):
        raise ValueError(
            f"AOQ's files want captions 5i to 5i+4 to describe image i, but here "
            f"{len(relation.text_to_image)} texts describe {relation.images} images otherwise; "
            f"use a "
            "counterfoil store instead"
        )


def _read(path: Path, rows: int, limit: int) -> Tensor:
    array: npt.NDArray[Any] = read_array(path, "a list of AOQ's mining scripts")
    if array.ndim != 2 or array.dtype.kind not in "iu" or len(array) != rows or not array.size:
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}; whole numbers of shape "
            f"({rows}, any) are needed for this corpus"
        )
    least, most = int(array.min()), int(array.max())
    if least < 0 or most >= limit:
        raise ValueError(
            f"{path} holds rows {least} to {most}, but in this corpus they go from 0 to {limit - 1}"
        )
    return torch.from_numpy(array.astype(np.int32))
