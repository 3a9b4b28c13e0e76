"""Where the pictures of a set of foils are, whole or in part."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from PIL import Image

from counterfoil.corpus.foil_forms import Box
from counterfoil.corpus.pictures import (
    DrawnPictures,
    PictureFiles,
    Pictures,
    is_picture_name,
    open_picture,
)


def found_pictures(shots: Sequence[tuple[str, Box | None]], folder: Path, of: str) -> Pictures:
    """Pictures by name, as paths below the folder, or anywhere in it.

    Names are compared as they are; failing that without folder and file ending; failing that by
    the number they end in, as COCO's file names do, where one of the two is that number alone.

    Args:
        shots: names, with the part of the picture that is shown.
        folder: where to look.
        of: the set, for messages.

    Raises:
        ValueError: pictures are missing.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; the pictures of {of} are needed there")
    paths = _paths([name for name, _ in shots], folder, of)
    if not any(box for _, box in shots):
        return PictureFiles(paths)
    parts = [(path, box) for path, (_, box) in zip(paths, shots)]
    return DrawnPictures(partial(_part, parts), range(len(parts)), _name(parts))


def _paths(names: Sequence[str], folder: Path, of: str) -> list[Path]:
    paths = {name: folder / name for name in names if (folder / name).is_file()}
    lost = [name for name in dict.fromkeys(names) if name not in paths]
    if lost:
        held = sorted(Path(top) / file for top, _, files in os.walk(folder) for file in files)
        for key in (_stem, _number):
            by_key: dict[str, list[Path]] = {}
            for file in filter(is_picture_name, held):
                by_key.setdefault(key(file.name), []).append(file)
            by_key.pop("", None)
            found = {name: _same(name, by_key.get(key(name), ())) for name in lost}
            paths |= {name: path for name, path in found.items() if path is not None}
            lost = [name for name in lost if name not in paths]
    if lost:
        raise ValueError(
            f"{len(lost)} of {len(set(names))} pictures of {of} are not in {folder}, such as "
            f"{lost[0]!r}; give the folder of all of them"
        )
    return [paths[name] for name in names]


def _same(name: str, files: Sequence[Path]) -> Path | None:
    """The first of these that may be meant: of the same name, or if either is a number alone."""
    fits = (f for f in files if _stem(name) == f.stem or _is_number(name) or _is_number(f.name))
    return next(fits, None)


def _is_number(name: str) -> bool:
    """Whether a name is a number alone, or after what COCO puts before it."""
    return re.fullmatch(r"(COCO_[a-z]+\d+_)?\d+", _stem(name)) is not None


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


def _number(name: str) -> str:
    digits = re.search(r"\d+$", _stem(name))
    return str(int(digits[0])) if digits else ""


def _part(parts: Sequence[tuple[Path, Box | None]], row: int) -> Image.Image:
    path, box = parts[row]
    picture = open_picture(path)
    if box is None:
        return picture
    left, top, width, height = box
    return picture.crop((left, top, left + width, top + height))


def _name(parts: Sequence[tuple[Path, Box | None]]) -> str:
    """A name for what is shown, another one when a file changes."""
    digest = hashlib.sha256()
    for path, box in parts:
        status = path.stat()
        digest.update(f"{path} {box} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"parts-{digest.hexdigest()[:16]}"
