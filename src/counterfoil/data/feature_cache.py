"""On-disk cache of the outputs of a frozen image tower.

For models whose image tower is frozen while other parts are trained; if both towers are frozen,
`counterfoil.scoring.embedding_store` stores the vectors of both.

Each model has a folder in the cache with parts that are complete or absent: ``NAME.npy`` (n, L, F)
float16, or float32 if values exceed its range, and ``NAME.json``, the names of these images. A part
serves every data set that contains the images, and a run that resumes after a kill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.io import cache_folder, read_array, read_json, write_array, write_json
from counterfoil.core.resumable import work_through
from counterfoil.core.types import ModalityBatch
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import Array, Pictures, image_fingerprint
from counterfoil.data.processor import ImageProcessor, PixelProcessor

BATCH = 32
MIN_PART_SIZE, MAX_PARTS = 256, 256  # images of a part; parts of one run


@final
class CachedFeatureProcessor(ImageProcessor):
    """Outputs of a frozen image tower for a data set, computed on first use and cached on disk.

    Images that are in no data set are returned as pixels.

    Args:
        pixels: computes the pixels that the model reads; all images have one size.
        states: (N, L, F) output of the tower for pixels.
        key: name of the model in the hash of the cache folder.
    """

    def __init__(
        self, pixels: PixelProcessor, states: Callable[[ModalityBatch], Tensor], key: str
    ) -> None:
        self.pixels, self.states, self.width = pixels, states, pixels.width
        self.key = f"{key} {pixels}"
        self._opened: WeakKeyDictionary[Pictures, _CachedStates] = WeakKeyDictionary()

    def from_dataset(self, dataset: ImageTextDataset, rows: Tensor) -> ModalityBatch:
        if dataset.pictures is None:
            return self.pixels.from_dataset(dataset, rows)  # raises the error
        if dataset.pictures not in self._opened:
            self._opened[dataset.pictures] = self._open(dataset.pictures)
        values = torch.from_numpy(self._opened[dataset.pictures].take(rows.numpy())).float()
        return ModalityBatch(rows, values, torch.ones(values.shape[:2], dtype=torch.bool))

    def from_images(self, pictures: Sequence[Image.Image]) -> ModalityBatch:
        return self.pixels.from_images(pictures)

    def _open(self, pictures: Pictures) -> _CachedStates:
        """States of all images, after computing those that are not cached."""
        folder = cache_folder() / "states" / hashlib.sha256(self.key.encode()).hexdigest()[:24]
        names = [_name(image_fingerprint(pictures, row)) for row in range(len(pictures))]
        self._compute_missing(folder, pictures, names)
        return _CachedStates.of(folder, names)

    def _compute_missing(self, folder: Path, pictures: Pictures, names: Sequence[str]) -> None:
        """Compute the missing parts; every process takes some."""
        known = {name for own, _ in _parts(folder) for name in own}
        missing = [row for row, name in enumerate(names) if name not in known]
        size = max(MIN_PART_SIZE, -(-len(missing) // MAX_PARTS))
        parts = [missing[first : first + size] for first in range(0, len(missing), size)]

        def compute_part(number: int) -> None:
            states = []
            for start in range(0, len(parts[number]), BATCH):
                images = [pictures.open(row) for row in parts[number][start : start + BATCH]]
                states.append(_half_if_finite(self.states(self.pixels.from_images(images))))
            _write(folder, [names[row] for row in parts[number]], np.concatenate(states))

        distributed.barrier()  # no process writes before all have listed the folder
        sizes = [len(part) for part in parts]
        work_through(range(len(parts)), compute_part, sizes, description="pictures seen")


@final
@dataclass(frozen=True, slots=True)
class _CachedStates:
    """Cached states of N images.

    Attributes:
        parts: (n, L, F) arrays.
        part: (N,) index into `parts` of each image.
        row: (N,) its row there.
    """

    parts: Sequence[Array]
    part: Array
    row: Array

    @classmethod
    def of(cls, folder: Path, names: Sequence[str]) -> Self:
        wanted, parts = set(names), list[Array]()
        place: dict[str, tuple[int, int]] = {}
        for own, states in _parts(folder):
            inside = {name: (len(parts), n) for n, name in enumerate(own) if name in wanted}
            if inside:
                parts.append(states)
                place |= inside
        part, row = np.array([place[name] for name in names]).reshape(-1, 2).T
        return cls(parts, part, row)

    def take(self, rows: Array) -> Array:
        """(n, L, F) states of some images."""
        part, row = self.part[rows], self.row[rows]
        dtype = np.result_type(*(states.dtype for states in self.parts))
        out = np.empty((len(rows), *self.parts[0].shape[1:]), dtype)
        for number in np.unique(part):
            inside = part == number
            out[inside] = self.parts[number][row[inside]]
        return out


def _half_if_finite(states: Tensor) -> Array:
    half = states.half()
    array: Array = (half if bool(half.isfinite().all()) else states.float()).numpy()
    return array


def _parts(folder: Path) -> Iterator[tuple[list[str], Array]]:
    """Names and states of every part; damaged ones are skipped and computed again."""
    for path in sorted(folder.glob("*.json")):
        try:
            names = read_json(path, "names of pictures")
            states = read_array(path.with_suffix(".npy"), "kept states")
        except ValueError:
            continue
        if isinstance(names, list) and len(names) == len(states):
            yield names, states


def _write(folder: Path, names: Sequence[str], states: Array) -> None:
    name = _name("".join(names))
    write_array(folder / f"{name}.npy", states)
    write_json(folder / f"{name}.json", list(names))  # written last: it makes the part complete


def _name(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]
