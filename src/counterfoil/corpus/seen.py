"""Pictures as a frozen model sees them, worked out once.

For a model of which all but its sight is trained; where both sides are frozen,
`counterfoil.engine.vectors` keeps the vectors of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import Eye, PixelEye
from counterfoil.corpus.pictures import Pictures
from counterfoil.corpus.pixels import Array, kept_at
from counterfoil.files import read_array, replacing
from counterfoil.progress import progress
from counterfoil.records import Items

BATCH = 32


@final
class SeenEye(Eye):
    """What a frozen model makes of the pictures of a corpus, made on first use and kept on disk.

    Numbers are kept in half precision. A bare picture is seen as pixels.

    Args:
        eye: makes the pixels that the model reads; all pictures are of one size.
        states: (N, L, F) what the model makes of pixels.
        key: tells the model from others.
    """

    def __init__(self, eye: PixelEye, states: Callable[[Items], Tensor], key: str) -> None:
        self.eye, self.states, self.width = eye, states, eye.width
        self.key = f"{key} {eye}"

    def look(self, corpus: Corpus, rows: Tensor) -> Items:
        if corpus.pictures is None:
            return self.eye.look(corpus, rows)  # which says what is wrong
        stored = self._kept(corpus.pictures)
        values = torch.from_numpy(stored[rows.numpy()]).float()
        return Items(rows, values, torch.ones(values.shape[:2], dtype=torch.bool))

    def see(self, pictures: Sequence[Image.Image]) -> Items:
        return self.eye.see(pictures)

    def _kept(self, pictures: Pictures) -> Array:
        path = kept_at(pictures, self.key, "states")
        if not path.exists() and world.rank() == 0:
            self._make(path, pictures)
        world.wait()
        return _opened(path)

    def _make(self, path: Path, pictures: Pictures) -> None:
        count = len(pictures)
        shape = tuple(self._batch(pictures, range(1)).shape[1:])
        with replacing(path) as temporary, progress("pictures seen", count) as done:
            out = np.lib.format.open_memmap(temporary, "w+", np.float16, (count, *shape))
            for first in range(0, count, BATCH):
                rows = range(first, min(first + BATCH, count))
                out[rows.start : rows.stop] = self._batch(pictures, rows).numpy()
                done(len(rows))
            out.flush()
            del out

    def _batch(self, pictures: Pictures, rows: range) -> Tensor:
        return self.states(self.eye.see([pictures.open(row) for row in rows])).half()


@lru_cache(maxsize=8)
def _opened(path: Path) -> Array:
    return read_array(path, "kept states")
