"""A folder of vectors with atomic commits.

``index.json`` names the files that count and is replaced as the last step of every write: a killed
write leaves the index as it was, plus files that the next write removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterfoil.core.io import read_json, write_json
from counterfoil.scoring.encode import Side
from counterfoil.search.ann import AnnBackend, BackendName, open_ann_backend
from counterfoil.search.collection import (
    Collection,
    CollectionState,
    NewVectors,
    StagedWrite,
    stage_write,
)

STATE_FILE = "index.json"
FORMAT = 2
_LOCK_FILE = ".lock"
_SUFFIXES = (".npy", ".jsonl", ".faiss", ".part")  # of files that a killed write may leave


@final
class IndexState(BaseModel):
    """The committed state of an index, as ``index.json`` holds it.

    Attributes:
        format: of the files.
        identity: digest of the model that made the vectors.
        model: its name or folder; relative if the model lies in the index.
        width: D.
        backend: the search backend.
        address: of a Milvus server, "" for a file in the index.
        half: whether vectors are stored in float16.
        writes: number of commits; new files are named after it.
        images: the collection of images.
        texts: the collection of texts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int = FORMAT
    identity: str
    model: str
    width: int = Field(ge=1)
    backend: BackendName = "exact"
    address: str = ""
    half: bool = False
    writes: int = Field(default=0, ge=0)
    images: CollectionState = CollectionState()
    texts: CollectionState = CollectionState()

    def collection(self, side: Side) -> CollectionState:
        """The state of one modality."""
        return self.images if side == "image" else self.texts


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index."""
    return (folder / STATE_FILE).is_file()


def read_state(folder: Path) -> IndexState:
    """Read the committed state; a `ValueError` if there is none, or no valid one."""
    if not is_index(folder):
        raise ValueError(
            f"{folder} is no index: {STATE_FILE} is not there; make one with `counterfoil index`"
        )
    content = read_json(folder / STATE_FILE, "the state of an index")
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise ValueError(
            f"{folder / STATE_FILE} has format {version}, and this version of counterfoil reads "
            f"format {FORMAT}; make the index again"
        )
    try:
        return IndexState.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]["msg"].lower()
        raise ValueError(
            f"{folder / STATE_FILE} is damaged: {first}; make the index again"
        ) from None


def write_state(folder: Path, state: IndexState) -> None:
    """Commit a state."""
    write_json(folder / STATE_FILE, state.model_dump(mode="json"))


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of an index for writing; a `ValueError` if another process does."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        yield
        return
    with (folder / _LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is writing to {folder}; try again when it is done"
            ) from None
        yield


@final
class VectorIndex:
    """Images and texts as vectors, in a folder.

    Raises:
        ValueError: there is none, it is damaged, or its backend cannot be opened.

    Attributes:
        folder: of the index.
        state: that is committed.
        images: the images.
        texts: the texts.
    """

    state: IndexState
    images: Collection
    texts: Collection

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._backends: dict[Side, AnnBackend | None] = {}
        self._load()

    @classmethod
    def create(cls, folder: Path, state: IndexState) -> Self:
        """Create an empty index in a new or empty folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder, state)
        return cls(folder)

    def collection(self, side: Side) -> Collection:
        """The images or the texts."""
        return self.images if side == "image" else self.texts

    def change(
        self,
        *,
        images: NewVectors | None = None,
        texts: NewVectors | None = None,
        remove_images: Sequence[int] = (),
        remove_texts: Sequence[int] = (),
    ) -> None:
        """Add and delete in one commit; when it is killed, nothing has changed.

        Args:
            images: to add; their ids are new, or deleted in the same commit.
            texts: to add; their ids are new, or deleted in the same commit.
            remove_images: rows to delete.
            remove_texts: rows to delete.

        Raises:
            ValueError: the vectors cannot be stored, or another process writes.
        """
        with write_lock(self.folder):
            before = read_state(self.folder)
            if before != self.state:
                raise ValueError(
                    f"{self.folder} was changed by another process; open the index again"
                )
            _remove_unused(self.folder, before)
            try:
                self._commit(
                    self._stage("image", images, remove_images),
                    self._stage("text", texts, remove_texts),
                )
            except BaseException:
                self.close()  # ANN backends may be ahead of the committed state
                self._load()
                raise
            self._load()
            _remove_unused(self.folder, self.state)

    def close(self) -> None:
        """Release files and connections."""
        for backend in self._backends.values():
            if backend is not None:
                backend.close()
        self._backends.clear()

    def _stage(self, side: Side, new: NewVectors | None, rows: Sequence[int]) -> StagedWrite:
        name = f"{self.state.writes:06d}-{side}s"
        return stage_write(self.collection(side), new, rows, name=name, half=self.state.half)

    def _commit(self, images: StagedWrite, texts: StagedWrite) -> None:
        changes = {
            "writes": self.state.writes + 1,
            "images": images.state,
            "texts": texts.state,
        }
        write_state(self.folder, self.state.model_copy(update=changes))
        for collection, staged in ((self.images, images), (self.texts, texts)):
            if collection.backend is not None and len(staged.removed):
                collection.backend.delete(staged.removed)

    def _load(self) -> None:
        """Load the committed state; again if another process removed its files meanwhile."""
        while True:
            state = read_state(self.folder)
            try:
                images, texts = self._open("image", state), self._open("text", state)
            except ValueError:
                self.close()
                if read_state(self.folder) == state:
                    raise
            else:
                self.state, self.images, self.texts = state, images, texts
                return

    def _open(self, side: Side, state: IndexState) -> Collection:
        own = state.collection(side)
        if side not in self._backends:  # opened once: updates keep it current
            self._backends[side] = open_ann_backend(
                state.backend,
                self.folder,
                address=state.address,
                side=side,
                width=state.width,
                name=own.finder,
            )
        return Collection(self.folder, own, state.width, self._backends[side])


def _remove_unused(folder: Path, state: IndexState) -> None:
    """Remove files that the state does not name, as replaced and killed writes leave them."""
    used = state.images.files | state.texts.files
    for path in folder.iterdir():
        if path.is_file() and path.suffix in _SUFFIXES and path.name not in used:
            path.unlink()
