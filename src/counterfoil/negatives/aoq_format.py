"""Read and write mined lists in the files of AOQ's released code.

``i2t_<data>.npy`` (n, 2000) and ``t2i_<data>.npy`` (5n, 400), int32, most similar first; rows are
those of the training split, whose captions 5i to 5i+4 describe image i.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterfoil.core.io import read_array, write_array
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.negatives.store import MINED, HardNegativeLists, NegativeStore

CAPTIONS = 5
READ = (300, 60)  # texts and images of a list that the released training code uses


def aoq_paths(folder: Path, data: str) -> tuple[Path, Path]:
    """Return the paths of the files of `data`, as in "f30k": texts by image, and images by text."""
    return folder / f"i2t_{data}.npy", folder / f"t2i_{data}.npy"


def only_aoq_name(folder: Path) -> str:
    """Return the suffix of the only lists in a folder, as in "f30k".

    Raises:
        ValueError: there are none, or several.
    """
    names = _aoq_names(folder)
    if len(names) != 1:
        content = f"those of {', '.join(names)}; choose with --name" if names else "neither"
        raise ValueError(
            f"{folder} should hold one pair of files i2t_NAME.npy and t2i_NAME.npy, but holds "
            f"{content}"
        )
    return names[0]


def _aoq_names(folder: Path) -> list[str]:
    paths = [*folder.glob("i2t_*.npy"), *folder.glob("t2i_*.npy")]
    return sorted({path.stem[len("i2t_") :] for path in paths})


def open_lists(folder: Path, dataset: ImageTextDataset) -> HardNegativeLists:
    """Read the mined lists of a split: a folder of ``counterfoil mine``, or AOQ's pair of files.

    Raises:
        ValueError: there are none, they are damaged, or of other data.
    """
    if not MINED.exists(folder) and folder.is_dir() and _aoq_names(folder):
        return read_aoq(folder, only_aoq_name(folder), dataset.relation)
    if not MINED.exists(folder):
        raise ValueError(
            f"{folder} holds no mined negatives; name a folder that `counterfoil mine` wrote, or "
            "one with AOQ's i2t_NAME.npy and t2i_NAME.npy"
        )
    store = NegativeStore.open(folder, fingerprint=dataset.fingerprint, relation=dataset.relation)
    store.manifest.check_contents(dataset, f"the lists in {folder}")
    return store.lists


def lists_digest(folder: Path) -> str:
    """Return sixteen hex digits, the hash of the arrays in a folder of lists."""
    hashed = hashlib.sha256()
    for path in sorted(folder.glob("*.npy")):
        hashed.update(path.name.encode())
        with path.open("rb") as file:
            hashed.update(hashlib.file_digest(file, "sha256").digest())
    return hashed.hexdigest()[:16]


def read_aoq(folder: Path, data: str, relation: Relation) -> HardNegativeLists:
    """Read the lists of AOQ's mining scripts, with the suffix `data`, of a training split.

    Raises:
        ValueError: a file is missing, malformed or of another data set.
    """
    _check_five_captions(relation)
    i2t, t2i = aoq_paths(folder, data)
    texts = _read(i2t, relation.images, len(relation.text_to_image))
    images = _read(t2i, len(relation.text_to_image), relation.images)
    return HardNegativeLists(texts, images).checked(relation)


def write_aoq(lists: HardNegativeLists, folder: Path, data: str, relation: Relation) -> None:
    """Write both files, with the suffix `data`, from complete lists of a training split.

    Raises:
        ValueError: images without exactly five captions in order, or short lists.
    """
    _check_five_captions(relation)
    lists = lists.checked(relation)
    short = int((lists.texts < 0).any(1).sum() + (lists.images < 0).any(1).sum())
    if short:
        raise ValueError(
            f"{short} lists are shorter than the others, which AOQ's files cannot say; mine "
            "shorter lists"
        )
    for path, rows in zip(aoq_paths(folder, data), (lists.texts, lists.images), strict=True):
        write_array(path, rows.numpy())


def _check_five_captions(relation: Relation) -> None:
    if not torch.equal(
        relation.text_to_image, torch.arange(CAPTIONS * relation.images) // CAPTIONS
    ):
        raise ValueError(
            f"AOQ's files want captions 5i to 5i+4 to describe image i, but here "
            f"{len(relation.text_to_image)} texts describe {relation.images} images otherwise; "
            "use a counterfoil store instead"
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
