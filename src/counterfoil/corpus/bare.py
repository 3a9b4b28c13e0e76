"""A folder of pictures about which nobody has said anything yet."""

from __future__ import annotations

from pathlib import Path

import torch

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.pictures import PictureFiles, is_picture_name

_TOLD = (".txt", ".json", ".jsonl", ".csv", ".tsv", ".npy", ".arrow", ".parquet")
_NOTES = ("readme", "license", "licence", "notice", "decisions")


def is_bare(folder: Path) -> bool:
    """Whether a folder holds pictures, and nothing that could be captions."""
    if not folder.is_dir():
        return False
    files = [*folder.glob("*"), *folder.glob("*/*")]
    told = (f for f in files if f.suffix.lower() in _TOLD and not f.stem.lower().startswith(_NOTES))
    return next(told, None) is None and any(map(is_picture_name, files))


def read_bare(folder: Path, name: str | None = None) -> Corpus:
    """The pictures of a folder and of its subfolders, in order of names, without captions.

    Args:
        folder: where.
        name: what to call the corpus; the folder's name by default.
    """
    files = [*folder.glob("*"), *folder.glob("*/*")]
    pictures = sorted(path for path in files if is_picture_name(path) and path.is_file())
    return Corpus(
        name=name or folder.resolve().name,
        image_ids=[path.relative_to(folder).as_posix() for path in pictures],
        text_ids=[],
        texts=[],
        owner=torch.empty(0, dtype=torch.long),
        splits=[""] * len(pictures),
        pictures=PictureFiles(pictures),
    )
