"""Comparison of a data set with an index: which items are new, changed or unchanged."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeAlias, final

import torch

from counterfoil.core.console import progress, warn
from counterfoil.core.io import check_file
from counterfoil.data.checks import check_pictures, counted
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import PictureFiles, Pictures
from counterfoil.search.vector_index import IndexEntry, VectorIndex

_BLOCK = 256  # images whose features are read at once
_MTIME_RESOLUTION = 2_000_000_000  # nanoseconds; the coarsest of common file systems (FAT)

KeptEntry: TypeAlias = tuple[int, IndexEntry]  # a row whose vector stays, and its new entry


@final
@dataclass(frozen=True, slots=True)
class DatasetChanges:
    """Rows of a data set to encode, and what becomes of rows of an index.

    Attributes:
        images: rows of the data set to encode.
        texts: the same of its captions.
        replaced_images: rows of the index that go.
        replaced_texts: the same of its captions.
        relabelled: rows of the index whose vectors stay under another entry, with other columns.
        moved: the same, of pictures whose file has another path or name.
        moved_texts: captions of the index whose image has another id.
        pruned: rows of the index that go as their files are gone.
        damaged: rows of the index that go as their files can no longer be read.
        gone: rows of the index that stay although their files are gone.
        unreadable: number of rows of the data set that are left out.
    """

    images: list[int] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)
    replaced_images: list[int] = field(default_factory=list)
    replaced_texts: list[int] = field(default_factory=list)
    relabelled: list[KeptEntry] = field(default_factory=list)
    moved: list[KeptEntry] = field(default_factory=list)
    moved_texts: list[KeptEntry] = field(default_factory=list)
    pruned: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    unreadable: int = 0

    @property
    def any(self) -> bool:
        """True if an index changes."""
        told = ("gone", "unreadable")
        return any(getattr(self, one.name) for one in fields(self) if one.name not in told)


def compare_dataset(
    dataset: ImageTextDataset, index: VectorIndex, *, replace: bool, prune: bool = False
) -> DatasetChanges:
    """Compare a data set with what an index holds under its ids.

    Images are compared by content, unless the file has the path, size and modification time that
    the index knows. An image whose file has changed replaces its entry, and so does a caption whose
    text has changed; changed columns need no encoding, nor does a file that was moved or renamed,
    which is known by its content. With `replace`, different images, and captions of different
    images, under the id of an entry replace it, too; without it they are refused. With `prune`,
    entries whose files are gone go, with their captions.

    Raises:
        ValueError: ids are those of other images, or all files of the index are gone.
    """
    changes = DatasetChanges()
    conflicts = _compare_images(dataset, index, changes)
    missing = _missing_rows(dataset, index)
    new_ids = _find_moved(dataset, index, changes, missing)
    text_conflicts = _compare_texts(dataset, index, changes, new_ids)
    if not replace and (conflicts or text_conflicts):
        kind = "picture than the one" if conflicts else "image's caption than the one"
        numbers = [
            counted(len(of_kind), noun)
            for of_kind, noun in ((conflicts, "image"), (text_conflicts, "caption"))
        ]
        raise ValueError(
            f"{(conflicts or text_conflicts)[0]!r} of {dataset.name} is another {kind} that "
            f"{index.folder} holds under this id ({', '.join(numbers)}); give their ids a "
            "--prefix, or replace the others with --exchange"
        )
    moved = {known for known, _ in changes.moved}
    gone = [known for known in missing if known not in moved]
    if prune:
        _prune(dataset, index, changes, gone)
    else:
        changes.gone.extend(gone)
    return changes


def _compare_images(
    dataset: ImageTextDataset, index: VectorIndex, changes: DatasetChanges
) -> list[str]:
    """Note the images that are new or have changed; the ids that are those of other images."""
    conflicts = []
    with progress("pictures compared", len(dataset)) as advance:
        for row, image_id in enumerate(dataset.image_ids):
            advance(1)
            known = index.images.rows.get(image_id)
            if known is None:
                changes.images.append(row)
                continue
            entry = index.images.entry(known)
            if _unchanged(dataset, row, entry):
                # data without any columns, as of another format, leave those of the index
                columns = dataset.column_values(row) if dataset.columns else entry.columns
                if columns != entry.columns:
                    changes.relabelled.append((known, replace(entry, columns=columns)))
                continue
            digest = image_digest(dataset, row)
            moved = _moved_entry(dataset, row, entry) if digest == entry.content else None
            if moved is not None and digest and is_missing(entry):
                changes.moved.append((known, moved))
                continue
            changes.replaced_images.append(known)
            if not _same_file(dataset, row, entry) and digest != entry.content:
                conflicts.append(image_id)
            changes.images.append(row)
    return conflicts


def _find_moved(
    dataset: ImageTextDataset,
    index: VectorIndex,
    changes: DatasetChanges,
    missing_rows: Sequence[int],
) -> dict[str, str]:
    """Find the new images whose content is that of a missing file; new ids by the old ones."""
    new = [row for row in changes.images if dataset.image_ids[row] not in index.images.rows]
    missing: dict[str, list[int]] = {}
    for known in missing_rows:
        missing.setdefault(index.images.entry(known).content, []).append(known)
    missing.pop("", None)
    new_ids: dict[str, str] = {}
    found = set()
    for row in new if missing else ():
        rows = missing.get(image_digest(dataset, row))
        entry = index.images.entry(rows[0]) if rows else None
        moved = entry and _moved_entry(dataset, row, entry)
        if rows and entry and moved:
            new_ids[entry.id] = moved.id
            changes.moved.append((rows.pop(0), moved))
            found.add(row)
    changes.images[:] = [row for row in changes.images if row not in found]
    return new_ids


def _compare_texts(
    dataset: ImageTextDataset,
    index: VectorIndex,
    changes: DatasetChanges,
    new_ids: Mapping[str, str],
) -> list[str]:
    """Note the captions that are new or have changed; the ids that are those of other images."""
    conflicts = []
    for row, text_id in enumerate(dataset.text_ids):
        known = index.texts.rows.get(text_id)
        if known is not None:
            entry, new = index.texts.entry(known), text_entry(dataset, row)
            if entry == new:
                continue
            changes.replaced_texts.append(known)
            if new_ids.get(entry.image, entry.image) not in ("", new.image):
                conflicts.append(text_id)
        changes.texts.append(row)
    replaced = set(changes.replaced_texts)
    told = {dataset.image_ids[row] for row in dataset.text_to_image.tolist() if row >= 0}
    for old, new_id in new_ids.items():
        for known in index.texts.rows_by_image.get(old, ()):
            if known in replaced:
                continue
            if new_id in told:  # its captions come with it
                changes.replaced_texts.append(known)
            else:
                entry = index.texts.entry(known)
                changes.moved_texts.append((known, replace(entry, image=new_id)))
    return conflicts


def _prune(
    dataset: ImageTextDataset, index: VectorIndex, changes: DatasetChanges, gone: Sequence[int]
) -> None:
    entries = [index.images.entry(row) for row in gone]
    if gone and len(gone) == len(index.images) and not _any_beside(dataset, entries):
        raise ValueError(
            f"none of the {counted(len(gone), 'picture')} of {index.folder} is where it was, such "
            f"as {entries[0].place}; is the drive connected? To drop them all, delete the index"
        )
    changes.pruned.extend(gone)
    changes.replaced_texts.extend(_further_texts(index, changes, entries))


def _further_texts(
    index: VectorIndex, changes: DatasetChanges, images: Sequence[IndexEntry]
) -> list[int]:
    """The captions of images that go, without those that go anyway."""
    replaced, by_image = set(changes.replaced_texts), index.texts.rows_by_image
    rows = (row for entry in images for row in by_image.get(entry.id, ()))
    return [row for row in rows if row not in replaced]


def _missing_rows(dataset: ImageTextDataset, index: VectorIndex) -> list[int]:
    """Rows of the images of an index that are not in a data set and whose files are gone."""
    ids = set(dataset.image_ids)
    rows = index.images.live_rows.tolist()
    entries = ((row, index.images.entry(row)) for row in rows)
    return [row for row, entry in entries if entry.id not in ids and is_missing(entry)]


def _any_beside(dataset: ImageTextDataset, gone: Sequence[IndexEntry]) -> bool:
    """Return True if a data set has pictures in the folder around those that are gone."""
    folder = os.path.commonpath([Path(entry.place).parent for entry in gone])
    paths = dataset.pictures.paths if isinstance(dataset.pictures, PictureFiles) else ()
    return any(path.resolve().is_relative_to(folder) for path in paths)


def is_missing(entry: IndexEntry) -> bool:
    """Return True for an image whose file is not where it was."""
    return Path(entry.place).is_absolute() and not Path(entry.place).exists()


def _moved_entry(dataset: ImageTextDataset, row: int, entry: IndexEntry) -> IndexEntry | None:
    """The entry of an image as that of a file of a data set; None if it is in none."""
    if not isinstance(dataset.pictures, PictureFiles):
        return None
    return replace(
        entry,
        id=dataset.image_ids[row],
        place=str(dataset.pictures.paths[row].resolve()),
        stamp=file_stamp(dataset, row),
        columns=dataset.column_values(row) if dataset.columns else entry.columns,
    )


def without_unreadable_rows(
    dataset: ImageTextDataset, changes: DatasetChanges, index: VectorIndex
) -> DatasetChanges:
    """Leave out the pictures that cannot be read, and their captions.

    The entry of such a file goes: its picture is lost. That of another file, which the picture was
    to replace, stays.

    Raises:
        ValueError: no picture of the index, and of the data set, can be read any more.
    """
    rows = torch.tensor(changes.images, dtype=torch.long)
    subset = None if dataset.pictures is None else dataset.pictures.subset(rows)
    errors, _ = check_pictures(None if dataset.features is not None else subset)
    if not errors:
        return changes
    warn(
        f"left out {counted(len(errors), 'unreadable picture')} of {dataset.name}, such as: "
        f"{next(iter(errors.values()))}"
    )
    unreadable = {changes.images[place] for place in errors}
    ids = {dataset.image_ids[row] for row in unreadable}
    images, texts = index.images, index.texts
    owners = dataset.text_to_image.tolist()
    changes = replace(
        changes,
        images=[row for row in changes.images if row not in unreadable],
        texts=[row for row in changes.texts if owners[row] not in unreadable],
        replaced_images=[row for row in changes.replaced_images if images.entry(row).id not in ids],
        replaced_texts=[row for row in changes.replaced_texts if texts.entry(row).image not in ids],
        unreadable=len(errors),
    )
    for row in sorted(unreadable):
        known = images.rows.get(dataset.image_ids[row])
        if known is not None and _same_file(dataset, row, images.entry(known)):
            changes.damaged.append(known)
    entries = [images.entry(row) for row in changes.damaged]
    going = len(entries) + len(changes.pruned)
    if entries and going == len(images) and not changes.images:
        raise ValueError(
            f"none of the {counted(len(entries), 'picture')} of {index.folder} can be read any "
            f"more, such as {entries[0].place}; bring the files back, or delete the index"
        )
    changes.replaced_texts.extend(_further_texts(index, changes, entries))
    return changes


def with_id_prefix(dataset: ImageTextDataset, prefix: str) -> ImageTextDataset:
    """Return the data set with a prefix before every id."""
    images, texts = ([prefix + i for i in ids] for ids in (dataset.image_ids, dataset.text_ids))
    unlisted = {prefix + name: path for name, path in dataset.unlisted.items()}
    return replace(dataset, image_ids=images, text_ids=texts, unlisted=unlisted)


def image_digest(dataset: ImageTextDataset, row: int) -> str:
    """Digest of an image: of its file, its pixels, or its features; "" for none of them."""
    return next(image_digests(dataset, [row]))


def image_digests(dataset: ImageTextDataset, rows: Sequence[int]) -> Iterator[str]:
    """The `image_digest` of each of some rows, read when it is asked for; features in blocks."""
    if dataset.pictures is not None or dataset.features is None:
        yield from (_picture_digest(dataset.pictures, row) for row in rows)
        return
    for some in torch.split(torch.tensor(rows, dtype=torch.long), _BLOCK):
        items = dataset.features.take(some)
        for values, mask in zip(items.values, items.mask):
            yield _digest(values[mask].contiguous().numpy().tobytes())


def _picture_digest(pictures: Pictures | None, row: int) -> str:
    if pictures is None:
        return ""
    if not isinstance(pictures, PictureFiles):
        picture = pictures.open(row)
        return _digest(f"{picture.size} {picture.mode} ".encode() + picture.tobytes())
    try:
        check_file(pictures.paths[row])
        return _digest(pictures.paths[row].read_bytes())
    except OSError:  # encoding it will report that
        return ""


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def file_stamp(dataset: ImageTextDataset, row: int) -> str:
    """Size and modification time of an image file; "" if there is none, or it changed just now.

    A file that changes again within the resolution of its modification time looks unchanged, so a
    recent time proves nothing.
    """
    if not isinstance(dataset.pictures, PictureFiles):
        return ""
    try:
        status = dataset.pictures.paths[row].stat()
    except OSError:  # encoding it will report that
        return ""
    recent = time.time_ns() - status.st_mtime_ns < _MTIME_RESOLUTION
    return "" if recent else f"{status.st_size} {status.st_mtime_ns}"


def text_entry(dataset: ImageTextDataset, row: int) -> IndexEntry:
    """The index entry of a caption."""
    text_to_image = int(dataset.text_to_image[row])
    image = "" if text_to_image < 0 else dataset.image_ids[text_to_image]
    return IndexEntry(dataset.text_ids[row], text=dataset.texts[row], image=image)


def _unchanged(dataset: ImageTextDataset, row: int, entry: IndexEntry) -> bool:
    """Return True if the index holds this image, and its file is where the entry says."""
    if entry.stamp and entry.stamp == file_stamp(dataset, row) and _same_file(dataset, row, entry):
        return True
    digest = image_digest(dataset, row)
    if digest and entry.content and digest != entry.content:
        return False
    return not (is_missing(entry) and digest)


def _same_file(dataset: ImageTextDataset, row: int, entry: IndexEntry) -> bool:
    """Return True if an image is the file that the entry names."""
    pictures = dataset.pictures
    return isinstance(pictures, PictureFiles) and entry.place == str(pictures.paths[row].resolve())
