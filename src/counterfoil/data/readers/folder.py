"""Folders of pictures, with or without captions.

Captions are in a table, see `counterfoil.data.readers.tables`, or in a ``.txt`` beside each image,
one a line.

Images in subfolders with names of splits (``train/``, ``val/``, ``test/`` …) belong to these.
Without such folders and without a split column the splits are 80/10/10 by the hash of the id.
"""

from __future__ import annotations

from pathlib import Path

import torch

from counterfoil.core.io import read_text_lines
from counterfoil.data.dataset import DatasetEntry, ImageTextDataset, build_dataset
from counterfoil.data.files import FolderFiles, list_files
from counterfoil.data.images import PictureFiles, is_picture_name
from counterfoil.data.readers.precomp import features_of
from counterfoil.data.readers.tables import LISTS, ImageEntry, read_table, split_of_folder

_NOTES = ("readme", "license", "licence", "notice")  # texts that are no captions


def is_folder(folder: Path) -> bool:
    """Return True if a folder contains a list of captions, or captions beside images."""
    if not folder.is_dir():
        return False
    if any((folder / name).exists() for name in LISTS):
        return True
    return any(picture.with_suffix(".txt").exists() for picture in list_files(folder).pictures)


def read_folder(
    path: Path,
    *,
    images: Path | None = None,
    features: Path | None = None,
    name: str | None = None,
) -> ImageTextDataset:
    """Read a folder of images and captions, or the list of captions in it.

    File names are relative to `images`, by default the folder of the list.
    """
    folder = path if path.is_dir() else path.parent
    lists = [path] if path.is_file() else [folder / n for n in LISTS if (folder / n).exists()]
    if len(lists) > 1:
        names = " and ".join(file.name for file in lists)
        raise ValueError(f"{folder} holds {names}; give the path of the one to read")
    root = images or folder
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; the pictures are needed there")
    listing = list_files(root)
    by_id = read_table(lists[0], listing) if lists else _read_text_files(listing)
    paths = [image.path for image in by_id.values()]
    entries = [
        DatasetEntry(key, image.split, tuple(image.texts), columns=image.columns)
        for key, image in by_id.items()
    ]
    return build_dataset(
        name or folder.resolve().name,
        entries,
        where=str(lists[0] if lists else folder),
        pictures=PictureFiles(paths),
        features=None if features is None else features_of(list(by_id), features),
        left_out=listing.left_out,
        unlisted=listing.unlisted(paths),
    )


def _read_text_files(listing: FolderFiles) -> dict[str, ImageEntry]:
    """Images with a ``.txt`` of captions beside each, by path."""
    by_path: dict[str, ImageEntry] = {}
    folder, files, pictures = listing.folder, listing.files, listing.pictures
    for path in pictures:
        texts = path.with_suffix(".txt")
        lines = read_text_lines(texts, "captions") if texts.exists() else []
        name = path.relative_to(folder).as_posix()
        split = split_of_folder(Path(name))
        by_path[name] = ImageEntry(path, split, [line for line in lines if line.strip()])
    stems = {path.with_suffix("") for path in pictures}
    for texts in (path for path in files if path.suffix == ".txt"):
        if texts.with_suffix("") not in stems and not texts.stem.lower().startswith(_NOTES):
            raise ValueError(
                f"{texts} has no picture of that name beside it; add the picture or remove it"
            )
    if not any(image.texts for image in by_path.values()):
        raise ValueError(
            f"{folder} holds no captions: looked for {', '.join(LISTS[:3])}, and for a .txt beside "
            "each picture"
        )
    return by_path


_CAPTION_FILES = (".txt", ".json", ".jsonl", ".csv", ".tsv", ".npy", ".arrow", ".parquet")
_NO_CAPTIONS = (*_NOTES, "decisions")


def is_image_folder(folder: Path) -> bool:
    """Return True if a folder contains images, and no file that could be captions."""
    if not folder.is_dir():
        return False
    files = list_files(folder).files
    captions = any(
        file.suffix.lower() in _CAPTION_FILES and not file.stem.lower().startswith(_NO_CAPTIONS)
        for file in files
    )
    return not captions and any(map(is_picture_name, files))


def read_image_folder(folder: Path, name: str | None = None) -> ImageTextDataset:
    """Read the images of a folder and of its subfolders, without captions, in order of names."""
    pictures = list_files(folder).pictures
    return ImageTextDataset(
        name=name or folder.resolve().name,
        image_ids=[path.relative_to(folder).as_posix() for path in pictures],
        text_ids=[],
        texts=[],
        text_to_image=torch.empty(0, dtype=torch.long),
        splits=[split_of_folder(path.relative_to(folder)) for path in pictures],
        pictures=PictureFiles(pictures),
    )
