"""Walk folders of pictures and match the names that tables give them; every reader uses this.

A folder comes from a phone, a NAS, a Mac or an archive: it holds hidden files, thumbnails, trash,
links, and names that another system wrote. `list_files` takes what a person would call its files
and counts the rest with the reason. `find_pictures` finds pictures under the names of a table.
torch is not imported here.
"""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import final
from urllib.parse import unquote

from counterfoil.data.images import ENDINGS, is_picture_name

# what programs keep beside people's pictures, in small letters; names with a dot before are hidden
_OF_PROGRAMS = frozenset({
    "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "$recycle.bin", "recycler",
    "lost+found", "system volume information", "__macosx", "thumbs.db", "ehthumbs.db",
    "desktop.ini", "icon\r",
})  # fmt: skip
# folders that tables leave out of a name, or add to it
PICTURE_FOLDERS = (
    "images", "image", "imgs", "img", "pictures", "pics", "photos", "flickr30k_images",
    "flickr30k-images", "flickr8k_dataset", "flicker8k_dataset", "train2014", "val2014",
    "test2014", "train2017", "val2017", "test2017",
)  # fmt: skip
# files by which a folder that counterfoil wrote is known, and a word that each of them holds
_OURS = (
    ("manifest.json", b'"artifact"'),
    ("features.json", b'"artifact"'),
    ("index.json", b'"identity"'),
    ("model.json", b'"provenance"'),
)

HIDDEN = "hidden, thumbnail or deleted"
OURS = "in a folder that counterfoil wrote"
LINKS = "a link to what is read already"
BROKEN = "a link that leads nowhere"
SPECIAL = "no regular file"
CLOSED = "a folder that cannot be opened"
NOT_UTF8 = "a name that is not UTF-8"


@final
@dataclass(frozen=True, slots=True)
class LeftOut:
    """Files or rows of a source that are not read, with the reason.

    Attributes:
        reason: why, as in "hidden, thumbnail or deleted".
        names: of the files or rows, as the source has them.
    """

    reason: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.names):,} left out, {self.reason}, such as {printable(self.names[0])}"


