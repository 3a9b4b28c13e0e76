"""Approximate nearest neighbours: what an engine is, FAISS and Milvus.

An `Engine` is found by its name in the registry, so that other packages can add one; it opens a
backend for each side of an index. A backend only proposes candidates; the index then computes their
scores itself, so that scores are the same with every backend. Exact search needs no backend: the
collection compares a query with all of its vectors.
"""

from __future__ import annotations

import logging
import math
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, final

import torch
from torch import Tensor

from counterfoil.core import registry
from counterfoil.core.config import parse_choice
from counterfoil.core.io import atomic_write
from counterfoil.core.optional import optional_import
from counterfoil.scoring.encode import Side

if TYPE_CHECKING:
    from counterfoil.search.vector_index import Collection, StoredIndex


EXACT = "exact"  # search without an engine
FaissKind: TypeAlias = Literal["hnsw", "ivf-pq"]
NumberedVectors: TypeAlias = tuple[Tensor, Tensor]  # (N,) long numbers and (N, D) float32

MIN_IVF_VECTORS = 1024  # fewer vectors are compared exhaustively instead of being clustered
_FAISS_LINKS, _FAISS_EF = 32, 40  # HNSW: neighbours per vector, candidates during construction
_KMEANS_ROUNDS, _KMEANS_SAMPLE = 8, 32  # k-means iterations, training vectors per centroid
_RETRAIN_GROWTH = 4  # retrain IVF when the collection is this many times its training size
_NUMBERS_PER_CODE = 4  # at least so many components share one byte of a PQ code

MILVUS_FILE = "milvus.db"
MILVUS_TOKEN = "COUNTERFOIL_MILVUS_TOKEN"  # of a server; read from the environment only
_MILVUS_LIMIT = 16384  # results per query that a server returns at most
_MILVUS_LINKS, _MILVUS_EF = 32, 128
_MILVUS_BATCH = 2**21  # numbers per request
_MILVUS_LOGGERS = ("pymilvus", "milvus_lite", "grpc")  # silenced: we raise one sentence instead
_MILVUS_TIMEOUT = 10.0  # seconds to connect to a server
_open_files: Counter[str] = Counter()  # open clients per Milvus file in this process

_INSTALL = 'pip install "counterfoil[index]"'


class AnnBackend(Protocol):
    """A library that proposes probable nearest neighbours by inner product.

    A backend may propose numbers that were deleted or never committed: the collection skips them.
    So a killed write may leave the backend ahead of the index or behind it.

    Attributes:
        files: names of its files in the folder of the index that count, and that the manifest of
            the index names with their checksums.
    """

    @property
    def files(self) -> tuple[str, ...]:
        """Names of its files in the folder of the index; () where it keeps none there."""
        ...

    def candidates(self, queries: Tensor, k: int) -> Tensor:
        """Numbers of about the k nearest vectors of each of (Q, D) float32 queries.

        (Q, K) long, -1 for none; K is at most k.
        """
        ...

    def update(self, after: Collection, added: NumberedVectors | None, file: str) -> str:
        """Prepare for a commit; the state that was committed before can still be opened.

        Args:
            after: the collection as it will be.
            added: its new vectors; None for none.
            file: an unused name of a file in the folder of the index, for a backend with one.

        Returns:
            The name under which the backend is opened after the commit, "" if it stores nothing.
        """
        ...

    def delete(self, numbers: Tensor) -> None:
        """Drop deleted vectors, after the commit."""
        ...

    def close(self) -> None:
        """Release files and connections."""
        ...


@final
@dataclass(frozen=True)
class Engine:
    """A library that searches an index: an entry of the registry of kind "engine".

    Attributes:
        open: called with the index, the side ("image" or "text") and what the last
            `AnnBackend.update` returned, "" for a new index; gives the backend of this side.
        address: whether it can be a server, whose address is in the manifest of the index.
    """

    open: Callable[[StoredIndex, Side, str], AnnBackend]
    address: bool = False


def engine_names() -> list[str]:
    """All that can search an index: "exact" and the engines in the registry."""
    return [EXACT, *registry.names("engine")]


def check_engine(name: str, address: str = "") -> None:
    """Refuse an unknown engine, and an address for one that is no server.

    Raises:
        ValueError: as said.
    """
    parse_choice(engine_names(), name, "a search backend")
    if address and (name == EXACT or not registry.find("engine", name).address):
        raise ValueError(
            f"an address is that of a server, such as Milvus, and the backend is {name!r}; leave "
            "it out, or choose milvus"
        )


def open_ann_backend(stored: StoredIndex, side: Side, name: str) -> AnnBackend | None:
    """Open the ANN backend of one collection; None for the exact search.

    `name` is what the last `AnnBackend.update` returned, "" for a new one.

    Raises:
        ValueError: the engine is not installed, or refuses the index.
    """
    backend = stored.manifest.backend
    if backend not in engine_names():
        raise ValueError(
            f"{stored.folder} is searched by {backend!r}, which is no engine here; install the "
            "package that adds it, or make the index again"
        )
    if backend == EXACT:
        return None
    engine: Engine = registry.find("engine", backend)
    return engine.open(stored, side, name)


