"""Densely Captioned Images (DCI): ``splits.json``, and a JSON file for each picture.

``densely_captioned_images/splits.json`` is ``{"train": ["1.json", …], "valid": […], "test": […]}``,
``annotations/1.json`` (or ``complete/1.json``) holds ``{"image", "short_caption",
"extra_caption", …}``, and pictures are in ``photos/`` (https://arxiv.org/abs/2312.08578).
"""

from __future__ import annotations

from pathlib import Path

from counterfoil.core.io import read_json
from counterfoil.data.readers.annotations import (
    NO_CAPTION,
    Annotation,
    Annotations,
    annotation_format,
)
from counterfoil.data.readers.source import Source

_FOLDERS = ("annotations", "complete")  # without and with summaries; captions are the same


def is_dci(source: Source, file: Path) -> bool:
    """Return True for the list of splits beside a folder of annotations."""
    return file.name == "splits.json" and _annotations(file) is not None


def read_dci(source: Source, file: Path) -> Annotations:
    """Read the caption of each picture: the short and the extra one, as the authors extend it.

    Captions of parts of a picture are about these parts, and are not read.
    """
    listed = source.document(file)
    if not isinstance(listed, dict) or not all(
        isinstance(names, list) for names in listed.values()
    ):
        raise ValueError(f'{file} is not as DCI writes it: {{"train": ["1.json", …], …}} is needed')
    folder = _annotations(file)
    assert folder is not None, "`is_dci` found it"
    result = Annotations(name="DCI")
    for split, names in listed.items():
        for name in map(str, names):
            path = folder / Path(name).name  # never outside
            about = read_json(path, "captions of a picture")
            if not isinstance(about, dict) or not about.get("image"):
                raise ValueError(f'{path} names no picture; "image" and captions are needed')
            texts = (
                str(about.get(key) or "").strip() for key in ("short_caption", "extra_caption")
            )
            caption = "\n".join(filter(None, texts))
            if not caption:
                result.leave_out(NO_CAPTION, str(about["image"]))
            result.rows.append(
                Annotation(
                    picture=Path(str(about["image"])).name,
                    texts=[caption] if caption else [],
                    where=str(path),
                    split=split,
                )
            )
            result.files.append(path)
    return result


def _annotations(file: Path) -> Path | None:
    """The folder of annotations beside a list of splits."""
    found = (file.parent / name for name in _FOLDERS if (file.parent / name).is_dir())
    return next(found, None)


DCI = annotation_format(
    "Densely Captioned Images (splits.json beside annotations/)", is_dci, read_dci, order=0
)
