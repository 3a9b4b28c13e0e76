"""Folders of pictures, with or without captions.

Captions are in a table, see `counterfoil.data.readers.tables`, or in a ``.txt`` beside each image,
one a line. A text beside no picture of its name is a note, which is counted and not read.

Images in subfolders with names of splits (``train/``, ``val/``, ``test/`` …) belong to these.
Without such folders and without a split column the splits are 80/10/10 by the hash of the id;
pictures without any captions are of the split "all".
"""

from __future__ import annotations

from pathlib import Path

from counterfoil.core.io import read_text_lines
from counterfoil.data.corrections import CORRECTIONS_FILES
from counterfoil.data.dataset import DatasetEntry, ImageTextDataset, build_dataset
from counterfoil.data.features import features_of
from counterfoil.data.files import OTHER, FolderFiles, LeftOut, list_files, plain_name
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers.tables import LISTS, ImageEntry, read_table, split_of_folder


def is_folder(folder: Path) -> bool:
    """Return True if a folder contains a list of captions, or captions beside images."""
    if not folder.is_dir():
        return False
    return any((folder / name).exists() for name in LISTS) or bool(_texts(list_files(folder)))


def is_picture_folder(folder: Path) -> bool:
    """Return True if a folder contains pictures."""
    return folder.is_dir() and bool(list_files(folder).picture_names)


def read_folder(
    path: Path,
    *,
    images: Path | None = None,
    features: Path | None = None,
    name: str | None = None,
) -> ImageTextDataset:
    """Read a folder of images with their captions if there are any, or the list of captions in it.

    File names are relative to `images`, by default the folder of the list.
    """
    folder = path if path.is_dir() else path.parent
    lists = [path] if path.is_file() else [folder / n for n in LISTS if (folder / n).exists()]
    if len(lists) > 1:
        names = " and ".join(file.name for file in lists)
        raise ValueError(f"{folder} holds {names}; give the path of the one to read")
    if images is not None and not images.is_dir():
        raise ValueError(f"{images} is not a folder; the pictures are needed there")
    listing = list_files(images or folder)
    texts = {} if lists else _texts(listing)
    if images is not None and not lists and not texts:
        raise ValueError(
            f"{folder} holds no captions that could name pictures of {images}; give {images} alone"
        )
    by_id = read_table(lists[0], listing) if lists else _read_text_files(listing, texts)
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
        left_out=[*listing.left_out, *_notes(listing, {*lists, *texts.values()})],
        # pictures of a folder of their own are a stock from which the list chooses
        unlisted=listing.unlisted(paths) if images is None else {},
    )


def _texts(listing: FolderFiles) -> dict[str, Path]:
    """The text beside each picture that has one, by the picture's name.

    The text has the name of the picture with .txt for its ending, or after it; the case and the
    form of accents do not count.
    """
    texts = {
        _stem(name): path
        for name, path in zip(listing.names, listing.files, strict=True)
        if path.suffix.lower() == ".txt"
    }
    found = {}
    for name in listing.picture_names if texts else ():
        text = texts.get(_stem(name)) or texts.get(plain_name(name).casefold())
        if text is not None:
            found[name] = text
    return found


def _stem(name: str) -> str:
    return plain_name(name).casefold().rpartition(".")[0]


def _read_text_files(listing: FolderFiles, texts: dict[str, Path]) -> dict[str, ImageEntry]:
    """Images with the captions beside them, by name."""
    images = {}
    for name, path in listing.picture_names.items():
        lines = read_text_lines(texts[name], "captions") if name in texts else []
        captions = [line for line in lines if line.strip()]
        images[name] = ImageEntry(path, split_of_folder(Path(name)), captions)
    if not any(image.texts for image in images.values()):
        for image in images.values():  # nothing is trained or measured on them
            image.split = image.split or "all"
    return images


def _notes(listing: FolderFiles, read: set[Path]) -> list[LeftOut]:
    """The files that are neither pictures nor read otherwise."""
    names = tuple(
        name
        for name, path in zip(listing.names, listing.files, strict=True)
        if name not in listing.picture_names and path not in read and name not in CORRECTIONS_FILES
    )
    return [LeftOut(OTHER, names)] if names else []
