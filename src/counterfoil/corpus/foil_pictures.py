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
    the number they end in, as COCO's file names do.

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
        files = [Path(top) / file for top, _, held in os.walk(folder) for file in sorted(held)]
        for key in (_stem, _number):
            by_key: dict[str, Path] = {}
            for file in filter(is_picture_name, files):
                by_key.setdefault(key(file.name), file)
            by_key.pop("", None)
            paths |= {name: by_key[key(name)] for name in lost if key(name) in by_key}
            lost = [name for name in lost if name not in paths]
    if lost:
        raise ValueError(
            f"{len(lost)} of {len(set(names))} pictures of {of} are not in {folder}, such as "
            f"{lost[0]!r}; give the folder of all of them"
        )
    return [paths[name] for name in names]


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
