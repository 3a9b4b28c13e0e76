"""Memory-mapped features: regions, grid cells, or one vector for each item.

A feature folder holds

    features.npy   (N, R, F) or (N, F), float16, float32 or int8
    scale.npy      (F,) float32, only beside int8: value = stored * scale
    lengths.npy    (N,) how many of the R regions are real, where they differ
    boxes.npy      (N, R, 4) x1, y1, x2, y2 as fractions of the picture, where known
    classes.npy    (N, R, C) how likely a detector thinks each class of a region, 0 the background
    features.json  {"ids": [...], "model": ..., "kind": ...}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterfoil.records import Items

Array = npt.NDArray[Any]
KINDS = ("float16", "float32", "int8")


@final
class Stack:
    """Several arrays read as one behind the other; nothing is copied until rows are taken.

    Args:
        parts: arrays of one kind of number that differ in their first axis only.

    Raises:
        ValueError: the shapes or kinds of number differ.
    """

    def __init__(self, parts: Sequence[Array]) -> None:
        shapes = {(part.shape[1:], part.dtype.name) for part in parts}
        if len(shapes) != 1:
            found = ", ".join(f"{part.shape} {part.dtype.name}" for part in parts)
            raise ValueError(
                f"arrays of {found} cannot be read as one; all need the same regions, width and "
                "kind of number"
            )
        self.parts = tuple(parts)
        lengths = [len(part) for part in parts]
        self._starts = np.cumsum([0, *lengths[:-1]])
        self.shape = (sum(lengths), *parts[0].shape[1:])
        self.dtype, self.ndim = parts[0].dtype, parts[0].ndim

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Array) -> Array:
        part = np.searchsorted(self._starts, rows, side="right") - 1
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for place in np.unique(part):
            here = part == place
            out[here] = self.parts[place][rows[here] - self._starts[place]]
        return out


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
        classes: (S, R, C) probabilities of the classes of regions, or None.

    Raises:
        ValueError: wrong number of axes or kind of number, or parts that do not fit together.
    """

    values: Array | Stack
    rows: Tensor
    scale: Array | None = None
    lengths: Array | None = None
    boxes: Array | Stack | None = None
    where: str = "features"
    classes: Array | None = None

    def __post_init__(self) -> None:
        shape, kind = tuple(self.values.shape), self.values.dtype
        if self.values.ndim != 3:
            raise ValueError(
                f"{self.where} have shape {shape}; (items, regions, width) or "
                "(items, width) are read"
            )
        if kind.name not in KINDS:
            raise ValueError(f"{self.where} are {kind.name}; {', '.join(KINDS)} are read")
        if (kind == np.int8) != (self.scale is not None):
            raise ValueError(f"{self.where}: int8 features need a scale, and only they have one")
        for what, part, wanted in (
            ("the scale", self.scale, shape[2:]),
            ("the lengths", self.lengths, shape[:1]),
            ("the boxes", self.boxes, (*shape[:2], 4)),
            ("the classes", self.classes, (*shape[:2], *_last(self.classes))),
        ):
            if part is not None and tuple(part.shape) != wanted:
                raise ValueError(
                    f"{self.where} have shape {shape}, so {what} need {wanted}, not "
                    f"{tuple(part.shape)}"
                )

    @staticmethod
    def of(
        values: Array,
        *,
        scale: Array | None = None,
        lengths: Array | None = None,
        boxes: Array | None = None,
        where: str = "features",
        classes: Array | None = None,
    ) -> Features:
        """Features of every stored row; (N, F) is taken as one region each."""
        values = values[:, None, :] if values.ndim == 2 else values
        rows = torch.arange(len(values))
        return Features(values, rows, scale, lengths, boxes, where, classes)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """F."""
        return int(self.values.shape[2])

    @property
    def regions(self) -> int:
        """R."""
        return int(self.values.shape[1])

    def subset(self, rows: Tensor) -> Features:
        """The features of these items, in this order; nothing is read."""
        return replace(self, rows=self.rows[rows])

    def take(self, rows: Tensor) -> Items:
        """Float32 features of these items, their masks and boxes; 0 where a mask is False.

        Raises:
            ValueError: a value is not a number.
        """
        values, mask = self._read(rows)
        if not torch.isfinite(values.sum()) and not torch.isfinite(values).all():
            bad = rows[~torch.isfinite(values).flatten(1).all(1)]
            raise ValueError(
                f"{self.where}: row {int(bad[0])} holds NaN or infinite values; "
                "`counterfoil data check` lists all such rows"
            )
        boxes = None
        if self.boxes is not None:
            stored = self.rows[rows].numpy()
            boxes = torch.from_numpy(np.asarray(self.boxes[stored], np.float32))
        return Items(rows, values, mask, boxes)

    def likely(self, rows: Tensor) -> Tensor:
        """(N, R, C) float32 probabilities of the classes of the regions of these items."""
        assert self.classes is not None, "nobody says which classes the regions have"
        return torch.from_numpy(np.asarray(self.classes[self.rows[rows].numpy()], np.float32))

    def look(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, R, F) features of these items as stored, and (N,) bool, True where finite."""
        values, _ = self._read(rows)
        return values, torch.isfinite(values).flatten(1).all(1)

    def _read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        stored = self.rows[rows].numpy()
        values = torch.from_numpy(np.asarray(self.values[stored])).float()
        if self.scale is not None:
            values *= torch.from_numpy(np.asarray(self.scale, np.float32))
        if self.lengths is None:
            return values, torch.ones(values.shape[:2], dtype=torch.bool)
        lengths = torch.from_numpy(np.asarray(self.lengths[stored], np.int64))
        mask = torch.arange(values.shape[1]) < lengths.unsqueeze(1)
        return values.masked_fill_(~mask.unsqueeze(2), 0.0), mask


def _last(array: Array | None) -> tuple[int, ...]:
    return () if array is None else tuple(array.shape[2:3])
