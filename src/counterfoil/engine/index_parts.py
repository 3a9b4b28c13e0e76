"""The files of an index: vectors, their numbers, and what each of them stands for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from counterfoil.files import read_array, write_array, write_text

Array = npt.NDArray[Any]
_WHAT = "a part of an index"


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """What a vector stands for.

    Attributes:
        id: the data set's own name of the image or text.
        text: the caption; "" of an image.
        image: id of the image that a text describes, "" for none.
        place: path of an image's picture, "" for none; relative where it lies in the index.
        content: digest of an image, by which it is known again; "" where nobody noted it.
        stamp: size and time of its file when it was read; "" where they do not tell a change.
    """

    id: str
    text: str = ""
    image: str = ""
    place: str = ""
    content: str = ""
    stamp: str = ""


@final
class Part:
    """Vectors that were written together, mapped into memory.

    On disk ``NAME.npy`` (N, D), ``NAME.numbers.npy`` (N,) ascending, and ``NAME.jsonl``, an entry
    a line.

    Args:
        folder: where.
        name: of the files.
        width: D.

    Raises:
        ValueError: a file is missing, damaged or of another width.

    Attributes:
        vectors: (N, D) float32 or float16; nothing that is written to it reaches the disk.
        numbers: (N,) int64.
    """

    def __init__(self, folder: Path, name: str, width: int) -> None:
        self.name, self._lines = name, folder / f"{name}.jsonl"
        vectors = read_array(folder / f"{name}.npy", _WHAT)
        self.numbers = read_array(folder / f"{name}.numbers.npy", _WHAT, mapped=False)
        kept = vectors.dtype in (np.float16, np.float32)
        if vectors.ndim != 2 or vectors.shape != (len(self.numbers), width) or not kept:
            raise ValueError(
                f"{folder / name}.npy is {vectors.dtype.name} of shape {vectors.shape} and does "
                f"not fit an index of width {width}; make the index again"
            )
        assert isinstance(vectors, np.memmap)
        self.vectors: Array = np.memmap(  # torch takes no array that cannot be written to
            folder / f"{name}.npy", vectors.dtype, "c", vectors.offset, vectors.shape
        )

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def entries(self) -> list[Entry]:
        """What each of the vectors stands for.

        Raises:
            ValueError: the file is missing or damaged.
        """
        try:
            lines = self._lines.read_text(encoding="utf-8").splitlines()
            found = [Entry(**json.loads(line)) for line in lines]
        except FileNotFoundError:
            raise ValueError(
                f"{self._lines} does not exist: another process has changed the index since, or it "
                "is damaged; open it again, and if that fails make it again"
            ) from None
        except (OSError, UnicodeDecodeError, ValueError, TypeError) as error:
            raise ValueError(
                f"{self._lines} cannot be read as entries of an index: {error}; make the index "
                "again"
            ) from error
        if len(found) != len(self):
            raise ValueError(
                f"{self._lines} has {len(found):,} entries for {len(self):,} vectors; make the "
                "index again"
            )
        return found


def write_part(
    folder: Path, name: str, numbers: Array, vectors: Array, entries: Sequence[Entry]
) -> None:
    """Write what `Part` reads; it counts once the state names it."""
    assert len(numbers) == len(vectors) == len(entries) > 0
    write_array(folder / f"{name}.npy", vectors)
    write_array(folder / f"{name}.numbers.npy", numbers)
    told = ({k: v for k, v in asdict(entry).items() if v} for entry in entries)
    # JSON leaves U+2028 as it is, and splitlines does not
    write_text(folder / f"{name}.jsonl", "".join(json.dumps(one) + "\n" for one in told))


def files_of(name: str) -> set[str]:
    """Names of a part's files."""
    return {f"{name}.npy", f"{name}.numbers.npy", f"{name}.jsonl"}
