"""Pretrained word vectors from files in the text format of GloVe.

A line is a word and its numbers, separated by single blanks. Words may contain blanks (GloVe 840B
has some), so numbers are counted from the end. The file is read as a stream, and the vectors of a
vocabulary are cached.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from counterfoil.core.console import progress
from counterfoil.core.io import atomic_write, cache_folder

_HEAD_LINES = 100  # from which the width is inferred
_PROGRESS_BYTES = 1 << 24  # between two updates of the progress bar
_HEADER = re.compile(rb"\d+ \d+\s*")  # first line of word2vec and fastText: words and width


@final
@dataclass(frozen=True, eq=False, slots=True)
class WordVectors:
    """Vectors of the words of a vocabulary that a file contains."""

    rows: Tensor  # (W,) long, ids of the words, ascending
    vectors: Tensor  # (W, F) float

    def __len__(self) -> int:
        return len(self.rows)


def word_vectors(path: Path, words: Sequence[str]) -> WordVectors:
    """Read the vectors of some words; of equal lines the first counts.

    A word that the file lacks is looked up without hyphens, full stops and apostrophes, and of
    "his/her" the first half, as in the code of CHAN, ESA and DivE.
    """
    if not path.is_file():
        raise ValueError(
            f"{path} is no file; give word vectors in GloVe's text format, such as "
            "glove.840B.300d.txt"
        )
    status = path.stat()
    facts = [str(path.resolve()), str(status.st_size), str(status.st_mtime_ns), *words]
    name = hashlib.sha256("\x00".join(facts).encode()).hexdigest()[:24]
    cache = cache_folder() / "vectors" / f"{name}.safetensors"
    with suppress(SafetensorError, OSError):  # absent or damaged
        cached = load_file(cache)
        if set(cached) == {"rows", "vectors"} and len(cached["rows"]) == len(cached["vectors"]):
            return WordVectors(**cached)
    chosen = _choose(path, words, _read(path, {form for word in words for form in _forms(word)}))
    with suppress(OSError), atomic_write(cache) as temporary:  # the cache is optional
        save_file({"rows": chosen.rows, "vectors": chosen.vectors}, temporary)
    return chosen


def _forms(word: str) -> tuple[bytes, bytes]:
    """The word as written, and its simplified form."""
    plain = re.sub(r"[-.']", "", word).partition("/")[0]
    return word.encode(), plain.encode()


def _choose(path: Path, words: Sequence[str], vectors: Mapping[bytes, Tensor]) -> WordVectors:
    chosen = {
        row: vectors[form]
        for row, word in enumerate(words)
        for form in reversed(_forms(word))  # the last entry wins: the word as written
        if form in vectors
    }
    if not chosen:
        raise ValueError(
            f"{path} has a vector for none of the {len(words):,} words, such as "
            f"{words[len(words) // 2]!r}; give vectors of lower-case words of that language"
        )
    rows = sorted(chosen)
    return WordVectors(torch.tensor(rows), torch.stack([chosen[row] for row in rows]))


def _read(path: Path, wanted: set[bytes]) -> dict[bytes, Tensor]:
    """Vectors of the wanted words that the file contains."""
    vectors: dict[bytes, Tensor] = {}
    with _stream(path) as (lines, size), progress(f"bytes of {path.name}", size) as advance:
        head = list(islice(lines, _HEAD_LINES))
        first = 2 if head and _HEADER.fullmatch(head[0]) else 1  # line with a vector
        blanks = (line.count(b" ", 0, len(line.rstrip())) for line in head[first - 1 :])
        if (width := min(blanks, default=0)) < 2:
            raise ValueError(
                f"{path} is not in GloVe's text format: a line is a word and its numbers, with one "
                "blank between them"
            )
        passed = 0
        for number, line in enumerate(chain(head, lines), 1):
            passed += len(line)
            if passed > _PROGRESS_BYTES:
                advance(passed)
                passed = 0
            word = line[: line.find(b" ")]
            if number < first or word not in wanted or word in vectors:
                continue
            if line.rsplit(maxsplit=width)[0] == word:  # not the start of a longer word
                vectors[word] = _numbers(path, number, line, width)
    return vectors


def _numbers(path: Path, number: int, line: bytes, width: int) -> Tensor:
    try:
        vector = torch.tensor([float(field) for field in line.split()[1:]])
    except ValueError:
        vector = torch.empty(0)
    if len(vector) != width or not bool(vector.isfinite().all()):
        start = line[:40].decode(errors="replace").strip()
        raise ValueError(
            f"line {number:,} of {path} is not a word and {width} numbers, as the first lines are: "
            f"{start!r}; the file is damaged"
        )
    return vector


@contextmanager
def _stream(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """The lines of a file, and its size in bytes."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as lines:
            yield lines, path.stat().st_size
        return
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(names) != 1:
            raise ValueError(
                f"{path} holds {len(names)} files ({', '.join(names[:4])}); unpack it and name "
                "the one to use"
            )
        with archive.open(names[0]) as lines:
            yield lines, archive.getinfo(names[0]).file_size
