"""Walk folders of pictures and match the names that tables give them; every reader uses this.

A folder comes from a phone, a NAS, a Mac or an archive: it holds hidden files, thumbnails, trash,
links, and names that another system wrote. `list_files` takes what a person would call its files
and counts the rest with the reason. `find_pictures` finds pictures under the names of a table.
torch is not imported here.
"""

from __future__ import annotations

import os
import re
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
# pictures that no decoder here reads: of cameras as they are exposed, of programs, of lines
_UNREAD = frozenset({
    ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw", ".psd",
    ".xcf", ".svg", ".jxl",
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
    ("model.json", b'"provenance"'),
    ("audit.json", b'"provenance"'),
)

HIDDEN = "hidden, thumbnail or deleted"
OURS = "a folder that counterfoil wrote"
LINKS = "a link to what is read already"
AROUND = "a link to a folder around this one"
BROKEN = "a link that leads nowhere"
SPECIAL = "no regular file"
CLOSED = "a folder that cannot be opened"
NOT_UTF8 = "a name that is not UTF-8"
UNREAD = "a picture of a format that is not read"
OTHER = "neither a picture nor captions of one"
# what people do not expect to be left out
UNEXPECTED = (BROKEN, SPECIAL, CLOSED, NOT_UTF8, UNREAD)


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
@dataclass
class FolderFiles:
    """The files of a folder at any depth, and what was left out.

    Attributes:
        folder: the folder.
        names: of the regular files, relative to the folder and with slashes, in order.
        reasons: names of what was left out, by reason; of hidden folders the pictures alone.
    """

    folder: Path
    names: list[str] = field(default_factory=list)
    reasons: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def files(self) -> list[Path]:
        """The files, in order of names."""
        return [self.folder / name for name in self.names]

    @cached_property
    def picture_names(self) -> dict[str, Path]:
        """The files whose ending is that of a picture, by name."""
        pairs = zip(self.names, self.files, strict=True)
        return {name: path for name, path in pairs if is_picture_name(path)}

    @property
    def pictures(self) -> list[Path]:
        """The files whose ending is that of a picture."""
        return list(self.picture_names.values())

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What was left out."""
        return tuple(LeftOut(reason, tuple(names)) for reason, names in self.reasons.items())

    def unlisted(self, paths: Iterable[Path], *, beside: bool = False) -> dict[str, Path]:
        """The pictures that are not among some paths, by name; with `beside`, of their folders."""
        known = set(paths)
        folders = {path.parent for path in known}
        return {
            name: path
            for name, path in self.picture_names.items()
            if path not in known and (not beside or path.parent in folders)
        }

    def leave_out(self, reason: str, name: str) -> None:
        """Note a file that is not read."""
        self.reasons.setdefault(reason, []).append(name)


def is_kept_by_programs(name: str) -> bool:
    """Return True for hidden files, thumbnails and trash.

    >>> [is_kept_by_programs(name) for name in (".Trash-1000", "@eaDir", "._a.jpg", "a.jpg")]
    [True, True, True, False]
    """
    return name.startswith(".") or name.lower() in _OF_PROGRAMS


def list_files(folder: Path) -> FolderFiles:
    """List the files of a folder and of all folders in it.

    Hidden files, thumbnails, trash, folders that counterfoil wrote, special files, pictures that
    cannot be read and names that are not UTF-8 are left out and counted. A link is followed unless
    it leads to what is listed anyway or to a folder around, so that every file is listed once and
    a loop ends.

    Raises:
        ValueError: `folder` is no folder, or cannot be opened.
    """
    if not folder.is_dir():
        raise ValueError(f"{printable(str(folder))} is not a folder")
    return _Walk(folder).run()


@final
class _Walk:
    """One pass over a folder; paths are strings, which are several times as fast as `Path`."""

    def __init__(self, folder: Path) -> None:
        self.listing = FolderFiles(folder)
        self.visited: set[str] = set()  # real paths of the folders that were listed
        self.links: list[str] = []  # looked at when all folders are known
        self.file_links: list[tuple[str, str]] = []  # with their real paths

    def run(self) -> FolderFiles:
        self._walk("")
        listing, top = self.listing, self.listing.folder
        root = os.path.realpath(top)
        while self.links:
            links, self.links = sorted(self.links), []
            for name in links:
                real = os.path.realpath(top / name)
                if os.path.isdir(real):  # noqa: PTH112 - of a loop too, at which Path raises
                    if real in self.visited:
                        listing.leave_out(LINKS, name)
                    elif root.startswith(real.rstrip("/") + "/"):
                        listing.leave_out(AROUND, name)
                    else:
                        self._walk(f"{name}/")
                elif os.path.isfile(real):  # noqa: PTH113
                    self.file_links.append((name, real))
                else:
                    exists = os.path.exists(real)  # noqa: PTH110
                    listing.leave_out(SPECIAL if exists else BROKEN, name)
        taken: set[str] = set()
        for name, real in self.file_links:
            folder, _, file = real.rpartition("/")
            listed = (folder or "/") in self.visited and _reason(file) is None
            if listed or real in taken:
                listing.leave_out(LINKS, name)
            else:
                listing.names.append(name)
                taken.add(real)
        listing.names.sort(key=lambda name: name.split("/"))
        return listing

    def _walk(self, top: str) -> None:
        """Add the files under a folder, whose name ends in a slash, or is "" for the first."""
        listing, waiting = self.listing, [top]
        while waiting:
            prefix = waiting.pop()
            place = os.path.join(listing.folder, prefix)  # noqa: PTH118
            real = os.path.realpath(place)
            if real in self.visited:
                continue
            try:
                with os.scandir(place) as entries:
                    found = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                if not prefix:
                    name = printable(str(listing.folder))
                    raise ValueError(f"{name} cannot be opened: {error.strerror}") from error
                listing.leave_out(CLOSED, prefix)
                continue
            if prefix and _is_ours(place, {entry.name for entry in found}):
                listing.leave_out(OURS, prefix)
                continue
            self.visited.add(real)
            for entry in found:
                name = prefix + entry.name
                if reason := _reason(entry.name):
                    self._count_pictures(name, reason)
                elif entry.is_symlink():
                    self.links.append(name)
                elif entry.is_dir():
                    waiting.append(f"{name}/")
                elif not entry.is_file():
                    listing.leave_out(SPECIAL, name)
                elif os.path.splitext(name)[1].lower() in _UNREAD:  # noqa: PTH122
                    listing.leave_out(UNREAD, name)
                else:
                    listing.names.append(name)

    def _count_pictures(self, name: str, reason: str) -> None:
        """Note the pictures of a file or folder that is left out; links in it are not followed."""
        place = self.listing.folder / name
        if place.is_symlink() or not place.is_dir():
            if place.suffix.lower() in ENDINGS:
                self.listing.leave_out(reason, name)
            return
        for folder, _, files in os.walk(place):
            below = folder.removeprefix(str(place))
            for file in sorted(files):
                if Path(file).suffix.lower() in ENDINGS:
                    self.listing.leave_out(reason, f"{name}{below}/{file}")


def _reason(name: str) -> str | None:
    """Why a file or folder of this name is not read."""
    if is_kept_by_programs(name):
        return HIDDEN
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            return NOT_UTF8
    return None


def _is_ours(folder: str, names: set[str]) -> bool:
    """Return True for a folder that counterfoil wrote, whose pictures are copies and figures."""
    for name, word in _OURS:
        file = Path(folder, name)
        if name in names and file.is_file():
            try:
                with file.open("rb") as content:
                    if word in content.read(1 << 20):
                        return True
            except OSError:
                continue
    return False


_NUMBERED = re.compile(r"(?<!\d)\d{5,6}$")  # no date


def mostly(path: Path, *endings: str, listing: FolderFiles | None = None) -> list[Path]:
    """The files with an ending: the path, or those of a folder; none where pictures are more.

    A folder of photos may hold a backup, and one of shards a preview. Shards that are numbered as
    programs do, ``train-00000.tar``, count whatever stands beside them.

    Args:
        path: file or folder.
        endings: in small letters, as ".tar".
        listing: of the folder, if it is known.
    """
    if not path.is_dir():
        return [path] if path.is_file() and path.name.lower().endswith(endings) else []
    listing = listing or list_files(path)
    found = [file for file in listing.files if file.name.lower().endswith(endings)]
    numbered = all(_NUMBERED.search(file.stem) for file in found)
    return found if numbered or len(found) >= len(listing.picture_names) else []


# Names of tables: Windows writes backslashes, macOS decomposed accents, cameras ".JPG".

_Parts = tuple[str, ...]


def plain_name(name: str) -> str:
    r"""A file's name in one spelling: composed accents, slashes, no ".", blanks or slash around.

    >>> plain_name(r".\pics\1.jpg")
    'pics/1.jpg'
    """
    parts = unicodedata.normalize("NFC", name).replace("\\", "/").split("/")
    return "/".join(part for part in map(str.strip, parts) if part not in ("", "."))


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
        self._folder, self._pictures = listing.folder, listing.picture_names

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[_Parts, Path]]]:
        """Pictures by the last part of their names, with the ending and without."""
        by_name: defaultdict[str, list[tuple[_Parts, Path]]] = defaultdict(list)
        for name, path in self._pictures.items():
            parts = _loose(name)
            stem = parts[-1].rpartition(".")[0]
            by_name[parts[-1]].append((parts, path))
            by_name[stem].append(((*parts[:-1], stem), path))
        return by_name

    def find(self, name: str) -> tuple[int, list[Path]]:
        """The pictures that a name may mean, several if it is not clear, and how far they stand.

        0 is where the name says, 1 a folder as ``images`` more or less, 2 another folder.
        """
        if name in self._pictures:
            return 0, [self._pictures[name]]
        if _is_file(path := self._folder / name):  # hidden, or outside of the folder
            return 0, [path]
        away, paths = self._similar(name)
        if not paths and "%" in name:  # as addresses write names
            return self._similar(unquote(name))
        return away, paths

    def _similar(self, name: str) -> tuple[int, list[Path]]:
        wanted = _loose(name)
        alike: defaultdict[tuple[int, bool, int], list[Path]] = defaultdict(list)
        for parts, path in self._by_name.get(wanted[-1], ()):
            common = min(len(parts), len(wanted))
            if parts[-common:] == wanted[-common:]:
                more = (*parts[:-common], *wanted[:-common])
                usual = all(part in PICTURE_FOLDERS for part in more)
                alike[common, usual, -len(more) if usual else 0].append(path)
        if not alike:
            return 0, []
        common, usual, away = best = max(alike)
        paths = alike[best]
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
    parents = {name: plain_name(name).rpartition("/")[0] for name in found}
    nearest: dict[str, int] = {}
    for name, (away, paths) in found.items():
        if paths:
            nearest[parents[name]] = min(away, nearest.get(parents[name], away))
    path_of, name_of = dict[str, Path](), dict[Path, str]()
    for name, (away, paths) in found.items():
        if not paths or away > nearest[parents[name]]:
            path_of[name] = listing.folder / name
            continue
        if len(paths) > 1:
            fits = " and ".join(str(path.relative_to(listing.folder)) for path in paths[:2])
            raise ValueError(
                f"{where}: {name!r} fits {fits}; write the folder into the name, or give the "
                "folder of the pictures"
            )
        path_of[name] = paths[0]
        other = name_of.setdefault(paths[0], name)
        if other != name and plain_name(other) != plain_name(name):
            raise ValueError(
                f"{where}: {other!r} and {name!r} both fit {printable(str(paths[0]))}; write the "
                "names of the files"
            )
    return [path_of[name] for name in names]
