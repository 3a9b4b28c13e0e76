"""WebDataset shards: tar files whose members share a key, as img2dataset writes them.

The key of a member is what stands before the first dot of its file's name, with its folder; what
stands between that dot and the ending is its part, mostly none. A sample is ``KEY.jpg`` (or another
format of images) with its captions, a caption a line, in ``KEY.txt``, ``.text`` or ``.caption``, or
in ``KEY.json`` ("caption", "text" …, or a list of them), whose other fields, text and numbers, are
`ImageTextDataset.columns`. Where a key has several pictures, each has the captions of its part, as
``shot.1.5.jpg`` those of ``shot.1.5.txt``; if none has, the captions of the key belong to the
picture without a part, or to the first. Every other member is counted in a warning.

A shard belongs to the split that its name begins with, as in ``train-00003.tar``; without such
names splits are by the hash of the id. Images stay in the shards and are decoded when opened.
`write_webdataset` writes such shards, with the id of the image as ``image_id`` in the JSON, which
takes the place of the key.
"""

from __future__ import annotations

import io
import json
import posixpath
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from PIL import Image

from counterfoil.core.console import info, progress, warn
from counterfoil.core.io import (
    atomic_folder,
    check_file,
    ensure_absent,
    ensure_writable_folder,
    parse_json,
)
from counterfoil.data.dataset import (
    ColumnValue,
    DatasetEntry,
    ImageTextDataset,
    build_dataset,
    first_values,
)
from counterfoil.data.files import (
    BROKEN,
    HIDDEN,
    NOT_UTF8,
    SPECIAL,
    UNEXPECTED,
    FolderFiles,
    LeftOut,
    is_kept_by_programs,
    mostly,
    plain_name,
    printable,
)
from counterfoil.data.images import (
    ENDINGS,
    PictureFiles,
    Pictures,
    decode_picture,
    size_and_time,
)
from counterfoil.data.readers.columns import caption_columns, captions_of_json
from counterfoil.data.readers.source import Format, split_of_file

# what img2dataset notes of a download; the Exif of a picture may say where it was taken
_TECHNICAL = ("exif", "url", "key", "status", "error_message", "sha256", "md5")
LARGEST = 10_000_000  # bytes of a member with captions


TEXTS = (".txt", ".text", ".caption")
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_SHARDS = (".tar", *COMPRESSED)
_Parts = dict[tuple[str, str], tarfile.TarInfo]  # of a key: its members by part and ending


@final
@dataclass(slots=True)
class _Words:
    """What the members of one key and part say of a picture."""

    texts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # captions of the JSON, where there is no text
    image_id: str = ""  # of the JSON
    columns: dict[str, ColumnValue] = field(default_factory=dict)  # of the JSON

    @property
    def captions(self) -> list[str]:
        """The captions of the picture: of its text, or of its JSON."""
        return self.texts or self.notes


@final
@dataclass(frozen=True, slots=True)
class _Sample:
    """A picture with its captions."""

    name: str  # the key, and the part if there is one
    image: tarfile.TarInfo
    words: _Words


@final
class TarPictures(Pictures):
    """Images inside of tar files; a row is the file, and a member's name, start and size.

    Args:
        rows: the images.
        stamps: `size_and_time` of each tar file as it was when its members were listed.
    """

    def __init__(
        self,
        rows: Iterable[tuple[Path, str, int, int]],
        stamps: Mapping[Path, tuple[int, int] | None],
    ) -> None:
        super().__init__(rows)
        self.stamps = stamps

    def open(self, row: int) -> Image.Image:
        return decode_picture(io.BytesIO(self.stored(row)), self.place(row))

    def stored(self, row: int) -> bytes:
        shard, _, start, count = self.rows[row]
        if size_and_time(shard) != self.stamps[shard]:
            raise ValueError(
                f"{shard} was written again, or removed, after its members were listed; load the "
                "data set again"
            )
        try:
            with shard.open("rb") as file:
                file.seek(start)
                content: bytes = file.read(count)
        except OSError as error:
            raise ValueError(f"{shard} cannot be read: {error}") from error
        return content

    def place(self, row: int) -> str:
        shard, name, _, _ = self.rows[row]
        return f"{shard}/{name}"

    def fingerprint(self, row: int) -> str:
        shard, _, start, count = self.rows[row]
        return f"{self.place(row)} {start} {count} {size_and_time(shard)}"

    def byte_count(self, row: int) -> int:
        count: int = self.rows[row][3]
        return count


