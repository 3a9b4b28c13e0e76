"""WebDataset shards: tar files whose members share a key, as img2dataset writes them.

A sample is ``KEY.jpg`` (or another format of images) with its caption in ``KEY.txt`` (a caption a
line) or in ``KEY.json`` ("caption", "text" …, or a list of them). A shard belongs to the split that
its name begins with, as in ``train-00003.tar``; without such names splits are by the hash of the
key. Images stay in the shards and are decoded when opened.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from PIL import Image

from counterfoil.core.console import progress, warn
from counterfoil.core.io import check_file, parse_json
from counterfoil.data.dataset import DatasetEntry, ImageTextDataset, build_dataset
from counterfoil.data.images import ENDINGS, Pictures, decode_picture
from counterfoil.data.readers.folder import CAPTION, split_of_name

LARGEST = 10_000_000  # bytes of a member with captions


@final
@dataclass(slots=True)
class _Sample:
    """Members of one key."""

    image: tuple[str, int, int] | None = None  # name, first byte, number of bytes
    texts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # captions of the JSON, where there is no text


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
                    entries.append(DatasetEntry(key, split_of_name(shard.stem), tuple(texts)))
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
                sample.notes += _captions(parse_json(content, "it"))
        except ValueError as error:
            raise ValueError(f"{name} cannot be read: {error}") from None


def _captions(plain: object) -> list[str]:
    """Captions of a sample's JSON; none where it has other fields only."""
    if not isinstance(plain, dict):
        return []
    value: object = next((plain[key] for key in CAPTION if plain.get(key)), [])
    texts = value if isinstance(value, list) else [value]
    return [text for text in texts if isinstance(text, str) and text.strip()]
