"""What an index says of itself: one small file, which is replaced whole and decides what counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterfoil.files import read_json, write_json

STATE = "index.json"
FORMAT = 2
Backend: TypeAlias = Literal["exact", "faiss-hnsw", "faiss-ivf-pq", "milvus"]
_LOCK = ".lock"


@final
class ShelfState(BaseModel):
    """What counts of one side of an index.

    Attributes:
        parts: files of vectors and entries, in the order of numbers.
        dead: numbers that lie in the parts and were deleted.
        next: the number that the next item gets; none is given twice.
        finder: the finder's own name of what it keeps, "" where it keeps nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    parts: tuple[str, ...] = ()
    dead: tuple[int, ...] = ()
    next: int = Field(default=0, ge=0)
    finder: str = ""


@final
class IndexState(BaseModel):
    """What an index is, and what counts of its files.

    Attributes:
        format: of the files.
        identity: digest of the model that made the vectors.
        model: the model's name or folder; relative where it lies in the index.
        width: D.
        backend: what finds candidates.
        address: of a Milvus server, "" for a file in the index.
        half: whether vectors are kept in float16.
        writes: how many there have been; files are named after it.
        images: of the images.
        texts: of the texts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int = FORMAT
    identity: str
    model: str
    width: int = Field(ge=1)
    backend: Backend = "exact"
    address: str = ""
    half: bool = False
    writes: int = Field(default=0, ge=0)
    images: ShelfState = ShelfState()
    texts: ShelfState = ShelfState()


def is_index(folder: Path) -> bool:
    """Whether an index lies in a folder."""
    return (folder / STATE).is_file()


def read_state(folder: Path) -> IndexState:
    """What an index says of itself.

    Raises:
        ValueError: there is none, it is damaged, or another version wrote it.
    """
    if not is_index(folder):
        raise ValueError(
            f"{folder} is no index: {STATE} is not there; make one with `counterfoil index`"
        )
    plain = read_json(folder / STATE, "the state of an index")
    found = plain.get("format") if isinstance(plain, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"{folder / STATE} has format {found}, and this version of counterfoil reads format "
            f"{FORMAT}; make the index again"
        )
    try:
        return IndexState.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]["msg"].lower()
        raise ValueError(f"{folder / STATE} is damaged: {first}; make the index again") from None


def write_state(folder: Path, state: IndexState) -> None:
    """Let this count from now on."""
    write_json(folder / STATE, state.model_dump(mode="json"))


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only process that writes to an index.

    Raises:
        ValueError: another one does.
    """
    try:
        import fcntl
    except ImportError:  # a system without it has no locks of this kind
        yield
        return
    with (folder / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is writing to {folder}; try again when it is done"
            ) from None
        yield
