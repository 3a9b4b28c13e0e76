"""Cached files on this machine: what they take, and their removal."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from counterfoil.core.config import parse_choice
from counterfoil.core.io import cache_folder

KINDS = {
    "files": "pictures for other trainers",
    "pixels": "decoded pictures",
    "states": "outputs of frozen models",
    "tokens": "tokenised captions",
    "vectors": "word vectors",
}
DAY = 24 * 3600


@final
@dataclass(frozen=True, slots=True)
class CachedFiles:
    """Cached files of one kind."""

    kind: str  # one of `KINDS`
    entries: tuple[Path, ...]  # files, and folders of files that belong together
    size: int  # bytes
    days: float  # since the oldest entry was written; 0 for none


def cached_files(kind: str, *, days: float = 0) -> CachedFiles:
    """Find the cached files of a kind that were written at least so many days ago."""
    parse_choice(KINDS, kind, "a kind of cached files")
    folder, now = cache_folder() / kind, time.time()
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    ages = {path: (now - path.lstat().st_mtime) / DAY for path in entries}
    old = tuple(path for path, age in ages.items() if age >= days)
    size = sum(file.lstat().st_size for path in old for file in (path, *_below(path)))
    return CachedFiles(kind, old, size, max((ages[path] for path in old), default=0))


def remove_cached(files: CachedFiles) -> None:
    """Delete cached files; they are made again when they are needed."""
    for path in files.entries:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _below(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from path.rglob("*")
