"""Ready-made word vectors, from files in the text format of GloVe.

A line is a word and its numbers, with one blank between all of them. Words may have blanks in them
(GloVe 840B has such), so the numbers are counted from the end. The file is read as a stream, and
what one vocabulary needs of it is kept in the cache.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from counterfoil.core.console import progress
from counterfoil.core.io import atomic_write
from counterfoil.data.tokenizers import cache_folder

_FIRST = 100  # lines from which the width is known
_AT_ONCE = 1 << 24  # bytes between two moves of the progress bar
_HEADER = re.compile(rb"\d+ \d+\s*")  # how many words, how many numbers: word2vec and fastText


@final
@dataclass(frozen=True, eq=False, slots=True)
class WordVectors:
    """Vectors of those words of a vocabulary that a file knows.

    Attributes:
        rows: (W,) long, ids of the words, ascending.
        vectors: (W, F) float.
    """

    rows: Tensor
    vectors: Tensor

    def __len__(self) -> int:
        return len(self.rows)


def word_vectors(path: Path, words: Sequence[str]) -> WordVectors:
    """What a file knows of these words; where it stands twice the first line counts.

    A word that is not there as it is written is looked for without hyphens, full stops and
    apostrophes, and of "his/her" the first half, as the authors of CHAN, ESA and DivE do.

    Args:
        path: text, or a zip file of one text.
        words: id to word.

    Raises:
        ValueError: there is no such file, it is not in this format, or knows none of the words.
    """
    if not path.is_file():
        raise ValueError(
            f"{path} is no file; give word vectors in GloVe's text format, such as "
            "glove.840B.300d.txt"
        )
    kept = _cached(path, words)
    if (found := _opened(kept)) is not None:
        return found
    found = _chosen(path, words, _read(path, {form for word in words for form in _forms(word)}))
    with (
        suppress(OSError),
        atomic_write(kept) as temporary,
    ):  # a cache that cannot be written is none
        save_file({"rows": found.rows, "vectors": found.vectors}, temporary)
    return found


def _forms(word: str) -> tuple[bytes, bytes]:
    plain = re.sub(r"[-.']", "", word).partition("/")[0]
    return word.encode(), plain.encode()


def _chosen(path: Path, words: Sequence[str], read: Mapping[bytes, Tensor]) -> WordVectors:
    chosen = {
        row: read[form]
        for row, word in enumerate(words)
        for form in reversed(_forms(word))
        if form in read
    }
    if not chosen:
        raise ValueError(
            f"{path} has a vector for none of the {len(words):,} words, such as "
            f"{words[len(words) // 2]!r}; give vectors of lower-case words of that language"
        )
    rows = sorted(chosen)
    return WordVectors(torch.tensor(rows), torch.stack([chosen[row] for row in rows]))


def _read(path: Path, wanted: set[bytes]) -> dict[bytes, Tensor]:
    """Vectors of the wanted words that are in the file."""
    width, first = _layout(path)
    found: dict[bytes, Tensor] = {}
    with _stream(path) as (lines, size), progress(f"bytes of {path.name}", size) as advance:
        passed = 0
        for number, line in enumerate(lines, 1):
            passed += len(line)
            if passed > _AT_ONCE:
                advance(passed)
                passed = 0
            word = line[: line.find(b" ")]
            if number < first or word not in wanted or word in found:
                continue
            if line.rsplit(maxsplit=width)[0] == word:  # and not the beginning of a longer one
                found[word] = _numbers(path, number, line, width)
    return found


def _layout(path: Path) -> tuple[int, int]:
    """Numbers of a vector, and the first line that is one."""
    with _stream(path) as (lines, _):
        head = list(islice(lines, _FIRST))
    first = 2 if head and _HEADER.fullmatch(head[0]) else 1
    width = min((line.count(b" ", 0, len(line.rstrip())) for line in head[first - 1 :]), default=0)
    if width < 2:
        raise ValueError(
            f"{path} is not in GloVe's text format: a line is a word and its numbers, with one "
            "blank between them"
        )
    return width, first


def _numbers(path: Path, number: int, line: bytes, width: int) -> Tensor:
    try:
        vector = torch.tensor([float(field) for field in line.split()[1:]])
    except ValueError:
        vector = torch.empty(0)
    if len(vector) != width or not bool(vector.isfinite().all()):
        told = line[:40].decode(errors="replace").strip()
        raise ValueError(
            f"line {number:,} of {path} is not a word and {width} numbers, as the first lines are: "
            f"{told!r}; the file is damaged"
        )
    return vector


@contextmanager
def _stream(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """The lines of a file, and how many bytes they have."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as lines:
            yield lines, path.stat().st_size
        return
    with zipfile.ZipFile(path) as archive:
        inside = archive.namelist()
        if len(inside) != 1:
            raise ValueError(
                f"{path} holds {len(inside)} files ({', '.join(inside[:4])}); unpack it and name "
                "the one to use"
            )
        with archive.open(inside[0]) as lines:
            yield lines, archive.getinfo(inside[0]).file_size


def _cached(path: Path, words: Sequence[str]) -> Path:
    """Where the vectors of these words are kept, as long as the file does not change."""
    there = path.stat()
    text = "\x00".join([str(path.resolve()), str(there.st_size), str(there.st_mtime_ns), *words])
    name = hashlib.sha256(text.encode()).hexdigest()[:24]
    return cache_folder() / "vectors" / f"{name}.safetensors"


def _opened(path: Path) -> WordVectors | None:
    """What the cache holds, None where it is absent or damaged."""
    try:
        kept = load_file(path)
        rows, vectors = kept["rows"], kept["vectors"]
    except (SafetensorError, KeyError, OSError):
        return None
    return WordVectors(rows, vectors) if len(rows) == len(vectors) else None
