"""On-disk cache of the outputs of a frozen image tower.

For models whose image tower is frozen while other parts are trained; if both towers are frozen,
`counterfoil.scoring.embedding_store` stores the vectors of both.

Each model has a folder in the cache with parts that are complete or absent, an artifact each:
``states.npy`` (n, L, F) float16, or float32 if values exceed its range, and the names of these
images. A part serves every data set that contains the images, and a run that resumes after a kill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.core.io import cache_folder, read_array, write_array, write_lock
from counterfoil.core.resumable import work_through
from counterfoil.core.types import ModalityBatch
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import RowStack
from counterfoil.data.images import (
    Array,
    ImageTransform,
    Pictures,
    changed,
    fingerprint_hashes,
)
from counterfoil.data.processor import ImageProcessor, PixelProcessor

BATCH = 32
MIN_PART_SIZE, MAX_PARTS = 256, 256  # images of a part; parts of one run
# stored states, the stored row of each image, and what tells that it has changed
_States = tuple[RowStack, Array, Array]


STATES_FILE = "states.npy"


@final
class StatesManifest(ArtifactManifest):
    """What a part holds.

    Attributes:
        names: (n,) digests of the images.
    """

    names: list[str]


STATES = ArtifactFormat(
    name="outputs of an image tower", manifest=StatesManifest, remedy="they are computed again"
)


@final
class CachedFeatureProcessor(ImageProcessor):
    """Outputs of a frozen image tower for a data set, computed on first use and cached on disk.

    Images that are in no data set are returned as pixels.
    """

    def __init__(
        self, pixels: PixelProcessor, states: Callable[[ModalityBatch], Tensor], key: str
    ) -> None:
        self.pixels, self.states, self.width = pixels, states, pixels.width
        self.key = f"{key} {pixels}"
        self._opened: WeakKeyDictionary[Pictures, _States] = WeakKeyDictionary()

    @property
    def transform(self) -> ImageTransform | None:
        """Transform of the pixels."""
        return self.pixels.transform

    def from_dataset(self, dataset: ImageTextDataset, rows: Tensor) -> ModalityBatch:
        if dataset.pictures is None:
            return self.pixels.from_dataset(dataset, rows)  # raises the error
        pictures = dataset.pictures
        opened = self._opened.get(pictures)
        if opened is None or changed(pictures, rows.tolist(), opened[2]):
            opened = self._opened[pictures] = self._open(pictures)
        states, stored, _ = opened
        values = torch.from_numpy(states[stored[rows.numpy()]]).float()
        return ModalityBatch(rows, values, torch.ones(values.shape[:2], dtype=torch.bool))

    def from_images(self, pictures: Sequence[Image.Image]) -> ModalityBatch:
        return self.pixels.from_images(pictures)

    def _open(self, pictures: Pictures) -> _States:
        """States of all images, after computing those that are not cached."""
        folder = cache_folder() / "states" / hashlib.sha256(self.key.encode()).hexdigest()[:24]
        prints = fingerprint_hashes(pictures)
        names = [_name(pictures.fingerprint(row)) for row in range(len(pictures))]
        known = list(_parts(folder))  # reads their checksums: once, if nothing is missing
        missing = set(names).difference(*(own for own, _ in known))
        rows = [row for row, name in enumerate(names) if name in missing]
        self._compute(folder, pictures, names, rows)
        if missing:
            known = list(_parts(folder))
        needed, parts, stored, count = set(names), list[Array](), dict[str, int](), 0
        for own, states in known:
            if needed.isdisjoint(own):
                continue
            parts.append(states)
            stored |= {name: count + row for row, name in enumerate(own)}
            count += len(own)
        stack = RowStack(parts, np.result_type(*(states.dtype for states in parts)))
        return stack, np.array([stored[name] for name in names]), prints

    def _compute(
        self, folder: Path, pictures: Pictures, names: Sequence[str], missing: Sequence[int]
    ) -> None:
        """Compute the states of missing rows, in parts; every process takes some."""
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
        work_through(range(len(parts)), compute_part, sizes, description="pictures encoded")


def _half_if_finite(states: Tensor) -> Array:
    half = states.half()
    array: Array = (half if bool(half.isfinite().all()) else states.float()).numpy()
    return array


def _parts(folder: Path) -> Iterator[tuple[list[str], Array]]:
    """Names and states of every part; damaged ones are skipped and computed again."""
    for path in sorted(folder.glob(f"*/{STATES.file}")):
        if (part := _part(path.parent)) is not None:
            yield part


def _part(folder: Path) -> tuple[list[str], Array] | None:
    try:
        stored = STATES.open(folder)
        states = read_array(folder / STATES_FILE, STATES.name)
        stored.check(STATES_FILE)
    except ValueError:
        return None
    names = stored.manifest.names
    fit = len(names) == len(states) and states.ndim == 3 and states.dtype.kind == "f"
    return (names, states) if fit else None


def _write(folder: Path, names: Sequence[str], states: Array) -> None:
    part = folder / _name("".join(names))
    with write_lock(part.with_name(f"{part.name}.lock"), part, wait=True):
        if _part(part) is None:  # another run may have written it meanwhile
            with STATES.writing(part) as temporary:
                write_array(temporary / STATES_FILE, states)
                manifest = StatesManifest(names=list(names), version=__version__)
                STATES.write_manifest(temporary, manifest, [STATES_FILE])


def _name(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]
