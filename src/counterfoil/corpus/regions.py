"""Memory-mapped features: regions, grid cells, or one vector for each item.

A feature folder holds

    features.npy   (N, R, F) or (N, F), float16, float32 or int8
    scale.npy      (F,) float32, only beside int8: value = stored * scale
    lengths.npy    (N,) how many of the R regions are real, where they differ
    boxes.npy      (N, R, 4) x1, y1, x2, y2 as fractions of the picture, where known
    features.json  {"ids": [...], "model": ..., "kind": ...}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterfoil.records import Items

Array = npt.NDArray[Any]
KINDS = ("float16", "float32", "int8")


@final
@dataclass(frozen=True, eq=False)
class Features:
    """Features of N items; nothing is read before it is taken.

    Attributes:
        values: (S, R, F) stored array, usually a memory map.
        rows: (N,) stored row of each item.
        scale: (F,) factor for int8 values, or None.
        lengths: (S,) real regions of each stored row, or None for all.
        boxes: (S, R, 4), or None.
        where: what to call them in messages.

    Raises:
        ValueError: wrong number of axes or kind of number.
    """

    values: Array
    rows: Tensor
    scale: Array | None = None
    lengths: Array | None = None
    boxes: Array | None = None
    where: str = "features"

    def __post_init__(self) -> None:
        if self.values.ndim != 3:
            raise ValueError(
                f"{self.where} have shape {self.values.shape}; (items, regions, width) or "
                "(items, width) are read"
            )
        if self.values.dtype.name not in KINDS:
            raise ValueError(
                f"{self.where} are {self.values.dtype.name}; {', '.join(KINDS)} are read"
            )
        if (self.values.dtype == np.int8) != (self.scale is not None):
            raise ValueError(f"{self.where}: int8 features need a scale, and only they have one")

    @staticmethod
    def of(
        values: Array,
        *,
        scale: Array | None = None,
        lengths: Array | None = None,
        boxes: Array | None = None,
        where: str = "features",
    ) -> Features:
        """Features of every stored row; (N, F) is taken as one region each."""
        values = values[:, None, :] if values.ndim == 2 else values
        return Features(values, torch.arange(len(values)), scale, lengths, boxes, where)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """F."""
        return int(self.values.shape[2])

    def subset(self, rows: Tensor) -> Features:
        """The features of these items, in this order; nothing is read."""
        kept = self.rows[rows]
        return Features(self.values, kept, self.scale, self.lengths, self.boxes, self.where)

    def take(self, rows: Tensor) -> Items:
        """Float32 features of these items, their masks and boxes.

        Raises:
            ValueError: a value is not a number.
        """
        stored = self.rows[rows].numpy()
        order = np.argsort(stored, kind="stable")  # disks and memory maps like rising rows
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        values = torch.from_numpy(np.asarray(self.values[stored[order]], np.float32)[back])
        if self.scale is not None:
            values *= torch.from_numpy(np.asarray(self.scale, np.float32))
        if not torch.isfinite(values).all():
            bad = rows[~torch.isfinite(values).all(2).all(1)]
            raise ValueError(
                f"{self.where}: row {int(bad[0])} holds NaN or infinite values; "
                "`counterfoil data check` lists all such rows"
            )
        mask = torch.ones(values.shape[:2], dtype=torch.bool)
        if self.lengths is not None:
            mask = torch.arange(values.shape[1]) < torch.from_numpy(
                np.asarray(self.lengths[stored], np.int64)
            ).unsqueeze(1)
        boxes = None
        if self.boxes is not None:
            boxes = torch.from_numpy(np.asarray(self.boxes[stored], np.float32))
        return Items(rows, values, mask, boxes)
