"""What is read as a data set: a path with its options, and the record of a format."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

from counterfoil.core.console import warn
from counterfoil.core.io import check_file, parse_json, read_text
from counterfoil.data.corrections import CORRECTIONS_FILE
from counterfoil.data.dataset import SPLIT_NAMES, ImageTextDataset, canonical_split
from counterfoil.data.files import OTHER, PICTURE_FOLDERS, FolderFiles, LeftOut, list_files
from counterfoil.data.images import ENDINGS

# endings of files that may hold the captions of many pictures
_ANNOTATIONS = (
    ".json", ".jsonl", ".jsonlines", ".csv", ".tsv", ".txt", ".token", ".tokens", ".parquet",
)  # fmt: skip
# folders of captions whose pictures stand beside them
_BESIDE = (
    "annotations", "annotation", "ann", "text", "texts", "captions", "labels", "splits", "json",
    "metadata", "flickr8k_text", "flickr30k_text",
)  # fmt: skip
_NOTES = ("readme", "license", "licence", "notice", "corrections", "decisions")  # no captions
DEEPEST = 2  # folders between the folder that is given and its files of captions
MOST_LOOKED_AT = 100  # files of a depth that may hold captions
HEAD = 1 << 16  # bytes


@final
@dataclass(frozen=True, slots=True)
class Format:
    """A format of data sets.

    Attributes:
        name: what to give, for messages.
        matches: whether a source is of this format; cheap.
        read: the reader.
        holds_pictures: the pictures are in the files, so that a folder of them is refused.
        has_columns: the columns of images and captions can be chosen.
        named_pictures: pictures whose names are the ids of its images may be named besides.
        order: formats of a lower number are tried first: 0 where one file of its own tells it, 1
            where names of files do, 2 where files are looked into, or anything will do.
        phrases: reads the phrases of a folder's captions by id, as pairs of the text and what
            `counterfoil.data.phrases.PhraseFile` reads of a caption; None where it has none.
    """

    name: str
    matches: Callable[[Source], bool]
    read: Callable[[Source], ImageTextDataset]
    holds_pictures: bool = False
    has_columns: bool = False
    named_pictures: bool = False
    order: int = 1
    phrases: Callable[[Path], Mapping[str, tuple[str, Any]]] | None = None


@final
@dataclass(kw_only=True)
class Source:
    """A path to read with its options; what is looked up there is kept.

    Attributes:
        path: file or folder.
        images: folder of the pictures; by default they are looked for at the path.
        name: of the data set.
        restval: split of COCO's "restval" images.
        splits: to read, of formats that store them apart; all by default.
        image_column: by default one that `counterfoil.data.readers.columns` knows.
        caption_column: the same.
        split_column: the same.
    """

    path: Path
    images: Path | None = None
    name: str | None = None
    restval: str = "train"
    splits: tuple[str, ...] = ()
    image_column: str | None = None
    caption_column: str | None = None
    split_column: str | None = None
    _documents: dict[Path, Any] = field(default_factory=dict, repr=False)
    _heads: dict[Path, str] = field(default_factory=dict, repr=False)

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are chosen, by argument."""
        names = ("image_column", "caption_column", "split_column")
        return {name: column for name in names if (column := getattr(self, name))}

    @property
    def folder(self) -> Path:
        """The path, or the folder of the file."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def title(self) -> str:
        """The name of the folder, or of that around a folder of captions alone."""
        folder = self.folder.resolve()
        return folder.parent.name if folder.name.lower() in _BESIDE else folder.name

    @cached_property
    def listing(self) -> FolderFiles:
        """The files at any depth of the folder."""
        return list_files(self.folder)

    @property
    def inside(self) -> FolderFiles | None:
        """The files of the folder; None where the path is a file."""
        return self.listing if self.path.is_dir() else None

    @cached_property
    def pictures(self) -> FolderFiles:
        """The files among which pictures are looked for: those of `images`, or of the folder.

        Captions in ``annotations`` without pictures have them beside that folder.
        """
        if self.images is not None:
            if not self.images.is_dir():
                raise ValueError(f"{self.images} is not a folder; the pictures are needed there")
            return list_files(self.images)
        folder = self.folder.resolve()
        if not self.listing.pictures and folder.name.lower() in _BESIDE:
            beside = {path.name.lower() for path in folder.parent.iterdir() if path.is_dir()}
            if beside & set(PICTURE_FOLDERS):
                return list_files(folder.parent)
        return self.listing

    def split_named(self, name: str) -> str:
        """The split that a file means by a name; "" for none."""
        return canonical_split(self.restval if name == "restval" else name)

    def head(self, file: Path) -> str:
        """The first characters of a file; "" if it cannot be read."""
        if file not in self._heads:
            try:
                check_file(file)
                with file.open("rb") as stream:
                    content = stream.read(HEAD)
            except OSError:
                content = b""
            self._heads[file] = content.decode(_utf16(content) or "utf-8-sig", "replace")
        return self._heads[file]

    def document(self, file: Path) -> Any:
        """The content of a JSON file; of a file with a value on each line, the list of them.

        Raises:
            ValueError: it is not JSON.
        """
        if file not in self._documents:
            text = read_any_text(file)
            try:
                self._documents[file] = parse_json(text, "it")
            except ValueError as error:
                if "Extra data" not in str(error):
                    what = "a Karpathy data set" if file.name.startswith("dataset_") else "captions"
                    raise ValueError(f"{file} cannot be read as {what}: {error}") from None
                self._documents[file] = [
                    parse_json(line, f"{file}, line {number}")
                    for number, line in enumerate(lines_of(text), 1)
                    if line.strip()
                ]
        return self._documents[file]

    def document_or_none(self, file: Path) -> Any:
        """The content of a JSON file; None for one that is none, unless it is the path itself."""
        try:
            return self.document(file)
        except ValueError:
            if file == self.path:
                raise
            return None

    def captions_in(self, holds: Callable[[Source, Path], bool]) -> list[Path]:
        """The files that hold captions: the path itself, or the uppermost ones of the folder."""
        if self.path.is_file():
            return [self.path] if holds(self, self.path) else []
        for files in self._candidates:
            if found := [file for file in files if holds(self, file)]:
                return found
        return []

    @cached_property
    def _candidates(self) -> list[list[Path]]:
        """Files that may hold the captions of many pictures, by depth.

        A file that is named as a picture is about that one.
        """
        stems = {path.with_suffix("") for path in self.listing.pictures}
        by_depth: list[list[Path]] = [[] for _ in range(DEEPEST + 1)]
        for name, file in zip(self.listing.names, self.listing.files, strict=True):
            depth = name.count("/")
            about_one = file.with_suffix("") in stems or any(
                ending.lower() in ENDINGS for ending in file.suffixes[:-1]
            )
            if (
                depth <= DEEPEST
                and file.suffix.lower() in _ANNOTATIONS
                and not about_one
                and not file.stem.lower().startswith(_NOTES)
            ):
                by_depth[depth].append(file)
        return [files[:MOST_LOOKED_AT] for files in by_depth]


_IN_NAMES = (*SPLIT_NAMES, "restval")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def notes_of(listing: FolderFiles, read: Iterable[Path]) -> list[LeftOut]:
    """The files of a folder that are neither pictures nor among those that were read."""
    known = set(read)
    names = tuple(
        name
        for name, path in zip(listing.names, listing.files, strict=True)
        if name not in listing.picture_names and path not in known and name != CORRECTIONS_FILE
    )
    return [LeftOut(OTHER, names)] if names else []


def split_of_name(stem: str) -> str:
    """The split that the name of a file or folder says; "" for none.

    >>> split_of_name("validation-00000-of-00001"), split_of_name("Flickr_8k.trainImages")
    ('dev', 'train')
    >>> split_of_name("captions_val2017"), split_of_name("00012")
    ('dev', '')
    """
    words = (word.lower() for word in _WORD.findall(stem))
    found = {canonical_split(word) for word in words if word in _IN_NAMES}
    return found.pop() if len(found) == 1 else ""


def split_of_folder(file: Path) -> str:
    """The split that the first folder of a relative path names; "" for none.

    >>> split_of_folder(Path("val/beach.jpg")), split_of_folder(Path("beaches/1.jpg"))
    ('dev', '')
    """
    folder = file.parts[0].lower() if len(file.parts) > 1 else ""
    return canonical_split(folder) if folder in SPLIT_NAMES else ""


def split_of_file(file: Path, folder: Path) -> str:
    """The split that the name of a file says, or else a folder between; "" for none.

    >>> split_of_file(Path("d/test/metadata.csv"), Path("d"))
    'test'
    """
    parts = file.relative_to(folder).parts[:-1] if file.is_relative_to(folder) else ()
    names = (part for part in map(str.lower, reversed(parts)) if part in SPLIT_NAMES)
    return split_of_name(file.stem) or canonical_split(next(names, ""))


def read_any_text(file: Path, *, code_page: bool = False) -> str:
    """Read text in UTF-8 or UTF-16, as spreadsheets write it, with its line ends.

    With `code_page`, other text is read as Windows' cp1252, with a warning.

    Raises:
        ValueError: it is none of them.
    """
    reason = ValueError(f"{file} holds null characters, as no text does; save it as UTF-8")
    try:
        text = read_text(file, "captions", exact=True)
        if "\0" not in text[:HEAD]:
            return text
    except ValueError as error:
        if "is not UTF-8" not in str(error):
            raise
        reason = error
    content = file.read_bytes()
    encoding = _utf16(content)
    if encoding is None and not code_page:
        raise reason
    try:
        text = content.decode(encoding or "cp1252")
    except UnicodeDecodeError:
        raise ValueError(f"{file} is neither UTF-8 nor cp1252 text; save it as UTF-8") from None
    if encoding is None:
        warn(f"{file} is not UTF-8 and was read as cp1252; save it as UTF-8 if letters look wrong")
    return text


def lines_of(text: str) -> list[str]:
    """The lines of a text, whatever ends them."""
    return re.split("\r\n|\r|\n", text)


def _utf16(content: bytes) -> str | None:
    """The encoding of text in UTF-16, with its mark or without; None for other text."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    start = content[:200]
    for encoding, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if zeros and zeros.count(0) > len(zeros) * 0.9:
            return encoding
    return None
