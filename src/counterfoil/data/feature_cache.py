"""Pictures as a frozen model sees them, worked out once.

For a model of which all but its sight is trained; where both sides are frozen,
`counterfoil.scoring.embedding_store` keeps the vectors of both.

A folder of the cache for each model, with parts that are whole or absent: ``NAME.npy`` (n, L, F)
float16, or float32 where that is too narrow, and ``NAME.json``, which pictures these are. What is
there is there for every data set that has these pictures, and for a run that goes on after a kill.
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
from counterfoil.core.io import read_array, read_json, write_array, write_json
from counterfoil.core.resumable import work_through
from counterfoil.core.types import ModalityBatch
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import Array, Pictures, unscaled_pixels
from counterfoil.data.processor import ImageProcessor, PixelProcessor
from counterfoil.data.tokenizers import cache_folder

BATCH = 32
LEAST, PARTS = 256, 256  # pictures of a part, and parts that a large data set is made in at most


@final
class CachedFeatureProcessor(ImageProcessor):
    """What a frozen model makes of the pictures of a data set, made on first use and kept on disk.

    Numbers are kept in half precision, unless some are beyond it. A bare picture is seen as pixels.

    Args:
        image_processor: makes the pixels that the model reads; all pictures are of one size.
        states: (N, L, F) what the model makes of pixels.
        key: tells the model from others.
    """

    def __init__(
        self, eye: PixelProcessor, states: Callable[[ModalityBatch], Tensor], key: str
    ) -> None:
        self.eye, self.states, self.width = eye, states, eye.width
        self.key = f"{key} {eye}"
        self._kept: WeakKeyDictionary[Pictures, _Kept] = WeakKeyDictionary()

    def from_dataset(self, dataset: ImageTextDataset, rows: Tensor) -> ModalityBatch:
        if dataset.pictures is None:
            return self.eye.from_dataset(dataset, rows)  # which says what is wrong
        if dataset.pictures not in self._kept:
            self._kept[dataset.pictures] = self._opened(dataset.pictures)
        values = torch.from_numpy(self._kept[dataset.pictures].take(rows.numpy())).float()
        return ModalityBatch(rows, values, torch.ones(values.shape[:2], dtype=torch.bool))

    def from_images(self, pictures: Sequence[Image.Image]) -> ModalityBatch:
        return self.eye.from_images(pictures)

    def _opened(self, pictures: Pictures) -> _Kept:
        """All of them, when those that are not kept have been looked at."""
        folder = cache_folder() / "states" / hashlib.sha256(self.key.encode()).hexdigest()[:24]
        names = [_name(unscaled_pixels(pictures, row)) for row in range(len(pictures))]
        self._make(folder, pictures, names)
        return _Kept.of(folder, names)

    def _make(self, folder: Path, pictures: Pictures, names: Sequence[str]) -> None:
        """Every process makes some of the missing parts."""
        known = {name for own, _ in _parts(folder) for name in own}
        missing = [row for row, name in enumerate(names) if name not in known]
        size = max(LEAST, -(-len(missing) // PARTS))
        parts = [missing[first : first + size] for first in range(0, len(missing), size)]

        def make_part(number: int) -> None:
            states = []
            for start in range(0, len(parts[number]), BATCH):
                some = [pictures.open(row) for row in parts[number][start : start + BATCH]]
                states.append(_narrow(self.states(self.eye.from_images(some))))
            _write(folder, [names[row] for row in parts[number]], np.concatenate(states))

        distributed.barrier()  # nobody writes before everybody has looked
        sizes = [len(part) for part in parts]
        work_through(range(len(parts)), make_part, sizes, description="pictures seen")


@final
@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept of some pictures.

    Attributes:
        parts: (n, L, F) arrays.
        part: (N,) place in `parts` of each picture.
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
            found = {name: (len(parts), n) for n, name in enumerate(own) if name in wanted}
            if found:
                parts.append(states)
                place |= found
        part, row = np.array([place[name] for name in names]).reshape(-1, 2).T
        return cls(parts, part, row)

    def take(self, rows: Array) -> Array:
        """(n, L, F) of pictures."""
        part, row = self.part[rows], self.row[rows]
        kind = np.result_type(*(states.dtype for states in self.parts))
        out = np.empty((len(rows), *self.parts[0].shape[1:]), kind)
        for place in np.unique(part):
            here = part == place
            out[here] = self.parts[place][row[here]]
        return out


def _narrow(states: Tensor) -> Array:
    half = states.half()
    kept: Array = (half if bool(half.isfinite().all()) else states.float()).numpy()
    return kept


def _parts(folder: Path) -> Iterator[tuple[list[str], Array]]:
    """Names and states of every part; one that is damaged is as good as absent."""
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
    write_json(folder / f"{name}.json", list(names))  # from now on it counts


def _name(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]
