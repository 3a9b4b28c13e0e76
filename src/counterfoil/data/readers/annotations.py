"""Data sets from annotation files: files that hold the captions of many pictures.

A format gives the rows of a file as `Annotations`. What all of them need is here: the rows of one
image are merged, its picture is found, its split is that of the row, of the file's name, of the
folder, or of lists of names beside the file, as ``Flickr_8k.trainImages.txt``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

from counterfoil.core.console import warn
from counterfoil.core.io import read_text_lines
from counterfoil.data.dataset import (
    ColumnValue,
    DatasetEntry,
    ImageTextDataset,
    build_dataset,
    first_values,
)
from counterfoil.data.files import (
    FolderFiles,
    LeftOut,
    find_pictures,
    plain_name,
)
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers.source import (
    Format,
    Source,
    notes_of,
    split_of_file,
    split_of_folder,
    split_of_name,
)

NO_CAPTION = "rows without a caption"
NO_LIST = "in none of the lists of splits"
_DIGITS = 12  # of COCO's file names


@final
@dataclass(slots=True)
class Annotation:
    """A row of an annotation file: an image and its captions.

    Attributes:
        picture: name of the picture.
        texts: captions.
        where: the row, for messages.
        id: of the image; by default the name of the picture.
        split: as the file names it; "" for none.
        text_ids: of the captions; () for none.
        columns: further values.
    """

    picture: str
    texts: list[str]
    where: str = ""
    id: str = ""
    split: str = ""
    text_ids: tuple[str, ...] = ()
    columns: dict[str, ColumnValue] = field(default_factory=dict)


@final
@dataclass(slots=True)
class Annotations:
    """The rows of an annotation file.

    Attributes:
        rows: in their order.
        left_out: rows that are no captions, by reason.
        name: of the data set; by default that of the folder.
        pictures_needed: False for files that people read for features alone, without any picture.
        files: other files that were read for it.
    """

    rows: list[Annotation] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    name: str = ""
    pictures_needed: bool = True
    files: list[Path] = field(default_factory=list)

    def leave_out(self, reason: str, name: str) -> None:
        """Note a row that is not read."""
        self.left_out.setdefault(reason, []).append(name)


def annotation_format(
    name: str,
    holds: Callable[[Source, Path], bool],
    read: Callable[[Source, Path], Annotations],
    *,
    has_columns: bool = False,
    order: int = 2,
) -> Format:
    """A format of annotation files, each with its captions.

    Args:
        name: what to give, for messages.
        holds: whether a file is of the format; cheap.
        read: the rows of a file.
        has_columns: the columns of images and captions can be chosen.
        order: see `Format`.
    """
    return Format(
        name,
        lambda source: bool(source.captions_in(holds)),
        partial(_read, holds, read),
        has_columns=has_columns,
        order=order,
    )


def _read(
    holds: Callable[[Source, Path], bool],
    read: Callable[[Source, Path], Annotations],
    source: Source,
) -> ImageTextDataset:
    """Read the annotation files of a source as one data set."""
    files = source.captions_in(holds)
    clash = _clash(files)
    try:
        parts = [_Part(source, file, read(source, file)) for file in files]
    except ValueError:
        if clash:
            raise ValueError(clash) from None
        raise
    absent: list[_Part] = []
    if any(part.found for part in parts):  # of COCO's years, those whose pictures are there
        absent = [part for part in parts if not part.found]
        parts = [part for part in parts if part.found]
    for part in absent:
        reason = f"rows of {part.file.name}, as none of its pictures is there"
        part.notes.left_out = {reason: [row.picture for row in part.notes.rows]}
    if clash := _clash([part.file for part in parts]):
        raise ValueError(clash)
    _set_splits(source, parts)
    images = merged_images(pair for part in parts for pair in zip(part.notes.rows, part.paths))
    left_out: dict[str, list[str]] = {}
    for part in (*parts, *absent):
        for reason, names in part.notes.left_out.items():
            left_out.setdefault(reason, []).extend(names)
    remarks = tuple(LeftOut(reason, tuple(names)) for reason, names in left_out.items())
    where = str(files[0] if len(files) == 1 else source.folder)
    for remark in remarks:
        warn(f"{where}: {remark}")
    listing = source.pictures
    read_files = {*files, *(f for p in parts for f in (*p.lists, *p.notes.files))}
    read_files |= {file.resolve() for file in read_files}
    paths = [image.path for image in images]
    needed = any(part.notes.pictures_needed for part in parts)
    with_pictures = needed or any(part.found for part in parts)
    if not with_pictures:
        _check_pictures(source, paths)
        if listing.pictures:
            warn(f"{where}: none of its pictures is in {listing.folder}; name their folder")
    first = next((part.notes.name for part in parts), "")
    return build_dataset(
        source.name or first or source.title,
        [image.entry for image in images],
        where=where,
        pictures=PictureFiles(paths) if with_pictures else None,
        left_out=[*listing.left_out, *notes_of(listing, read_files), *remarks],
        # pictures of a folder of their own are a stock from which the file chooses; a file that is
        # given alone is of the folders in which its pictures are
        unlisted=listing.unlisted(paths, beside=source.path.is_file())
        if source.images is None
        else {},
    )


@final
class _Part:
    """An annotation file of a source and the pictures of its rows."""

    def __init__(self, source: Source, file: Path, notes: Annotations) -> None:
        self.file, self.notes = file, notes
        self.lists: list[Path] = []  # of splits
        listing = source.pictures
        folder = file.parent if source.images is None else listing.folder
        self.paths, self.found = _find(notes.rows, listing, folder, str(file))
        self.split = split_of_file(file, listing.folder)


def _find(
    rows: Sequence[Annotation], listing: FolderFiles, folder: Path, where: str
) -> tuple[list[Path], bool]:
    """The picture of each row, beside the file or anywhere in the listing; and if any is there.

    Rows whose picture is below the file's own folder get the name from the listing's folder, by
    which images of several such folders differ.
    """
    names = [row.picture for row in rows]
    paths: dict[str, Path] = {}
    if folder != listing.folder and folder.is_relative_to(listing.folder):
        start = f"{folder.relative_to(listing.folder).as_posix()}/"
        names_inside = [n.removeprefix(start) for n in listing.names if n.startswith(start)]
        inside = FolderFiles(folder, names_inside)
        beside = dict(zip(names, find_pictures(names, inside, where=where)))
        paths = {name: path for name, path in beside.items() if _is_file(path)}
        for row, name in zip(rows, names):
            if name in paths:
                row.picture = f"{start}{row.picture}"
    rest = [name for name in dict.fromkeys(names) if name not in paths]
    paths |= dict(zip(rest, find_pictures(rest, listing, where=where)))
    numbers = {
        name: f"{name.zfill(_DIGITS)}"
        for name, path in paths.items()
        if name.isascii() and name.isdigit() and not _is_file(path)
    }
    if numbers:  # COCO's pictures are called by their number, with zeros before it
        by_number = find_pictures(list(numbers.values()), listing, where=where)
        paths |= {name: path for name, path in zip(numbers, by_number) if _is_file(path)}
    # a picture that is missing is missed where the others are
    found = {name: path for name, path in paths.items() if _is_file(path)}
    places = ((path.parents, plain_name(name).count("/")) for name, path in found.items())
    roots = Counter(parents[depth] for parents, depth in places if depth < len(parents))
    root = roots.most_common(1)[0][0] if roots else listing.folder
    complete = {name: found.get(name) or root / name for name in paths}
    return [complete[name] for name in names], bool(found)


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where a name is too long


def _clash(files: Sequence[Path]) -> str:
    """What is wrong where files of one folder do not say by their names which split each is."""
    first: dict[tuple[Path, str], Path] = {}
    for file in files:
        split = split_of_name(file.stem)
        other = first.setdefault((file.parent, split), file)
        if other != file:
            names = f"{other.name} and {file.name}"
            return f"{file.parent} holds {names}; give the path of the one to read"
    return ""


def _check_pictures(source: Source, paths: Sequence[Path]) -> None:
    """Refuse a folder of pictures that holds none of those that are named."""
    folder = source.pictures.folder
    meant = source.images is not None or (folder / "images").is_dir()
    if meant and paths:
        place = source.images or folder / "images"
        name = paths[0].relative_to(folder) if paths[0].is_relative_to(folder) else paths[0]
        raise ValueError(
            f"{place} holds none of the first {len(paths)} pictures, such as {name}; give the "
            "folder of the pictures"
        )


def _set_splits(source: Source, parts: Sequence[_Part]) -> None:
    """Give every row the split of its file or folder, where it has none of its own."""
    by_file = {part.split for part in parts if part.split}
    only_train = by_file == {"train"}
    folder = source.pictures.folder
    by_folder: dict[Path, str] = {}
    for part in parts:
        for row, path in zip(part.notes.rows, part.paths):
            split = row.split or ("" if only_train else part.split)
            if not split:
                if path not in by_folder:
                    by_folder[path] = _split_of_picture(row.picture, path, folder)
                split = by_folder[path]
            row.split = source.split_named(split)
    if not any(row.split for part in parts for row in part.notes.rows):
        for part in parts:
            _apply_lists(part)


def _split_of_picture(name: str, path: Path, folder: Path) -> str:
    """The split of the folder in a picture's name, or of that in which it is."""
    inside = path.relative_to(folder) if path.is_relative_to(folder) else Path()
    return split_of_folder(Path(plain_name(name))) or split_of_folder(inside)


