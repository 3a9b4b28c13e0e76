"""Karpathy's JSON files of Flickr8k, Flickr30K and MS-COCO.

``{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw", "sentid"}]}], "dataset"?}``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterfoil.data.readers.annotations import Annotation, Annotations, annotation_format
from counterfoil.data.readers.source import Source


@final
class _Sentence(BaseModel):
    model_config = ConfigDict(extra="ignore")
    raw: str | None = None
    tokens: list[str] = Field(default_factory=list)
    sentid: int | str | None = None


@final
class _Image(BaseModel):
    model_config = ConfigDict(extra="ignore")
    filename: str = Field(min_length=1)
    filepath: str = ""
    split: str = Field(min_length=1)
    sentences: list[_Sentence]


def is_karpathy(source: Source, file: Path) -> bool:
    """Return True for such a file, by its name or content."""
    if file.suffix.lower() != ".json":
        return False
    if file.name.startswith("dataset_"):
        return True
    if '"images"' not in source.head(file):
        return False
    document = source.document_or_none(file)
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        return False
    return "annotations" not in document  # those of COCO


def read_karpathy(source: Source, file: Path) -> Annotations:
    """Read a file; ids are file names and sentence numbers.

    The folder of the images may be flat or have the subfolders that the file names.
    """
    document = source.document(file)
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise ValueError(
            f'{file} is not a Karpathy data set: {{"images": [{{"filename", "split", "sentences"}}]'
            "} is needed"
        )
    name = str(document.get("dataset") or file.stem.removeprefix("dataset_"))
    result = Annotations(name=name, pictures_needed=False)
    seen: set[str] = set()
    for place, entry in enumerate(document["images"]):
        image = _validated(entry, place, file)
        if image.filename in seen:
            raise ValueError(
                f"{file}: image id {image.filename!r} occurs twice; every image has its own id"
            )
        seen.add(image.filename)
        numbers = [s.sentid for s in image.sentences]
        result.rows.append(
            Annotation(
                picture=f"{image.filepath}/{image.filename}".lstrip("/"),
                texts=[s.raw if s.raw is not None else " ".join(s.tokens) for s in image.sentences],
                where=f"{file}, images[{place}]",
                id=image.filename,
                split=image.split,
                text_ids=() if None in numbers else tuple(map(str, numbers)),
            )
        )
    return result


def _validated(entry: Any, place: int, path: Path) -> _Image:
    try:
        return _Image.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path}: images[{place}].{field}: {first['msg']}") from None


KARPATHY = annotation_format(
    "a Karpathy JSON (or a folder with dataset_*.json)", is_karpathy, read_karpathy, order=0
)
