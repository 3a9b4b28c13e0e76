"""WebDataset shards: tar files whose members share a key, as img2dataset writes them.

A sample is ``KEY.jpg`` (or another format of images) with its caption in ``KEY.txt`` (a caption a
line) or in ``KEY.json`` ("caption", "text" …, or a list of them), whose other fields, text and
numbers, are `ImageTextDataset.columns`. A shard belongs to the split that its name begins with, as
in ``train-00003.tar``; without such names splits are by the hash of the key. Images stay in the
shards and are decoded when opened. `write_webdataset` writes such shards, with the id of the image
as ``image_id`` in the JSON, which takes the place of the key.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from PIL import Image

from counterfoil.core.console import progress, warn
from counterfoil.core.io import atomic_folder, check_file, ensure_absent, parse_json
from counterfoil.data.dataset import (
    ColumnValue,
    DatasetEntry,
    ImageTextDataset,
    build_dataset,
    first_values,
)
from counterfoil.data.images import ENDINGS, PictureFiles, Pictures, decode_picture
from counterfoil.data.readers.tables import CAPTION, split_of_name

# what img2dataset notes of a download; the Exif of a picture may say where it was taken
_TECHNICAL = ("exif", "url", "key", "status", "error_message", "sha256", "md5")
LARGEST = 10_000_000  # bytes of a member with captions


@final
@dataclass(slots=True)
class _Sample:
    """Members of one key."""

    image: tuple[str, int, int] | None = None  # name, first byte, number of bytes
    texts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # captions of the JSON, where there is no text
    image_id: str = ""  # of the JSON
    columns: dict[str, ColumnValue] = field(default_factory=dict)  # of the JSON


@final
class TarPictures(Pictures):
    """Images inside of tar files; a row is the file, and a member's name, start and size."""

    def open(self, row: int) -> Image.Image:
        shard, _, start, count = self.rows[row]
        try:
            with shard.open("rb") as file:
                file.seek(start)
                content = file.read(count)
        except OSError as error:
            raise ValueError(f"{shard} cannot be read: {error}") from error
        return decode_picture(io.BytesIO(content), self.place(row))

    def place(self, row: int) -> str:
        shard, name, _, _ = self.rows[row]
        return f"{shard}/{name}"


def is_webdataset(path: Path) -> bool:
    """Return True if a path is a tar file, or a folder with tar files."""
    return path.suffix == ".tar" if path.is_file() else any(path.glob("*.tar"))


