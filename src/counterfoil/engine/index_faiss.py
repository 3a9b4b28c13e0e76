"""Candidates by FAISS: a graph of neighbours (HNSW), or cells of compressed vectors (IVF-PQ)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from counterfoil.engine.index_finder import Vectors
from counterfoil.files import replacing

Kind: TypeAlias = Literal["hnsw", "ivf-pq"]

LEAST = 1024  # vectors from which cells are learnt; fewer are compared one and all
_LINKS, _CARE = 32, 40  # of the graph: neighbours of a vector, and candidates when it is built
_ROUNDS, _EACH = 8, 32  # in which cells are learnt, and from how many vectors each at most
_OUTGROWN = 4  # times as many vectors as cells were learnt from
_PIECE = 4  # numbers that one byte of a compressed vector stands for, at least


@final
class FaissFinder:
    """A FAISS index in a file, which is written anew by every change.

    Args:
        folder: of the index.
        kind: of the FAISS index.
        name: of the file, "" while there is none.

    Raises:
        ValueError: FAISS is not installed, or the file is missing or damaged.
    """

    def __init__(self, folder: Path, kind: Kind, name: str) -> None:
        self._faiss, self._folder, self._kind, self._name = _library(), folder, kind, name
        self._found: Any = self._read(folder / name) if name else None

    def propose(self, queries: Tensor, k: int) -> Tensor:
        """About the k nearest of each query; none while there is no file."""
        if self._found is None or not self._found.ntotal:
            return torch.empty(len(queries), 0, dtype=torch.long)
        inner = self._faiss.downcast_index(self._found.index)
        if self._kind == "hnsw":
            inner.hnsw.efSearch = max(2 * k, 2 * _CARE)
        else:
            inner.nprobe = max(16, inner.nlist // 4)
        _, numbers = self._found.search(queries.numpy(), min(k, self._found.ntotal))
        return torch.from_numpy(numbers)

    def update(
        self, count: int, living: Callable[[], Vectors], more: Vectors | None, tag: str
    ) -> str:
        """Add what is new, or make it anew where most of it is dead or it was outgrown."""
        if not count or (self._kind == "ivf-pq" and count < LEAST):
            self._found, self._name = None, ""
        elif self._found is None or self._stale(count):
            self._found = self._made(*living())
            self._name = self._write(tag)
        elif more is not None:
            numbers, vectors = more
            self._found.add_with_ids(vectors.numpy(), numbers.numpy())
            self._name = self._write(tag)
        return self._name

    def forget(self, numbers: Tensor) -> None:
        """Nothing: the dead are passed over until it is made anew."""

    def close(self) -> None:
        """Nothing is held but memory."""

    def _stale(self, count: int) -> bool:
        if self._found.ntotal > 2 * count:
            return True
        inner = self._faiss.downcast_index(self._found.index)
        return self._kind == "ivf-pq" and count > _OUTGROWN * (inner.nlist / 2) ** 2

    def _made(self, numbers: Tensor, vectors: Tensor) -> Any:
        faiss, (count, width) = self._faiss, vectors.shape
        by = faiss.METRIC_INNER_PRODUCT
        values = vectors.contiguous().numpy()
        if self._kind == "hnsw":
            inner = faiss.IndexHNSWFlat(width, _LINKS, by)
            inner.hnsw.efConstruction = _CARE
        else:
            cells = max(1, 2 * math.isqrt(count))
            inner = faiss.IndexIVFPQ(faiss.IndexFlatIP(width), width, cells, _pieces(width), 8, by)
            for learning in (inner.cp, inner.pq.cp):
                learning.niter, learning.min_points_per_centroid = _ROUNDS, 1
                learning.max_points_per_centroid = _EACH
            inner.train(values)
        found = faiss.IndexIDMap2(inner)
        inner.this.disown()  # the map owns it
        found.own_fields = True
        found.add_with_ids(values, numbers.numpy())
        return found

    def _write(self, tag: str) -> str:
        with replacing(self._folder / f"{tag}.faiss") as temporary:
            self._faiss.write_index(self._found, str(temporary))
        return f"{tag}.faiss"

    def _read(self, path: Path) -> Any:
        if not path.is_file():
            raise ValueError(f"{path} does not exist; make the index again")
        try:
            return self._faiss.read_index(str(path))
        except RuntimeError:
            raise ValueError(f"{path} is damaged; make the index again") from None


def _pieces(width: int) -> int:
    """How many bytes stand for a vector: each for as many numbers, at least `_PIECE` where it can.

    >>> _pieces(1024), _pieces(30), _pieces(7)
    (256, 6, 1)
    """
    each = next(size for size in range(min(_PIECE, width), width + 1) if width % size == 0)
    return width // each


def _library() -> Any:
    try:
        import faiss
    except ImportError:
        raise ValueError(
            'this index is searched by FAISS, which is not installed: pip install "counterfoil'
            '[index]"'
        ) from None
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss
