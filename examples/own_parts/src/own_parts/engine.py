"""An engine of an index: it proposes the vectors whose signs agree most with the query's."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.io import read_array, write_array
from counterfoil.scoring.encode import Side
from counterfoil.search.ann import Engine, NumberedVectors
from counterfoil.search.vector_index import Collection, StoredIndex


@final
class Signs:
    """The signs of all vectors, in a file of the index."""

    def __init__(self, stored: StoredIndex, side: Side, name: str) -> None:
        self.folder, self.name = stored.folder, name
        self.signs: np.ndarray | None = None  # (N, D + 1) long, the numbers and the signs
        if name:
            stored.check(name)
            self.signs = read_array(self.folder / name, "signs")

    @property
    def files(self) -> tuple[str, ...]:
        return (self.name,) if self.name else ()

    def candidates(self, queries: Tensor, k: int) -> Tensor:
        if self.signs is None:
            return torch.empty(len(queries), 0, dtype=torch.long)
        known = torch.from_numpy(np.array(self.signs))
        agreeing = queries.sign() @ known[:, 1:].float().T
        return known[agreeing.topk(min(k, len(known)), 1).indices, 0]

    def update(self, after: Collection, added: NumberedVectors | None, file: str) -> str:
        numbers, vectors = after.live_vectors()
        self.signs, self.name = None, ""
        if len(numbers):
            self.signs = torch.cat([numbers[:, None], vectors.sign().long()], 1).numpy()
            self.name = file
            write_array(self.folder / file, self.signs)
        return self.name

    def delete(self, numbers: Tensor) -> None:
        """Nothing is left to do: `update` has dropped them."""

    def close(self) -> None:
        """Nothing is open."""


ENGINE = Engine(Signs)
