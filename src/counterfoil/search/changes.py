"""Comparison of a data set with an index: which items are new, changed or unchanged."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from counterfoil.core.console import progress
from counterfoil.data.checks import counted
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import PictureFiles
from counterfoil.search.vector_index import Collection, IndexEntry, VectorIndex

_MTIME_RESOLUTION = 2_000_000_000  # nanoseconds; the coarsest of common file systems (FAT)


@final
@dataclass(frozen=True, slots=True)
class DatasetChanges:
    """Rows of a data set that have to be encoded, and rows of an index that they replace."""

    images: Sequence[int]
    texts: Sequence[int]
    replaced_images: Sequence[int] = ()
    replaced_texts: Sequence[int] = ()


def compare_dataset(
    dataset: ImageTextDataset, index: VectorIndex, *, replace: bool
) -> DatasetChanges:
    """Compare a data set with what an index holds under its ids.

    Images are compared by content, unless the file has the path, size and modification time that
    the index knows. An image whose file has changed or moved replaces its entry, and so does a
    caption whose text has changed. With `replace`, so do different images, and captions of
    different images, under the id of an entry; without it they are refused.
    """
    with progress("pictures compared", len(dataset)) as advance:
        images, replaced_images, image_conflicts = _compare(
            dataset.image_ids,
            index.images,
            lambda row, entry: _unchanged(dataset, row, entry),
            lambda row, entry: (
                not _same_file(dataset, row, entry) and image_digest(dataset, row) != entry.content
            ),
            advance,
        )
    texts, replaced_texts, text_conflicts = _compare(
        dataset.text_ids,
        index.texts,
        lambda row, entry: entry == text_entry(dataset, row),
        lambda row, entry: entry.image not in ("", text_entry(dataset, row).image),
    )
    if not replace and (image_conflicts or text_conflicts):
        kind = "picture than the one" if image_conflicts else "image's caption than the one"
        numbers = [
            counted(len(conflicts), noun)
            for conflicts, noun in ((image_conflicts, "image"), (text_conflicts, "caption"))
        ]
        raise ValueError(
            f"{(image_conflicts or text_conflicts)[0]!r} of {dataset.name} is another {kind} that "
            f"{index.folder} holds under this id ({', '.join(numbers)}); give their ids a "
            "--prefix, or let them take the place of the others with --exchange"
        )
    return DatasetChanges(images, texts, replaced_images, replaced_texts)


def with_id_prefix(dataset: ImageTextDataset, prefix: str) -> ImageTextDataset:
    """The same data set with a prefix before every id."""
    images, texts = ([prefix + i for i in ids] for ids in (dataset.image_ids, dataset.text_ids))
    return replace(dataset, image_ids=images, text_ids=texts)


def image_digest(dataset: ImageTextDataset, row: int) -> str:
    """Digest of an image: of its file, its pixels, or its features; "" for none of them."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(dataset.pictures, PictureFiles):
        try:
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


def _compare(
    ids: Sequence[str],
    collection: Collection,
    unchanged: Callable[[int, IndexEntry], bool],
    conflicts: Callable[[int, IndexEntry], bool],
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[list[int], list[int], list[str]]:
    """Rows to encode, rows of the index that they replace, and ids under which it holds others."""
    rows, replaced, conflicting = [], [], []
    for row, item_id in enumerate(ids):
        advance(1)
        known = collection.rows.get(item_id)
        entry = None if known is None else collection.entry(known)
        if entry is not None and unchanged(row, entry):
            continue
        rows.append(row)
        if known is not None and entry is not None:
            replaced.append(known)
            if conflicts(row, entry):
                conflicting.append(item_id)
    return rows, replaced, conflicting


def _unchanged(dataset: ImageTextDataset, row: int, entry: IndexEntry) -> bool:
    """Whether the index holds this image, and its file is where the entry says."""
    if entry.stamp and entry.stamp == file_stamp(dataset, row) and _same_file(dataset, row, entry):
        return True
    digest = image_digest(dataset, row)
    if digest and entry.content and digest != entry.content:
        return False
    missing = Path(entry.place).is_absolute() and not Path(entry.place).exists()
    return not (missing and digest)


def _same_file(dataset: ImageTextDataset, row: int, entry: IndexEntry) -> bool:
    """Whether an image is the file that the entry names."""
    pictures = dataset.pictures
    return isinstance(pictures, PictureFiles) and entry.place == str(pictures.paths[row].resolve())
