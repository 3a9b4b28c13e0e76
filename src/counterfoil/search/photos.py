"""A folder of photos that is searched as it is: its index is kept in a hidden folder inside it.

The index is a copy of what the photos say: one that does not open, or that another model made, is
made again. Every call compares it with the files, of which only new and changed ones are read.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from counterfoil.core.console import info
from counterfoil.core.io import ensure_writable_folder
from counterfoil.data.checks import counted, warn_of_left_out, without_unreadable
from counterfoil.data.dataset import DatasetEntry, ImageTextDataset, build_dataset
from counterfoil.data.files import list_files
from counterfoil.data.images import PictureFiles
from counterfoil.model import Model, load_model
from counterfoil.search.at_hand import announce_download
from counterfoil.search.index import SearchIndex, build_index
from counterfoil.search.rerank import Reranker
from counterfoil.search.vector_index import is_index

FOLDER = ".counterfoil"  # in the folder of photos
MODEL = "openai/clip-vit-base-patch32"


def open_photos(photos: Path, model: str = MODEL, *, rerank: Reranker | None = None) -> SearchIndex:
    """Open the index of a folder of photos, as its files are now.

    The first call makes it, in ``PHOTOS/.counterfoil``, one for each model; later calls add what is
    new or has changed and drop what is gone or can no longer be read. Captions and tables beside
    the photos are not read.

    Args:
        photos: folder with pictures, at any depth.
        model: as `load_model` takes it; a download is announced.
        rerank: re-ranks the first results.

    Raises:
        ValueError: the folder holds no pictures or may not be written to, or there is no such
            model on this machine and the hub cannot be reached.
    """
    dataset = _dataset(photos)
    place = _place(photos, model)
    ensure_writable_folder(place)
    announce_download(model)
    opened = load_model(model)
    index = _known(place, opened, rerank)
    if index is None:
        _make(opened, dataset, place)
        return SearchIndex(place, model=opened, reranker=rerank)
    update = index.add(dataset, replace=True, prune=True, skip_unreadable=True)
    changes = {
        "new": update.images - update.replaced,
        "changed": update.replaced,
        "renamed": update.moved,
        "deleted": update.pruned,
        "no longer readable": update.damaged,
    }
    if told := ", ".join(f"{number:,} {word}" for word, number in changes.items() if number):
        number = counted(len(index.vectors.images), "photo")
        info(f"{dataset.name}: {number}; since the last search, {told}")
    return index


def _dataset(photos: Path) -> ImageTextDataset:
    """The pictures of a folder, without captions."""
    listing = list_files(photos)
    if not listing.picture_names:
        raise ValueError(
            f"{photos.resolve()} holds no pictures; go to a folder of photos, or name one with "
            "--photos"
        )
    return build_dataset(
        photos.resolve().name,
        [DatasetEntry(name, "all", ()) for name in listing.picture_names],
        where=str(photos),
        pictures=PictureFiles(listing.pictures),
        left_out=listing.left_out,
    )


def _place(photos: Path, model: str) -> Path:
    """The folder of the index of a model."""
    folder = photos / FOLDER
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link, which is not followed; remove it")
    name = str(Path(model).resolve()) if Path(model).is_dir() else model
    return folder / f"{Path(name).name}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _known(place: Path, model: Model, rerank: Reranker | None) -> SearchIndex | None:
    """The index that is there; None for none, a damaged one, and one of another model."""
    try:
        return SearchIndex(place, model=model, reranker=rerank) if is_index(place) else None
    except ValueError:  # of a model that was trained since, too
        return None


def _make(model: Model, dataset: ImageTextDataset, place: Path) -> None:
    """Make the index, in place of one that does not fit."""
    warn_of_left_out(dataset)
    dataset, unreadable = without_unreadable(dataset)
    number = counted(len(dataset), "photo")
    left_out = f", without {len(unreadable):,} that cannot be read" if unreadable else ""
    info(f"indexing {number}{left_out} by {model.name}, once; the index is {place}")
    if place.exists():
        shutil.rmtree(place)
    build_index(model, dataset, place).close()