def is_webdataset(path: Path, listing: FolderFiles | None = None) -> bool:
    """Return True if a path is a tar file, compressed or not, or a folder with tar files."""
    return bool(mostly(path, *_SHARDS, listing=listing))


def read_webdataset(path: Path, *, name: str | None = None) -> ImageTextDataset:
    """Read shards as a data set; images are not decoded.

    Keys that repeat between shards, as where each counts from 0, are told apart by the shard's
    name. What is left out is counted in a warning.

    Raises:
        ValueError: a shard is compressed, damaged or holds a member twice, or there is no image
            with a caption.
    """
    files, folder = mostly(path, *_SHARDS), path if path.is_dir() else path.parent
    found: list[tuple[Path, _Sample]] = []
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    stamps = {shard: size_and_time(shard) for shard in files}
    with progress("shards read", len(files)) as advance:
        for shard in files:
            found += ((shard, sample) for sample in _read_shard(shard, left_out))
            advance(1)
    counts = [LeftOut(reason, tuple(names)) for reason, names in left_out.items()]
    if not found:
        others = "; of its members: " + "; ".join(map(str, counts)) if counts else ""
        raise ValueError(
            f"{path} holds no image with a caption; a sample is KEY.jpg and KEY.txt, or KEY.json "
            f"with a caption{others}"
        )
    for count in counts:
        if count.reason not in UNEXPECTED:  # which are said of every data set
            warn(f"{path}: {count}")
    ids = _image_ids(path, folder, found)
    return build_dataset(
        name or path.resolve().stem,
        [
            DatasetEntry(
                id_,
                split_of_file(shard, folder),
                tuple(sample.words.captions),
                columns=sample.words.columns,
            )
            for id_, (shard, sample) in zip(ids, found, strict=True)
        ],
        where=str(path),
        pictures=TarPictures(
            (
                (shard, sample.image.name, sample.image.offset_data, sample.image.size)
                for shard, sample in found
            ),
            stamps,
        ),
        left_out=counts,
    )


def _image_ids(path: Path, folder: Path, found: Sequence[tuple[Path, _Sample]]) -> list[str]:
    """The id of each sample: of its JSON, or its key, with the shard where keys repeat."""
    keyed = [sample.name for _, sample in found if not sample.words.image_id]
    repeated = len(set(keyed)) < len(keyed)
    if repeated:
        info(f"{path}: keys repeat between its shards, so ids begin with the name of the shard")
    shards = {shard: shard.relative_to(folder).with_suffix("").as_posix() for shard, _ in found}
    return [
        sample.words.image_id or (f"{shards[shard]}/{sample.name}" if repeated else sample.name)
        for shard, sample in found
    ]


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
    ensure_writable_folder(folder)
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


_LeftOut = Mapping[str, list[str]]  # names of members by reason; lists are made when asked for


def _read_shard(shard: Path, left_out: _LeftOut) -> list[_Sample]:
    """The samples of a shard, in order of first appearance."""
    if shard.name.lower().endswith(COMPRESSED):
        raise ValueError(
            f"{shard} is compressed, and pictures are read inside of shards; unpack it to a .tar, "
            "as gunzip does"
        )
    samples: list[_Sample] = []
    try:
        check_file(shard)
        with tarfile.open(shard, "r:") as tar:  # uncompressed, so that members have a place
            members = tar.getmembers()
            _check_end(shard, tar.offset, members)
            for key, parts in _by_key(shard, members, left_out).items():
                samples += _samples_of(key, parts, tar, left_out)
    except (tarfile.TarError, OSError) as error:
        raise ValueError(f"{shard} cannot be read as an uncompressed tar file: {error}") from error
    return samples


def _check_end(shard: Path, offset: int, members: Sequence[tarfile.TarInfo]) -> None:
    """Refuse bytes behind the last member that are not zero: tarfile stops at what it cannot read.

    Raises:
        ValueError: the shard is damaged, or several tar files in one.
    """
    with shard.open("rb") as file:
        file.seek(offset)
        while block := file.read(1 << 20):
            if block.strip(b"\0"):
                last = f"member {members[-1].name!r}" if members else "its beginning"
                raise ValueError(
                    f"{shard} is damaged behind {last}, or several tar files in one file; write it "
                    "again"
                )