def read_webdataset(path: Path, *, name: str | None = None) -> ImageTextDataset:
    """Read shards as a data set; images are not decoded.

    Images without a caption are left out, with a warning.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.tar"))
    entries: list[DatasetEntry] = []
    images: list[tuple[Path, str, int, int]] = []
    silent = 0
    with progress("shards read", len(files)) as advance:
        for shard in files:
            for key, sample in _samples(shard):
                texts = sample.texts or sample.notes
                silent += sample.image is not None and not texts
                if sample.image is not None and texts:
                    id_ = sample.image_id or key
                    split, columns = split_of_name(shard.stem), sample.columns
                    entries.append(DatasetEntry(id_, split, tuple(texts), columns=columns))
                    images.append((shard, *sample.image))
            advance(1)
    if not entries:
        raise ValueError(
            f"{path} holds no image with a caption; a sample is KEY.jpg and KEY.txt, or KEY.json "
            "with a caption"
        )
    if silent:
        warn(f"{path}: {silent:,} images without a caption are left out")
    return build_dataset(
        name or path.resolve().stem,
        entries,
        where=str(path),
        pictures=TarPictures(images),
    )


def write_webdataset(dataset: ImageTextDataset, folder: Path, *, size: int = 1000) -> int:
    """Write a data set as shards, ``SPLIT-00000.tar`` and on; returns their number.

    A sample is its picture, as the file is or as PNG, its captions in ``KEY.txt``, a line each, and
    ``KEY.json`` with the id of the image and its columns. Extra positives and features are not
    written. The same data give the same bytes.

    Args:
        dataset: with pictures.
        folder: a new folder.
        size: pictures of a shard.

    Raises:
        ValueError: there are no pictures, a split cannot name a file, or the folder exists.
    """
    if dataset.pictures is None:
        raise ValueError(f"{dataset.name} has no pictures to write; name their folder")
    for split in dataset.split_names:
        if Path(split).name != split:  # data may be untrusted: a split must not leave the folder
            raise ValueError(
                f"{dataset.name} has a split {split!r}, which cannot begin the name of a shard; "
                "name splits without slashes"
            )
    ensure_absent(folder, "a new folder with --output")
    captions: list[list[str]] = [[] for _ in range(len(dataset))]
    for text, row in zip(dataset.texts, dataset.text_to_image.tolist(), strict=True):
        if row >= 0:
            captions[row].append(" ".join(text.split()))
    splits: dict[str, list[int]] = {}
    for row, split in enumerate(dataset.splits):
        splits.setdefault(split, []).append(row)
    shards = [
        (split, number, rows[at : at + size])
        for split, rows in splits.items()
        for number, at in enumerate(range(0, len(rows), size))
    ]
    with atomic_folder(folder) as temporary, progress("pictures written", len(dataset)) as advance:
        for split, number, rows in shards:
            with tarfile.open(temporary / f"{split}-{number:05}.tar", "w") as tar:
                for row in rows:
                    note = dataset.column_values(row) | {
                        "image_id": dataset.image_ids[row],
                        "caption": captions[row],
                    }
                    write_sample(tar, f"{row:09}", dataset.pictures, row, captions[row], note)
                    advance(1)
    return len(shards)


def write_sample(
    tar: tarfile.TarFile,
    key: str,
    pictures: Pictures,
    row: int,
    texts: Sequence[str],
    note: Mapping[str, object],
) -> None:
    """Add the picture of a row, its captions in ``KEY.txt``, a line each, and ``KEY.json``."""
    ending, picture = _encoded(pictures, row)
    for name, content in (
        (ending, picture),
        (".txt", "\n".join(texts).encode()),
        (".json", json.dumps(note, ensure_ascii=False).encode()),
    ):
        member = tarfile.TarInfo(f"{key}{name}")  # of no user and no time
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def _encoded(pictures: Pictures, row: int) -> tuple[str, bytes]:
    """Ending and bytes of a picture: those of its file, else PNG."""
    if isinstance(pictures, PictureFiles):
        path = pictures.paths[row]
        return path.suffix.lower(), path.read_bytes()
    content = io.BytesIO()
    pictures.open(row).save(content, "PNG")
    return ".png", content.getvalue()


def _samples(shard: Path) -> Iterator[tuple[str, _Sample]]:
    """Key and members of each sample of a shard, in order of first appearance."""
    samples: dict[str, _Sample] = {}
    try:
        check_file(shard)
        with tarfile.open(shard, "r:") as tar:  # uncompressed, so that members have a place
            for member in tar:
                if member.isfile():
                    folder, _, file = member.name.rpartition("/")
                    key, _, ending = file.partition(".")  # as webdataset: up to the first dot
                    _add(
                        samples.setdefault(f"{folder}/{key}".lstrip("./"), _Sample()),
                        tar,
                        member,
                        f".{ending.lower()}",
                    )
    except (tarfile.TarError, OSError) as error:
        raise ValueError(f"{shard} cannot be read as an uncompressed tar file: {error}") from error
    yield from samples.items()


def _add(sample: _Sample, tar: tarfile.TarFile, member: tarfile.TarInfo, ending: str) -> None:
    """Note an image, or read captions."""
    if ending in ENDINGS and sample.image is None:
        sample.image = member.name, member.offset_data, member.size
    elif ending in (".txt", ".json"):
        file, name = tar.extractfile(member), f"{tar.name!s}/{member.name}"
        if member.size > LARGEST or file is None:
            raise ValueError(f"{name} has {member.size:,} bytes; that is no text")
        try:
            content = file.read().decode()
            if ending == ".txt":
                sample.texts += [line for line in content.splitlines() if line.strip()]
            else:
                plain = parse_json(content, "it")
                sample.notes += _captions(plain)
                if isinstance(plain, dict):
                    if isinstance(plain.get("image_id"), str):
                        sample.image_id = plain["image_id"]
                    first_values(sample.columns, plain, ("image_id", *CAPTION, *_TECHNICAL))
        except ValueError as error:
            raise ValueError(f"{name} cannot be read: {error}") from None


def _captions(plain: object) -> list[str]:
    """Captions of a sample's JSON; none where it has other fields only."""
    if not isinstance(plain, dict):
        return []
    value: object = next((plain[key] for key in CAPTION if plain.get(key)), [])
    texts = value if isinstance(value, list) else [value]
    return [text for text in texts if isinstance(text, str) and text.strip()]