@final
class FaissBackend:
    """A FAISS index in a file: an HNSW graph, or IVF cells of PQ codes.

    Every update writes a new file, so that a killed write leaves the committed one untouched.
    """

    def __init__(self, stored: StoredIndex, side: Side, name: str, *, kind: FaissKind) -> None:
        self._faiss = _import("faiss", "FAISS")
        self._faiss.omp_set_num_threads(torch.get_num_threads())
        self._folder, self._kind, self._name = stored.folder, kind, name
        self._index: Any = self._read(stored) if name else None

    @property
    def files(self) -> tuple[str, ...]:
        """The one file, where there is one."""
        return (self._name,) if self._name else ()

    def candidates(self, queries: Tensor, k: int) -> Tensor:
        """Propose candidates; none without a file."""
        if self._index is None or not self._index.ntotal:
            return torch.empty(len(queries), 0, dtype=torch.long)
        inner = self._faiss.downcast_index(self._index.index)
        if self._kind == "hnsw":
            inner.hnsw.efSearch = max(2 * k, 2 * _FAISS_EF)
        else:
            inner.nprobe = max(16, inner.nlist // 4)
        _, numbers = self._index.search(queries.numpy(), min(k, self._index.ntotal))
        return torch.from_numpy(numbers)

    def update(self, after: Collection, added: NumberedVectors | None, file: str) -> str:
        """Add new vectors; rebuild when most are deleted or IVF has outgrown its cells."""
        count = len(after)
        if not count or (self._kind == "ivf-pq" and count < MIN_IVF_VECTORS):
            self._index, self._name = None, ""
        elif self._index is None or self._needs_rebuild(count):
            self._index = self._build(*after.live_vectors())
            self._name = self._write(file)
        elif added is not None:
            numbers, vectors = added
            self._index.add_with_ids(vectors.numpy(), numbers.numpy())
            self._name = self._write(file)
        return self._name

    def delete(self, numbers: Tensor) -> None:
        """Do nothing: deleted vectors are skipped until the next rebuild."""

    def close(self) -> None:
        """Do nothing: the index is in memory."""

    def _needs_rebuild(self, count: int) -> bool:
        if self._index.ntotal > 2 * count:
            return True
        if self._kind == "hnsw":
            return False
        cells = self._faiss.downcast_index(self._index.index).nlist
        trained_on = (cells / 2) ** 2  # as `_build` chooses the number of cells
        return bool(count > _RETRAIN_GROWTH * trained_on)

    def _build(self, numbers: Tensor, vectors: Tensor) -> Any:
        faiss, (count, width) = self._faiss, vectors.shape
        metric = faiss.METRIC_INNER_PRODUCT
        values = vectors.contiguous().numpy()
        if self._kind == "hnsw":
            inner = faiss.IndexHNSWFlat(width, _FAISS_LINKS, metric)
            inner.hnsw.efConstruction = _FAISS_EF
        else:
            cells, codes = max(1, 2 * math.isqrt(count)), _code_bytes(width)
            inner = faiss.IndexIVFPQ(faiss.IndexFlatIP(width), width, cells, codes, 8, metric)
            for kmeans in (inner.cp, inner.pq.cp):
                kmeans.niter, kmeans.min_points_per_centroid = _KMEANS_ROUNDS, 1
                kmeans.max_points_per_centroid = _KMEANS_SAMPLE
            inner.train(values)
        index = faiss.IndexIDMap2(inner)
        inner.this.disown()  # the id map deletes it; Python must not
        index.own_fields = True
        index.add_with_ids(values, numbers.numpy())
        return index

    def _write(self, file: str) -> str:
        with atomic_write(self._folder / file) as temporary:
            self._faiss.write_index(self._index, str(temporary))
        return file

    def _read(self, stored: StoredIndex) -> Any:
        stored.check(self._name)
        path = self._folder / self._name
        try:
            return self._faiss.read_index(str(path))
        except RuntimeError:
            raise ValueError(f"{path} is damaged; make the index again") from None


FAISS_HNSW = Engine(partial(FaissBackend, kind="hnsw"))
FAISS_IVF_PQ = Engine(partial(FaissBackend, kind="ivf-pq"))


def _code_bytes(width: int) -> int:
    """Bytes of a PQ code: each encodes equally many components, `_NUMBERS_PER_CODE` if it divides.

    >>> _code_bytes(1024), _code_bytes(30), _code_bytes(7)
    (256, 6, 1)
    """
    sizes = range(min(_NUMBERS_PER_CODE, width), width + 1)
    return width // next(size for size in sizes if width % size == 0)


def _import(module: str, library: str) -> Any:
    needs = f"this index uses {library}, which is not installed; install it with {_INSTALL}"
    return optional_import(module, needs)


@final
class MilvusBackend:
    """A Milvus collection with an HNSW index, on a server or in a file of the index folder."""

    files: tuple[str, ...] = ()  # its own file has no checksums: it grows in place

    def __init__(self, stored: StoredIndex, side: Side, name: str) -> None:
        address, self._width = stored.manifest.address, stored.manifest.width
        self._address = address or str(stored.folder.resolve() / MILVUS_FILE)
        self._local, self._side, self._name = not address, side, name
        self._client = self._connect()
        if name and not self._load(name):
            self.close()
            raise ValueError(
                f"Milvus at {self._address} has no collection {name!r} any more; make the index "
                "again"
            )

    def candidates(self, queries: Tensor, k: int) -> Tensor:
        """Propose candidates; none without a collection."""
        if not self._name:
            return torch.empty(len(queries), 0, dtype=torch.long)
        k = min(k, _MILVUS_LIMIT)
        with _milvus_errors(self._address):
            results = self._client.search(
                self._name,
                data=queries.tolist(),
                limit=k,
                output_fields=["number"],
                search_params={"metric_type": "IP", "params": {"ef": max(2 * k, _MILVUS_EF)}},
            )
        numbers = torch.full((len(queries), k), -1)
        for row, hits in enumerate(results):
            own = [int(hit["number"]) for hit in hits]
            numbers[row, : len(own)] = torch.tensor(own, dtype=torch.long)
        return numbers

    def update(self, after: Collection, added: NumberedVectors | None, file: str) -> str:
        """Send new vectors; an upsert replaces what a killed write sent under the same numbers."""
        if added is None:
            return self._name
        with _milvus_errors(self._address):
            name = self._name or self._create()
            numbers, vectors = added
            size = max(1, _MILVUS_BATCH // self._width)
            for ids, values in zip(torch.split(numbers, size), torch.split(vectors, size)):
                rows = zip(ids.tolist(), values.numpy(), strict=True)
                self._client.upsert(name, [{"number": i, "vector": value} for i, value in rows])
        self._name = name
        return name

    def delete(self, numbers: Tensor) -> None:
        """Delete vectors from the collection, after the commit."""
        with _milvus_errors(self._address):
            for ids in torch.split(numbers, _MILVUS_LIMIT):
                self._client.delete(self._name, ids=ids.tolist())

    def close(self) -> None:
        """Disconnect; the process's server of a file stops with its last client."""
        self._client.close()
        if not self._local:
            return
        _open_files[self._address] -= 1
        if not _open_files[self._address]:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self._address)

    def _connect(self) -> Any:
        _import("milvus_lite", "Milvus")  # pymilvus imports it when the address is a file
        client_class = _import("pymilvus", "Milvus").MilvusClient
        with _milvus_errors(self._address):
            if not self._local:
                token = os.environ.get(MILVUS_TOKEN, "")
                return client_class(self._address, token=token, timeout=_MILVUS_TIMEOUT)
            client = client_class(self._address)
        _open_files[self._address] += 1
        return client

    def _load(self, name: str) -> bool:
        """Load a collection; False if it does not exist."""
        with _milvus_errors(self._address):
            if not self._client.has_collection(name):
                return False
            self._client.load_collection(name)
        return True

    def _create(self) -> str:
        from pymilvus import DataType

        name = f"counterfoil_{uuid.uuid4().hex[:12]}_{self._side}s"
        schema = self._client.create_schema(auto_id=False)
        schema.add_field("number", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self._width)
        params = self._client.prepare_index_params()
        build = {"M": _MILVUS_LINKS, "efConstruction": _MILVUS_EF}
        params.add_index("vector", index_type="HNSW", metric_type="IP", params=build)
        self._client.create_collection(
            name, schema=schema, index_params=params, consistency_level="Strong"
        )
        self._client.load_collection(name)
        return name


@contextmanager
def _milvus_errors(address: str) -> Iterator[None]:
    """Turn Milvus errors into one sentence, without its log of them."""
    import milvus_lite.server_manager  # noqa: F401 - creates its logger, which is silenced below
    from pymilvus.exceptions import MilvusException

    names = list(logging.root.manager.loggerDict)
    loggers = [logging.getLogger(name) for name in names if name.startswith(_MILVUS_LOGGERS)]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    except MilvusException as error:
        message = " ".join(str(getattr(error, "message", error)).split())[:200]
        if Path(address).name == MILVUS_FILE:
            advice = "its file serves one process at a time: is another one using it?"
        else:
            advice = f"a server must run there; if it needs a token, set {MILVUS_TOKEN}"
        raise ValueError(f"Milvus at {address} refuses ({message}); {advice}") from None
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


MILVUS = Engine(MilvusBackend, address=True)