def printable(name: str) -> str:
    r"""A file's name for messages: bytes that are not UTF-8 as ``\xe9``.

    >>> print(printable("caf\udce9.jpg"))
    caf\xe9.jpg
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@final
@dataclass(slots=True)
class FolderFiles:
    """The files of a folder at any depth, and what was left out.

    Attributes:
        folder: the folder.
        files: regular files, in order of names.
        reasons: files that were left out, by reason; of skipped folders the pictures alone.
    """

    folder: Path
    files: list[Path] = field(default_factory=list)
    reasons: dict[str, list[str]] = field(default_factory=dict)

    @property
    def pictures(self) -> list[Path]:
        """The files whose ending is that of a picture."""
        return [path for path in self.files if is_picture_name(path)]

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What was left out."""
        return tuple(LeftOut(reason, tuple(names)) for reason, names in self.reasons.items())

    def unlisted(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """The pictures that are not among some paths."""
        known = set(paths)
        return tuple(path for path in self.pictures if path not in known)

    def leave_out(self, reason: str, path: Path) -> None:
        """Note a file that is not read."""
        self.reasons.setdefault(reason, []).append(relative_name(path, self.folder))


def relative_name(path: Path, folder: Path) -> str:
    """The name of a file relative to a folder, with slashes."""
    return path.relative_to(folder).as_posix()


def is_kept_by_programs(name: str) -> bool:
    """Return True for hidden files, thumbnails and trash.

    >>> [is_kept_by_programs(name) for name in (".Trash-1000", "@eaDir", "._a.jpg", "a.jpg")]
    [True, True, True, False]
    """
    return name.startswith(".") or name.lower() in _OF_PROGRAMS


def list_files(folder: Path) -> FolderFiles:
    """List the files of a folder and of all folders in it.

    Hidden files, thumbnails, trash, folders that counterfoil wrote, special files and names that
    are not UTF-8 are left out and counted. A link is followed unless it leads to what is listed
    anyway, so that every file is listed once and a loop ends.

    Raises:
        ValueError: `folder` is no folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{printable(str(folder))} is not a folder")
    listing, visited, links = FolderFiles(folder), set[str](), list[Path]()
    _walk(folder, listing, visited, links)
    taken = {os.path.realpath(path) for path in listing.files} if links else set[str]()
    while links:
        link = links.pop(0)
        real = os.path.realpath(link)
        if not os.path.exists(real):  # noqa: PTH110 - of a loop too, which Path.exists would raise
            listing.leave_out(BROKEN, link)
        elif real in visited or real in taken:
            if is_picture_name(link):
                listing.leave_out(LINKS, link)
        elif Path(real).is_dir():
            before = len(listing.files)
            _walk(link, listing, visited, links)
            taken |= {os.path.realpath(path) for path in listing.files[before:]}
        elif Path(real).is_file():
            listing.files.append(link)
            taken.add(real)
        else:
            listing.leave_out(SPECIAL, link)
    listing.files.sort()
    return listing


def _walk(top: Path, listing: FolderFiles, visited: set[str], links: list[Path]) -> None:
    """Add the files under a folder to the listing, and links to be looked at later."""
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(folder)
        if real in visited:
            continue
        visited.add(real)
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            listing.leave_out(CLOSED, folder)
            continue
        if folder != listing.folder and _is_ours(folder, {entry.name for entry in found}):
            _count_pictures(folder, OURS, listing)
            continue
        for entry in found:
            path = folder / entry.name
            if is_kept_by_programs(entry.name):
                _count_pictures(path, HIDDEN, listing)
            elif not _is_utf8(entry.name):
                _count_pictures(path, NOT_UTF8, listing)
            elif entry.is_symlink():
                links.append(path)
            elif entry.is_dir():
                waiting.append(path)
            elif entry.is_file():
                listing.files.append(path)
            else:
                listing.leave_out(SPECIAL, path)


def _count_pictures(place: Path, reason: str, listing: FolderFiles) -> None:
    """Note the pictures of a file or folder that is left out; links in it are not followed."""
    if place.is_symlink() or not place.is_dir():
        if place.suffix.lower() in ENDINGS:
            listing.leave_out(reason, place)
        return
    for folder, _, names in os.walk(place):
        for name in sorted(names):
            if Path(name).suffix.lower() in ENDINGS:
                listing.leave_out(reason, Path(folder) / name)


def _is_utf8(name: str) -> bool:
    return not any("\udc80" <= letter <= "\udcff" for letter in name)


def _is_ours(folder: Path, names: set[str]) -> bool:
    """Return True for a folder that counterfoil wrote, whose pictures are copies and figures."""
    for name, word in _OURS:
        if name in names and (folder / name).is_file():
            with (folder / name).open("rb") as file:
                if word in file.read(1 << 20):
                    return True
    return False


# Names of tables: Windows writes backslashes, macOS decomposed accents, cameras ".JPG".

_Parts = tuple[str, ...]


def plain_name(name: str) -> str:
    r"""A file's name in one spelling: composed accents, slashes, no "." and no first slash.

    >>> plain_name(r".\pics\1.jpg")
    'pics/1.jpg'
    """
    parts = unicodedata.normalize("NFC", name).replace("\\", "/").split("/")
    return "/".join(part for part in parts if part not in ("", "."))


def _loose(name: str) -> _Parts:
    """The parts of a name without regard to case, and .jpeg as .jpg."""
    folded = plain_name(name).casefold()
    if folded.endswith(".jpeg"):
        folded = folded.removesuffix(".jpeg") + ".jpg"
    return tuple(folded.split("/"))


@final
class PictureFinder:
    """Finds the pictures of a folder under the names that tables give them.

    A name fits a file of the same path first; then one whose path differs in what systems write
    otherwise: backslashes, the form of accents, the case, .jpeg for .jpg, a missing ending; then
    one whose path ends as the name does or with which the name ends, as ``1.jpg`` fits
    ``Images/1.jpg`` and ``train/1.jpg`` fits ``1.jpg``, folders as ``images`` before others.

    Args:
        listing: the files of the folder.
    """

    def __init__(self, listing: FolderFiles) -> None:
        self._folder, self._pictures = listing.folder, listing.pictures
        self._files = set(listing.files)

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[_Parts, Path]]]:
        """Pictures by the last part of their names, with the ending and without."""
        by_name: defaultdict[str, list[tuple[_Parts, Path]]] = defaultdict(list)
        for path in self._pictures:
            parts = _loose(relative_name(path, self._folder))
            stem = parts[-1].rpartition(".")[0]
            by_name[parts[-1]].append((parts, path))
            by_name[stem].append(((*parts[:-1], stem), path))
        return by_name

    def find(self, name: str) -> tuple[int, list[Path]]:
        """The pictures that a name may mean, several if it is not clear, and how far they stand.

        0 is where the name says, 1 a folder as ``images`` more or less, 2 another folder.
        """
        given = self._folder / name
        if given in self._files or _is_file(given):  # hidden, or outside of the folder
            return 0, [given]
        found = self._similar(name)
        if not found[1] and "%" in name:  # as addresses write names
            found = self._similar(unquote(name))
        return found

    def _similar(self, name: str) -> tuple[int, list[Path]]:
        wanted = _loose(name)
        found: defaultdict[tuple[int, bool, int], list[Path]] = defaultdict(list)
        for parts, path in self._by_name.get(wanted[-1], ()):
            common = min(len(parts), len(wanted))
            if parts[-common:] == wanted[-common:]:
                more = (*parts[:-common], *wanted[:-common])
                usual = all(part in PICTURE_FOLDERS for part in more)
                found[common, usual, -len(more) if usual else 0].append(path)
        if not found:
            return 0, []
        common, usual, away = best = max(found)
        paths = found[best]
        if len(paths) > 1:  # of names that differ in case alone, that of the same case
            same = [path for path in paths if _ends_alike(path, name)]
            paths = same if len(same) == 1 else paths
        return (0 if usual and not away else 1 if usual else 2), paths


def _ends_alike(path: Path, name: str) -> bool:
    return plain_name(path.name) == plain_name(name).rpartition("/")[2]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or that holds a null
        return False


def find_pictures(names: Sequence[str], listing: FolderFiles, *, where: str) -> list[Path]:
    """The picture of each name in a folder; where none is found, a path that does not exist.

    Names of one folder stand in one place: where some are found as the table has them, others are
    not looked for elsewhere, where a picture of another time may have their name.

    Args:
        names: of the pictures, as a table gives them.
        listing: the files of the folder.
        where: the table, for errors.

    Raises:
        ValueError: a name fits several pictures, or two names fit one.
    """
    finder = PictureFinder(listing)
    found = {name: finder.find(name) for name in dict.fromkeys(names)}
    nearest: dict[str, int] = {}
    for name, (away, paths) in found.items():
        if paths:
            parent = plain_name(name).rpartition("/")[0]
            nearest[parent] = min(away, nearest.get(parent, away))
    path_of, name_of = dict[str, Path](), dict[Path, str]()
    for name, (away, paths) in found.items():
        if not paths or away > nearest[plain_name(name).rpartition("/")[0]]:
            path_of[name] = listing.folder / name
            continue
        if len(paths) > 1:
            fits = " and ".join(relative_name(path, listing.folder) for path in paths[:2])
            raise ValueError(
                f"{where}: {name!r} fits {fits}; write the folder into the name, or give the "
                "folder of the pictures"
            )
        path_of[name] = paths[0]
        other = name_of.setdefault(paths[0], name)
        if plain_name(other) != plain_name(name):
            raise ValueError(
                f"{where}: {other!r} and {name!r} both fit {printable(str(paths[0]))}; write the "
                "names of the files"
            )
    return [path_of[name] for name in names]
