"""Candidates by Milvus: a file in the index that this process serves to itself, or a server."""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.engine.index_finder import Vectors

FILE = "milvus.db"
TOKEN = "COUNTERFOIL_MILVUS_TOKEN"  # of a server, in the environment and nowhere else
_MOST = 16384  # results that a server returns of a query
_LINKS, _CARE = 32, 128  # of the graph: neighbours of a vector, and candidates when it is built
_NUMBERS = 2**21  # sent together
_LOUD = ("pymilvus", "milvus_lite", "grpc")  # whose loggers print what is said in a sentence here
_SECONDS = 10.0  # to reach a server in
_open: Counter[str] = Counter()  # how often each file is open in this process


@final
class MilvusFinder:
    """A Milvus collection with an HNSW index.

    Args:
        folder: of the index.
        address: of the server, "" for a file in the folder.
        side: what the vectors are of, for the collection's name.
        width: D.
        name: of the collection, "" while there is none.

    Raises:
        ValueError: Milvus is not installed, or cannot be reached or opened.
    """

    def __init__(self, folder: Path, address: str, side: str, width: int, name: str) -> None:
        self._where = address or str(folder.resolve() / FILE)
        self._local, self._side, self._width, self._name = not address, side, width, name
        self._client = self._connected()
        if name and not self._has(name):
            self.close()
            raise ValueError(
                f"Milvus at {self._where} has no collection {name!r} any more; make the index again"
            )

    def propose(self, queries: Tensor, k: int) -> Tensor:
        """About the k nearest of each query; none while there is no collection."""
        if not self._name:
            return torch.empty(len(queries), 0, dtype=torch.long)
        k = min(k, _MOST)
        with _told(self._where):
            found = self._client.search(
                self._name,
                data=queries.tolist(),
                limit=k,
                output_fields=["number"],
                search_params={"metric_type": "IP", "params": {"ef": max(2 * k, _CARE)}},
            )
        numbers = torch.full((len(queries), k), -1)
        for row, hits in enumerate(found):
            own = [int(hit["number"]) for hit in hits]
            numbers[row, : len(own)] = torch.tensor(own, dtype=torch.long)
        return numbers

    def update(
        self, count: int, living: Callable[[], Vectors], more: Vectors | None, tag: str
    ) -> str:
        """Send what is new; what a killed write had sent under the same numbers is replaced."""
        if more is None:
            return self._name
        with _told(self._where):
            name = self._name or self._created()
            numbers, vectors = more
            size = max(1, _NUMBERS // self._width)
            for ids, values in zip(torch.split(numbers, size), torch.split(vectors, size)):
                rows = zip(ids.tolist(), values.numpy(), strict=True)
                self._client.upsert(name, [{"number": i, "vector": value} for i, value in rows])
        self._name = name
        return name

    def forget(self, numbers: Tensor) -> None:
        """Delete what counts no more."""
        with _told(self._where):
            for ids in torch.split(numbers, _MOST):
                self._client.delete(self._name, ids=ids.tolist())

    def close(self) -> None:
        """Leave the server; the file's own is stopped with its last user."""
        self._client.close()
        if not self._local:
            return
        _open[self._where] -= 1
        if not _open[self._where]:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self._where)

    def _connected(self) -> Any:
        client = _library()
        with _told(self._where):
            if not self._local:
                token = os.environ.get(TOKEN, "")
                return client(self._where, token=token, timeout=_SECONDS)
            found = client(self._where)
        _open[self._where] += 1
        return found

    def _has(self, name: str) -> bool:
        with _told(self._where):
            if not self._client.has_collection(name):
                return False
            self._client.load_collection(name)
        return True

    def _created(self) -> str:
        from pymilvus import DataType

        name = f"counterfoil_{uuid.uuid4().hex[:12]}_{self._side}s"
        schema = self._client.create_schema(auto_id=False)
        schema.add_field("number", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self._width)
        params = self._client.prepare_index_params()
        build = {"M": _LINKS, "efConstruction": _CARE}
        params.add_index("vector", index_type="HNSW", metric_type="IP", params=build)
        self._client.create_collection(
            name, schema=schema, index_params=params, consistency_level="Strong"
        )
        self._client.load_collection(name)
        return name


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Say in a sentence what Milvus says in a page."""
    import milvus_lite.server_manager  # noqa: F401 - whose logger is to be known
    from pymilvus.exceptions import MilvusException

    known = list(logging.root.manager.loggerDict)
    loggers = [logging.getLogger(name) for name in known if name.startswith(_LOUD)]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    except MilvusException as error:
        said = " ".join(str(getattr(error, "message", error)).split())[:200]
        raise ValueError(f"Milvus at {where} refuses ({said}); {_advice(where)}") from None
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _advice(where: str) -> str:
    if Path(where).name == FILE:
        return "its file serves one process at a time: is another one using it?"
    return f"a server must run there, and its token, if it has one, stand in {TOKEN}"


def _library() -> Any:
    try:
        import milvus_lite  # noqa: F401 - pymilvus looks for it when it is given a file
        from pymilvus import MilvusClient
    except ImportError:
        raise ValueError(
            'this index is searched by Milvus, which is not installed: pip install "counterfoil'
            '[index]"'
        ) from None
    return MilvusClient
