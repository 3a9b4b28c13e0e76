"""Hubness correction: images that are near to every caption lose what they have in common.

Nearest neighbour normalisation (NNN; Chowdhury et al., EMNLP 2024,
https://arxiv.org/abs/2410.24114), Eqs. 1 and 2: of a bank of reference queries r, the bias of an
item g is the mean of its k highest scores,

    b(g) = 1/k sum over the k nearest r of s(r, g),    s'(q, g) = s(q, g) - alpha b(g)

The bank is captions for images, and images for captions: of the training split, never the queries
of a test. k and alpha are their package's, 128 and 0.75. With alpha 1/2 the ranking is that of CSLS
(https://arxiv.org/abs/1710.04087).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self, final, get_args

import torch
from torch import Tensor

from counterfoil.core.io import is_given
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.scoring.encode import Side

if TYPE_CHECKING:
    from counterfoil.search.vector_index import Collection

HUBNESS = "hubness.safetensors"  # within an index
NEAREST, ALPHA = 128, 0.75
MAX_BANK = 10_000  # reference queries of each modality
AGAIN = "make it again with `counterfoil index --output INDEX --hubness DATA`"
_AT_ONCE = 1024


def neighbour_bias(items: Tensor, bank: Tensor, nearest: int = NEAREST) -> Tensor:
    """Return the (N,) mean of the highest inner products of (N, D) items with an (R, D) bank."""
    count = min(nearest, len(bank))
    parts = [
        (part @ bank.float().T).topk(count, 1).values.mean(1)
        for part in torch.split(items.float(), _AT_ONCE)
    ]
    return torch.cat([torch.zeros(0), *parts])


@final
@dataclass(frozen=True, eq=False)
class HubnessCorrection:
    """A bank of reference queries, which corrects the scores of an index.

    Attributes:
        texts: (R, D) captions, the bank of images.
        images: (R, D) images, the bank of captions.
        nearest: reference queries of an item that count, k.
        alpha: share of the bias that is subtracted.
        known: numbers of vectors of a modality and their `offsets`, computed before; rows that were
            added since are computed when they are needed.

    Raises:
        ValueError: an empty bank, or a number out of range.
    """

    texts: Tensor
    images: Tensor
    nearest: int = NEAREST
    alpha: float = ALPHA
    known: Mapping[Side, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.texts) or not len(self.images):
            raise ValueError(
                f"a bank of {len(self.texts)} captions and {len(self.images)} images was given; "
                "hubness is corrected with both"
            )
        if self.nearest < 1 or not 0 <= self.alpha < math.inf:
            raise ValueError(
                f"nearest={self.nearest} and alpha={self.alpha}: give at least 1 and at least 0"
            )

    def offsets(self, items: Tensor, side: Side) -> Tensor:
        """Return the (N,) numbers that are added to the scores of (N, D) items of a modality."""
        bank = self.texts if side == "image" else self.images
        return -self.alpha * neighbour_bias(items, bank, self.nearest)

    def of_rows(self, collection: Collection, side: Side) -> Tensor:
        """Return the (R,) offsets of all rows of a collection; 0 for deleted ones."""
        offsets = torch.zeros(len(collection.numbers))
        todo = collection.alive.clone()
        if side in self.known and len(self.known[side][0]):
            numbers, values = self.known[side]
            place = torch.searchsorted(numbers, collection.numbers).clamp(max=len(numbers) - 1)
            found = todo & (numbers[place] == collection.numbers)
            offsets[found] = values[place[found]]
            todo &= ~found
        rows = todo.nonzero().squeeze(1)
        offsets[rows] = self.offsets(collection.vectors(rows), side)
        return offsets

    def write(self, folder: Path) -> None:
        """Write the bank into an index."""
        tensors = {"texts": self.texts.contiguous(), "images": self.images.contiguous()}
        for side, (numbers, values) in self.known.items():
            tensors |= {f"{side} numbers": numbers, f"{side} offsets": values}
        about = {"nearest": self.nearest, "alpha": self.alpha}
        write_tensors(folder / HUBNESS, tensors, about)

    @classmethod
    def read(cls, folder: Path, width: int) -> Self | None:
        """The bank of an index of vectors of this width; None for none.

        Raises:
            ValueError: the file is damaged, of a later version or of another model.
        """
        path = folder / HUBNESS
        if not is_given(path):
            return None
        tensors, about = read_tensors(path, "a bank of hubness")
        try:
            texts, images = tensors["texts"], tensors["images"]
            shapes = [tuple(bank.shape[1:]) for bank in (texts, images)]
            if shapes != [(width,)] * 2 or not all(b.isfinite().all() for b in (texts, images)):
                raise ValueError
            known = {
                side: (tensors[f"{side} numbers"], tensors[f"{side} offsets"])
                for side in get_args(Side)
                if f"{side} numbers" in tensors
            }
            return cls(texts, images, int(about["nearest"]), float(about["alpha"]), known)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is no bank that this version reads for vectors of width {width}; delete "
                f"it, or {AGAIN}"
            ) from error


def bank_rows(count: int) -> Tensor:
    """Evenly spaced rows of `count` items that make a bank."""
    return torch.linspace(0, count - 1, min(count, MAX_BANK), dtype=torch.float64).round().long()
