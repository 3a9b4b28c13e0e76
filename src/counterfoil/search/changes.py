"""Comparison of a data set with an index: which items are new, changed or unchanged."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import torch

from counterfoil.core.console import progress
from counterfoil.core.io import check_file
from counterfoil.data.checks import counted
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import PictureFiles
from counterfoil.search.vector_index import IndexEntry, VectorIndex

_MTIME_RESOLUTION = 2_000_000_000  # nanoseconds; the coarsest of common file systems (FAT)


@final
@dataclass(frozen=True, slots=True)
class DatasetChanges:
    """Rows of a data set to encode, and rows of an index that they replace.

    Of `relabelled` images, a row of each, only the columns have changed.
    """

    images: list[int] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)
    replaced_images: list[int] = field(default_factory=list)
    relabelled: list[tuple[int, int]] = field(default_factory=list)
    replaced_texts: list[int] = field(default_factory=list)


def compare_dataset(
    dataset: ImageTextDataset, index: VectorIndex, *, replace: bool
) -> DatasetChanges:
    """Compare a data set with what an index holds under its ids.

    Images are compared by content, unless the file has the path, size and modification time that
    the index knows. An image whose file has changed or moved replaces its entry, and so does a
    caption whose text has changed; changed columns need no encoding. With `replace`, so do
    different images, and captions of different images, under the id of an entry; without it they
    are refused.
    """
    changes = DatasetChanges()
    image_conflicts, text_conflicts = [], []
    with progress("pictures compared", len(dataset)) as advance:
        for row, image_id in enumerate(dataset.image_ids):
            advance(1)
            known = index.images.rows.get(image_id)
            if known is not None:
                entry = index.images.entry(known)
                if _unchanged(dataset, row, entry):
                    # data without any columns, as of another format, leave those of the index
                    if dataset.columns and dataset.column_values(row) != entry.columns:
                        changes.relabelled.append((row, known))
                    continue
                changes.replaced_images.append(known)
                same_file = _same_file(dataset, row, entry)
                if not same_file and image_digest(dataset, row) != entry.content:
                    image_conflicts.append(image_id)
            changes.images.append(row)
    for row, text_id in enumerate(dataset.text_ids):
        known = index.texts.rows.get(text_id)
        if known is not None:
            entry, new = index.texts.entry(known), text_entry(dataset, row)
            if entry == new:
                continue
            changes.replaced_texts.append(known)
            if entry.image not in ("", new.image):
                text_conflicts.append(text_id)
        changes.texts.append(row)
    if not replace and (image_conflicts or text_conflicts):
        kind = "picture than the one" if image_conflicts else "image's caption than the one"
        numbers = [
            counted(len(conflicts), noun)
            for conflicts, noun in ((image_conflicts, "image"), (text_conflicts, "caption"))
        ]
        raise ValueError(
            f"{(image_conflicts or text_conflicts)[0]!r} of {dataset.name} is another {kind} that "
            f"{index.folder} holds under this id ({', '.join(numbers)}); give their ids a "
            "--prefix, or replace the others with --exchange"
        )
    return changes


def with_id_prefix(dataset: ImageTextDataset, prefix: str) -> ImageTextDataset:
    """Return the data set with a prefix before every id."""
    images, texts = ([prefix + i for i in ids] for ids in (dataset.image_ids, dataset.text_ids))
    unlisted = {prefix + name: path for name, path in dataset.unlisted.items()}
    return replace(dataset, image_ids=images, text_ids=texts, unlisted=unlisted)


def image_digest(dataset: ImageTextDataset, row: int) -> str:
    """Digest of an image: of its file, its pixels, or its features; "" for none of them."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(dataset.pictures, PictureFiles):
        try:
            check_file(dataset.pictures.paths[row])
            digest.update(dataset.pictures.paths[row].read_bytes())
        except OSError:  # encoding it will report that
            return ""
    elif dataset.pictures is not None:
        picture = dataset.pictures.open(row)
        digest.update(f"{picture.size} {picture.mode} ".encode() + picture.tobytes())
    elif dataset.features is not None:
        items = dataset.features.take(torch.tensor([row]))
        digest.update(items.values[items.mask].contiguous().numpy().tobytes())
    else:
        return ""
    return digest.hexdigest()


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
    missing = Path(entry.place).is_absolute() and not Path(entry.place).exists()
    return not (missing and digest)


def _same_file(dataset: ImageTextDataset, row: int, entry: IndexEntry) -> bool:
    """Return True if an image is the file that the entry names."""
    pictures = dataset.pictures
    return isinstance(pictures, PictureFiles) and entry.place == str(pictures.paths[row].resolve())
