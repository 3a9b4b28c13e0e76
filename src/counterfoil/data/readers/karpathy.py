"""Karpathy's JSON files of Flickr8k, Flickr30K and MS-COCO.

``{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw", "sentid"}]}], "dataset"?}``
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterfoil.core.io import read_json
from counterfoil.data.dataset import DatasetEntry, ImageTextDataset, build_dataset, canonical_split
from counterfoil.data.files import find_pictures, list_files
from counterfoil.data.images import PictureFiles

PROBES = 50  # files to look for before a folder is refused


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


def read_karpathy(
    path: Path,
    *,
    images: Path | None = None,
    restval: str = "train",
    name: str | None = None,
) -> ImageTextDataset:
    """Read a Karpathy file; ids are file names and sentence numbers.

    The folder of the images may be flat or have the subfolders that the file names; by default it
    is ``images`` beside the file, if it exists. COCO's "restval" images are of the split `restval`.
    """
    plain = read_json(path, "a Karpathy data set")
    if not isinstance(plain, dict) or not isinstance(plain.get("images"), list):
        raise ValueError(
            f'{path} is not a Karpathy data set: {{"images": [{{"filename", "split", "sentences"}}]'
            "} is needed"
        )
    records = [_validated(entry, place, path) for place, entry in enumerate(plain["images"])]
    entries = [_entry(record, restval) for record in records]
    beside = path.parent / "images"
    folder = images or (beside if beside.is_dir() else None)
    return build_dataset(
        name or str(plain.get("dataset") or path.stem.removeprefix("dataset_")),
        entries,
        where=str(path),
        pictures=None if folder is None else PictureFiles(_paths(records, folder, str(path))),
    )


def is_karpathy(path: Path) -> bool:
    """Return True if a file looks like one, by its name and first characters."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(4096)
    return path.name.startswith("dataset_") or b'"images"' in head


def _validated(entry: Any, place: int, path: Path) -> _Image:
    try:
        return _Image.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path}: images[{place}].{field}: {first['msg']}") from None


def _entry(image: _Image, restval: str) -> DatasetEntry:
    texts = [s.raw if s.raw is not None else " ".join(s.tokens) for s in image.sentences]
    numbered = all(s.sentid is not None for s in image.sentences)
    split = restval if image.split == "restval" else image.split
    return DatasetEntry(
        id=image.filename,
        split=canonical_split(split),
        texts=tuple(texts),
        text_ids=tuple(str(s.sentid) for s in image.sentences) if numbered else (),
    )


def _paths(images: Sequence[_Image], folder: Path, where: str) -> list[Path]:
    """Paths of the images: in the subfolders that the file names, or all in one folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; the pictures are needed there")
    names = [f"{image.filepath}/{image.filename}".lstrip("/") for image in images]
    paths = find_pictures(names, list_files(folder), where=where)
    if not any(path.exists() for path in paths[:PROBES]):
        raise ValueError(
            f"{folder} holds none of the first {min(PROBES, len(paths))} pictures, such as "
            f"{names[0]}; give the folder of the pictures"
        )
    return paths