def _apply_lists(part: _Part) -> None:
    """Give rows the splits of lists of names beside the file; rows in no list are left out."""
    rows = part.notes.rows
    keys = {key for row in rows for key in _keys(row.picture)}
    listed: dict[str, str] = {}
    for file in sorted(part.file.parent.glob("*.txt")):
        split = split_of_name(file.stem)
        if not split or file == part.file:
            continue
        try:
            names = [line.strip() for line in read_text_lines(file, "names") if line.strip()]
        except ValueError:
            continue
        if not names or sum(name in keys for name in names) < 0.9 * len(names):
            continue
        part.lists.append(file)
        for name in names:
            if listed.setdefault(name, split) != split:
                raise ValueError(
                    f"{file}: {name!r} is in the list of {listed[name]!r} too; an image is of one "
                    "split"
                )
    if not listed:
        return
    kept = []
    for row, path in zip(rows, part.paths):
        row.split = next((listed[key] for key in _keys(row.picture) if key in listed), "")
        if row.split:
            kept.append((row, path))
        elif row.picture not in part.notes.left_out.get(NO_LIST, ()):
            part.notes.leave_out(NO_LIST, row.picture)
    part.notes.rows, part.paths = [row for row, _ in kept], [path for _, path in kept]


def _keys(picture: str) -> tuple[str, str, str]:
    """The names that a list of a split may have for a picture."""
    name = plain_name(picture)
    last = name.rpartition("/")[2]
    return name, last, last.rpartition(".")[0]


