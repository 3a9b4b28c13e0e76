"""COCO's own files of captions, ``captions_val2017.json``, and those of the same shape.

``{"images": [{"id", "file_name"}], "annotations": [{"image_id", "id", "caption"}]}``; nocaps has
it too. Files of one folder belong to the splits that their names say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterfoil.core.io import parsing
from counterfoil.data.dataset import first_values
from counterfoil.data.readers.annotations import (
    NO_CAPTION,
    Annotation,
    Annotations,
    annotation_format,
)
from counterfoil.data.readers.columns import captions_of
from counterfoil.data.readers.source import Source

_TECHNICAL = (
    "id", "file_name", "height", "width", "license", "coco_url", "flickr_url", "date_captured",
    "open_images_id",
)  # fmt: skip
_PROBES = 100  # records that are looked at
_UNKNOWN = "captions of an image that is not among the images"
_TWICE = "captions that stand there twice"


def is_coco(source: Source, file: Path) -> bool:
    """Return True for a file of captions in COCO's shape.

    Raises:
        ValueError: the user gave a file of the shape with boxes or without names of files.
    """
    head = source.head(file)
    if file.suffix.lower() != ".json" or not ('"images"' in head or '"annotations"' in head):
        return False
    document = source.document_or_none(file)
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        return False
    notes = document.get("annotations")
    if not isinstance(notes, list):
        return False
    captions = any(isinstance(n, dict) and "caption" in n for n in notes[:_PROBES])
    named = any(isinstance(i, dict) and _file_name(i) for i in document["images"][:_PROBES])
    if source.path == file and not (captions and named):
        lacks = "captions" if not captions else "names of files of its images"
        raise ValueError(
            f"{file} is in COCO's form, but holds no {lacks}; give captions_train2017.json, "
            "captions_val2017.json, or the folder that holds them"
        )
    return captions and named


def read_coco(source: Source, file: Path) -> Annotations:
    """Read a file; ids are the names of the pictures and the numbers of the captions."""
    document = source.document(file)
    result = Annotations(pictures_needed=False)
    by_id: dict[Any, Annotation] = {}
    numbers: dict[str, list[str]] = {}
    with parsing(file, "COCO's captions"):
        for image in document["images"]:
            name = _file_name(image)
            if not name:
                raise ValueError(f"image {image.get('id')!r} has no file_name")
            if (known := by_id.get(image["id"])) is not None and known.picture != name:
                raise ValueError(
                    f"the id {image['id']!r} is that of {known.picture!r} and of {name!r}; every "
                    "image has its own"
                )
            row = by_id.setdefault(image["id"], Annotation(name, [], where=f"{file}, {name}"))
            row.split = str(image.get("split") or "")
            first_values(row.columns, image, _TECHNICAL)
        seen: set[tuple[Any, Any, str]] = set()
        for note in document["annotations"]:
            number, owner = note.get("id"), by_id.get(note["image_id"])
            texts, nulls = captions_of(note.get("caption"), f"annotation {number!r}")
            mark = (number, note["image_id"], "\n".join(texts))
            if owner is None:
                result.leave_out(_UNKNOWN, str(note["image_id"]))
            elif nulls:
                result.leave_out(NO_CAPTION, owner.picture)
            elif number is not None and mark in seen:
                result.leave_out(_TWICE, str(number))
            else:
                owner.texts += texts
                numbers.setdefault(owner.picture, []).append("" if number is None else str(number))
            seen.add(mark)
    for row in by_id.values():
        row.text_ids = tuple(filter(None, numbers.get(row.picture, ())))
    result.rows = list(by_id.values())
    return result


def _file_name(image: dict[str, Any]) -> str:
    """The name of an image's file; the last part of its address where there is no other."""
    if name := image.get("file_name"):
        return str(name)
    return str(image.get("coco_url") or image.get("flickr_url") or "").rpartition("/")[2]


COCO = annotation_format("COCO's captions_*.json (or its folder annotations)", is_coco, read_coco)
