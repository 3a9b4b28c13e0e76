"""Folders of pictures, with or without captions in a ``.txt`` beside each image, one a line.

Or in a ``.json`` with a "caption", as img2dataset writes it for each image. A text beside no
picture of its name is a note, which is counted and not read. Or pictures in ``image/`` and their
captions in ``caption/``, as Urban1k has them, a set to test with: all of the split "test"; or in
``images/`` and ``captions/``, whose splits are those of any folder.

Images in subfolders with names of splits (``train/``, ``val/``, ``test/`` …) belong to these.
Without such folders the splits are 80/10/10 by the hash of the id; pictures without any captions
are of the split "all".
"""

from __future__ import annotations

from pathlib import Path

from counterfoil.core.io import read_json, read_text_lines
from counterfoil.data.dataset import DatasetEntry, ImageTextDataset, build_dataset
from counterfoil.data.files import FolderFiles, plain_name
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers.columns import captions_of_json, plain_column
from counterfoil.data.readers.source import Format, Source, notes_of, split_of_folder

_PROBES = 20  # files that are looked into
_TITLES = ("title", "description", "comment", "comments", "query")  # of programs of photos


def read_folder(source: Source) -> ImageTextDataset:
    """Read a folder of images with their captions if there are any.

    Raises:
        ValueError: pictures of another folder are given, and no text beside one of them.
    """
    folder, listing = source.path, source.pictures
    beside = _texts_beside(listing)
    apart = {} if beside else _texts_apart(listing)
    texts = beside or apart
    if source.images is not None and not texts:
        raise ValueError(
            f"{folder} holds no captions that could name pictures of {source.images}; give "
            f"{source.images} alone"
        )
    urban = bool(apart) and all(_stem(name).startswith("image/") for name in apart)
    entries = _entries(listing, texts, "test" if urban else "")
    return build_dataset(
        source.name or folder.resolve().name,
        entries,
        where=str(folder),
        pictures=PictureFiles(listing.pictures),
        left_out=[*listing.left_out, *notes_of(listing, texts.values())],
    )


def _texts_beside(listing: FolderFiles) -> dict[str, Path]:
    """The text beside each picture that has one, by the picture's name.

    The text has the name of the picture with .txt for its ending, or after it; the case and the
    form of accents do not count. Where there is none, a .json for the ending may hold captions.
    """
    texts, notes = (_by_stem(listing, ending) for ending in (".txt", ".json"))
    found: dict[str, Path] = {}
    for name in listing.picture_names if texts else ():
        text = texts.get(_stem(name)) or texts.get(plain_name(name).casefold())
        if text is not None:
            found[name] = text
    beside = {name: notes[_stem(name)] for name in listing.picture_names if _stem(name) in notes}
    if any(_captions(path) for path in [*beside.values()][:_PROBES]):
        return beside | found
    return found


def _has_texts(listing: FolderFiles) -> bool:
    """Return True if a picture has a text."""
    return bool(_texts_beside(listing) or _texts_apart(listing))


def _texts_apart(listing: FolderFiles) -> dict[str, Path]:
    """The texts in a folder of captions for the pictures of the folder beside it, by name."""
    texts = {
        stem: path
        for name, path in _by_stem(listing, ".txt").items()
        if (stem := _within(name, "caption")) is not None
    }
    stems = {name: _within(_stem(name), "image") for name in listing.picture_names if texts}
    return {name: texts[stem] for name, stem in stems.items() if stem in texts}


def _within(name: str, folder: str) -> str | None:
    """A name in a folder at the top that is called so, or so in the plural."""
    top, slash, rest = name.partition("/")
    return rest if slash and top in (folder, f"{folder}s") else None


def _by_stem(listing: FolderFiles, ending: str) -> dict[str, Path]:
    pairs = zip(listing.names, listing.files, strict=True)
    return {_stem(name): path for name, path in pairs if path.suffix.lower() == ending}


def _captions(path: Path) -> list[str]:
    """The captions in a text, or in the JSON of a download, whose title is none."""
    if path.suffix.lower() == ".json":
        plain = read_json(path, "captions")
        if not isinstance(plain, dict):
            return []
        return captions_of_json({k: v for k, v in plain.items() if plain_column(k) not in _TITLES})
    return [line for line in read_text_lines(path, "captions") if line.strip()]


def _stem(name: str) -> str:
    return plain_name(name).casefold().rpartition(".")[0]


def _entries(listing: FolderFiles, texts: dict[str, Path], default: str) -> list[DatasetEntry]:
    """Images with their captions; `default` is the split of those in no folder of a split."""
    captions = {
        name: tuple(_captions(texts[name])) for name in listing.picture_names if name in texts
    }
    # nothing is trained or measured on pictures alone
    default = default if any(captions.values()) else "all"
    return [
        DatasetEntry(name, split_of_folder(Path(name)) or default, captions.get(name, ()))
        for name in listing.picture_names
    ]


BESIDE = Format(
    "pictures with a .txt or .json of captions beside each",
    lambda source: source.path.is_dir() and _has_texts(source.listing),
    read_folder,
    order=2,
)
ALONE = Format(
    "pictures alone",
    lambda source: source.path.is_dir() and bool(source.listing.picture_names),
    read_folder,
    order=2,
)