@final
@dataclass(slots=True)
class AnnotatedImage:
    """An image whose rows are being merged."""

    id: str
    path: Path
    first: Annotation
    texts: list[str] = field(default_factory=list)
    text_ids: list[str] = field(default_factory=list)
    columns: dict[str, ColumnValue] = field(default_factory=dict)

    @property
    def entry(self) -> DatasetEntry:
        """The image as an entry of a data set."""
        ids = tuple(self.text_ids) if len(self.text_ids) == len(self.texts) else ()
        return DatasetEntry(self.id, self.first.split, tuple(self.texts), ids, self.columns)


def merged_images(rows: Iterable[tuple[Annotation, Path]]) -> list[AnnotatedImage]:
    """The images of rows and their pictures, in order of first appearance."""
    plain: dict[str, str] = {}
    first_names: dict[str, str] = {}  # rows may write one picture as a.jpg and ./a.jpg
    images: dict[str, AnnotatedImage] = {}
    for row, path in rows:
        if (name := plain.get(row.picture)) is None:
            name = plain[row.picture] = plain_name(row.picture)
        key = row.id or first_names.setdefault(name, row.picture)
        if (image := images.get(key)) is None:
            image = images[key] = AnnotatedImage(key, path, row)
        elif (plain[image.first.picture], image.first.split) != (name, row.split):
            raise ValueError(
                f"{row.where}: image {key!r} is {row.picture!r} in split {row.split!r} here, "
                "but another file or split further up"
            )
        image.texts += row.texts
        image.text_ids += row.text_ids
        first_values(image.columns, row.columns)
    return list(images.values())