def _by_key(
    shard: Path, members: Sequence[tarfile.TarInfo], left_out: _LeftOut
) -> dict[str, _Parts]:
    """The pictures and captions of each key.

    Raises:
        ValueError: one stands there twice.
    """
    keys: dict[str, _Parts] = {}
    for name, member in _files(shard, members, left_out):
        folder, _, file = name.rpartition("/")
        first, _, rest = file.partition(".")  # as webdataset: up to the first dot
        part, _, ending = rest.rpartition(".")
        ending = f".{ending.lower()}"
        if ending not in (*ENDINGS, *TEXTS, ".json"):
            kind = f"ending in .{rest}" if rest else "without an ending"
            left_out[f"members {kind}, which are not read"].append(f"{shard.name}/{name}")
            continue
        key = f"{folder}/{first}" if folder else first
        parts = keys.setdefault(key, {})
        if (part, ending) in parts:
            raise ValueError(
                f"{shard} holds {name!r} twice, so the samples of key {key!r} cannot be told "
                "apart; write each member once"
            )
        parts[part, ending] = member
    return keys


def _files(
    shard: Path, members: Sequence[tarfile.TarInfo], left_out: _LeftOut
) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """The name of each file with its content, which for a link is that of another member."""
    whole = {plain_name(m.name): m for m in members if m.isreg() and not m.issparse()}
    for member in members:
        name, target = plain_name(member.name), member if member.isreg() else None
        parts = [part for part in name.split("/") if part != ".."]
        if member.islnk():
            target = whole.get(plain_name(member.linkname))
        elif member.issym():
            folder = posixpath.dirname(plain_name(member.name))
            target = whole.get(posixpath.normpath(posixpath.join(folder, member.linkname)))
        if member.isdir():
            continue
        if any(map(is_kept_by_programs, parts)):
            reason = HIDDEN
        elif printable(name) != name:
            reason = NOT_UTF8
        elif target is None or target.issparse():
            reason = BROKEN if member.islnk() or member.issym() else SPECIAL
        else:
            yield "/".join(parts), target
            continue
        left_out[reason].append(f"{shard.name}/{name}")


def _samples_of(
    key: str, parts: _Parts, tar: tarfile.TarFile, left_out: _LeftOut
) -> Iterator[_Sample]:
    """The pictures of a key that have captions; see the top of this file."""
    pictures: dict[str, tarfile.TarInfo] = {}
    words: dict[str, _Words] = {}
    for (part, ending), member in parts.items():
        if ending not in ENDINGS:
            _add(words.setdefault(part, _Words()), tar, member, ending)
        elif part in pictures:
            left_out["a second picture of its name"].append(_place(tar, member))
        else:
            pictures[part] = member
    own = {part: part for part in pictures if part in words and words[part].captions}
    if pictures and not own:
        picture = "" if "" in pictures else next(iter(pictures))
        if (text := _of_the_key(picture, len(pictures), words)) is not None:
            own = {picture: text}
    for part, text in own.items():
        yield _Sample(f"{key}.{part}" if part else key, pictures[part], words[text])
    for part, member in pictures.items():
        if part not in own:
            left_out["images without a caption"].append(_place(tar, member))
    for part, text_of in words.items():
        if text_of.captions and part not in own.values():
            names = (_place(tar, m) for (p, e), m in parts.items() if p == part and e in TEXTS)
            left_out["captions without an image"] += names


def _of_the_key(picture: str, count: int, words: Mapping[str, _Words]) -> str | None:
    """The part whose captions a picture has that has none of its own."""
    if "" in words and words[""].captions:
        return ""
    named = [part for part, text in words.items() if text.captions]
    # KEY.image.jpg and KEY.caption.txt are a sample; shot.1.jpg and shot.2.txt are not
    alone = count == len(named) == 1 and not re.search(r"\d", picture + named[0])
    return named[0] if alone else None


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    return f"{Path(str(tar.name)).name}/{member.name}"


def _add(words: _Words, tar: tarfile.TarFile, member: tarfile.TarInfo, ending: str) -> None:
    """Read captions."""
    file, name = tar.extractfile(member), f"{tar.name!s}/{member.name}"
    if member.size > LARGEST or file is None:
        raise ValueError(f"{name} has {member.size:,} bytes; that is no text")
    try:
        content = file.read().decode()
        if ending in TEXTS:
            words.texts += [line for line in content.splitlines() if line.strip()]
            return
        plain = parse_json(content, "it")
        words.notes += captions_of_json(plain)
        if isinstance(plain, dict):
            if isinstance(plain.get("image_id"), str):
                words.image_id = plain["image_id"]
            others = ("image_id", *caption_columns(list(plain)), *_TECHNICAL)
            first_values(words.columns, plain, others)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read: {error}") from None


SHARDS = Format(
    "WebDataset shards (.tar)",
    lambda source: is_webdataset(source.path, source.inside),
    lambda source: read_webdataset(source.path, name=source.name),
    holds_pictures=True,
    order=2,
)
