"""The files of UNITER and of bottom-up attention: LMDB databases and detector tables.

UNITER (ChenRocks/UNITER) stores captions and regions in LMDB environments, folders with a
``data.mdb``:

    txt_db/itm_flickr30k_train.db/   WordPiece ids of each caption, and the image it describes
        txt2img.json                 image of each caption; meta.json names the tokenizer
    img_db/flickr30k/                regions of each image
        feat_th0.2_max100_min10/     the environment; "feat_numbb36" and "all" are others
        nbb_th0.2_max100_min10.json  number of regions of each image
    img_db/                          may be given for several, as COCO's coco_train2014/ and
                                     coco_val2014/

TAGS adds a scene graph, ``tree``, to each caption. Bottom-up attention writes a tab-separated table
of boxes and features instead.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, final
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch

from counterfoil.core.console import progress
from counterfoil.core.io import check_file, parse_json, parsing, read_json
from counterfoil.core.optional import optional_import
from counterfoil.data.dataset import DatasetEntry, ImageTextDataset, build_dataset
from counterfoil.data.features import Array, FeatureArray, FeatureFormat, FeatureTable
from counterfoil.data.readers.source import Format

KEYS = "__keys__"
CONFIDENCE, FEWEST, MOST = 0.2, 10, 100  # UNITER's rule for the number of regions
MOST_COUNTED = 10_000  # regions of an image; more are a damaged file
_RECORD = ("features", "norm_bb", "soft_labels", "conf")
RECORDS_AT_ONCE = 512  # decoded records that are kept
SPLITS = ("train", "restval", "val", "dev", "test")
TSV_FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
LXMERT_FIELDS = (  # of the derived tables that also hold the detector's classes
    *("image_id", "image_h", "image_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
    *("num_boxes", "boxes", "features"),
)


# LMDB environments.

_OPENED: WeakValueDictionary[str, Any] = WeakValueDictionary()


@final
class Environment:
    """A read-only LMDB environment."""

    def __init__(self, folder: Path) -> None:
        needs = f'{folder} is an LMDB database: pip install "counterfoil[uniter]"'
        lmdb = optional_import("lmdb", needs)
        self.folder, place = folder, str(folder.resolve())
        # LMDB refuses to open an environment that this process has open.
        self._opened: Any = _OPENED.get(place)
        if self._opened is None:
            try:
                check_file(folder / "data.mdb")
                self._opened = lmdb.open(place, readonly=True, lock=False, readahead=False)
                # a page beyond the end of a truncated file would end the process (SIGBUS)
                pages = self._opened.info()["last_pgno"] + 1
                if (folder / "data.mdb").stat().st_size < pages * self._opened.stat()["psize"]:
                    raise OSError("data.mdb is truncated")
            except (lmdb.Error, OSError) as error:
                raise ValueError(f"{folder} is not a whole LMDB database: {error}") from error
            _OPENED[place] = self._opened

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        import lmdb

        try:
            with self._opened.begin() as transaction:
                yield transaction
        except lmdb.Error as error:
            raise ValueError(f"{self.folder} is a damaged LMDB database: {error}") from error

    def read(self, key: str) -> bytes | None:
        """The bytes of a record; None if there is none."""
        with self._transaction() as transaction:
            value: bytes | None = transaction.get(key.encode())
        return value

    def keys(self) -> list[str]:
        """The keys of all records, without the list of keys itself."""
        if listed := self.read(KEYS):
            with parsing(self.folder, "a database with a list of its keys"):
                return [str(key) for key in parse_json(listed, KEYS)]
        with self._transaction() as transaction:
            names = [bytes(key).decode() for key in transaction.cursor().iternext(values=False)]
        return [name for name in names if name != KEYS]


def unpack_arrays(value: bytes) -> dict[str, Any]:
    """Decode msgpack with arrays as msgpack-numpy writes them; objects are refused."""
    import msgpack

    def array(plain: dict[Any, Any]) -> Any:
        if b"nd" not in plain:
            return plain
        kind, shape = plain[b"type"], tuple(plain.get(b"shape", ()))
        if plain.get(b"kind") == b"O" or not isinstance(kind, str):
            raise ValueError("an array of objects is refused")
        values = np.frombuffer(plain[b"data"], np.dtype(kind))
        return values.reshape(shape) if plain[b"nd"] else values[0]

    try:
        record = msgpack.unpackb(value, object_hook=array, strict_map_key=False)
    except Exception as error:  # msgpack raises many kinds for damaged bytes
        raise ValueError(f"a record cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"a record is a {type(record).__name__}, not a mapping")
    return record


# Images: regions with boxes and classes.


class RegionRecords(ABC):
    """Regions of images, read from disk as they are needed.

    Attributes:
        where: their file or folder.
        names: ids of the images, with or without ``.npz``.
        lengths: (N,) number of regions of each image.
    """

    where: Path
    names: list[str]
    lengths: npt.NDArray[np.int64]

    @abstractmethod
    def read(self, name: str) -> Mapping[str, Array]:
        """Arrays (R, F) of an image: "features", "norm_bb" and perhaps "soft_labels"."""

    @cached_property
    def record(self) -> Callable[[str], Mapping[str, Array]]:
        """`read` with a cache."""
        return lru_cache(RECORDS_AT_ONCE)(self.read)


def region_table(records: RegionRecords) -> FeatureTable:
    """The features of all images, with boxes and the detector's class probabilities, if known."""
    names, lengths, first = records.names, records.lengths, records.record(records.names[0])
    for name in ("features", "norm_bb"):
        if name not in first or first[name].ndim != 2:
            raise ValueError(f"{records.where}: {names[0]!r} has no {name} of its regions")
    columns = {
        name: RecordColumn(records, name, (len(names), int(lengths.max()), first[name].shape[1]))
        for name in ("features", "norm_bb", "soft_labels")
        if name in first
    }
    boxes = columns["norm_bb"]
    # widths and heights follow, rounded apart from the corners, as the authors read them
    boxes.shape = (*boxes.shape[:2], 6 if boxes.shape[2] >= 6 else 4)
    features = FeatureArray(
        values=columns["features"],
        rows=torch.arange(len(names)),
        lengths=lengths,
        boxes=boxes,
        where=str(records.where),
        classes=columns.get("soft_labels"),
    )
    return FeatureTable([name.removesuffix(".npz") for name in names], features)


@final
class RecordColumn:
    """One array of the records of all images, padded to the most regions an image has.

    Attributes:
        shape: (N, R, F).
    """

    ndim = 3

    def __init__(self, records: RegionRecords, name: str, shape: tuple[int, int, int]) -> None:
        self._records, self._name, self.shape = records, name, shape
        self.dtype = records.record(records.names[0])[name].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Array) -> Array:
        out = np.zeros((len(rows), *self.shape[1:]), self.dtype)
        for place, row in enumerate(np.asarray(rows).tolist()):
            name = self._records.names[row]
            values = self._records.record(name).get(self._name)
            if values is None or values.ndim != 2 or values.shape[1] < self.shape[2]:
                raise ValueError(
                    f"{self._records.where}: {self._name} of {name!r} do not have "
                    f"{self.shape[2]} numbers for each region"
                )
            count = int(self._records.lengths[row])
            if len(values) < count:
                raise ValueError(
                    f"{self._records.where}: {name!r} has {len(values)} regions, but {count} are "
                    "counted"
                )
            out[place, :count] = values[:count, : self.shape[2]]
        return out


@final
class ImageDatabase(RegionRecords):
    """UNITER's regions of images, read from disk as they are needed."""

    def __init__(self, folder: Path) -> None:
        self.environment = Environment(_environment(folder))
        self.where = self.environment.folder
        self.names = self.environment.keys()
        if not self.names:
            raise ValueError(f"{folder} holds no image")
        self.lengths = self._counted()

    def _counted(self) -> npt.NDArray[np.int64]:
        folder = self.where
        kind = folder.name.removesuffix("_compressed")
        if fixed := re.fullmatch(r"feat_numbb(\d+)", kind):
            return np.full(len(self.names), int(fixed[1]), np.int64)
        counts = folder.parent / f"nbb_{kind.removeprefix('feat_')}.json"
        if counts.exists():
            numbers = read_json(counts, "the numbers of regions")
            known = numbers if isinstance(numbers, dict) else {}
            for name in self.names:
                if type(known.get(name)) is not int or not 0 <= known[name] <= MOST_COUNTED:
                    raise ValueError(f"{counts} has no number of regions of {name!r}")
            return np.array([known[name] for name in self.names], np.int64)
        with progress("images counted", len(self.names)) as advance:
            counted = []
            for name in self.names:
                record = self.record(name)
                if "conf" not in record:
                    raise ValueError(f"{self.where}: {name!r} has no conf of its regions")
                confident = int((record["conf"].ravel() > CONFIDENCE).sum())
                counted.append(min(MOST, max(FEWEST, confident), len(record["features"])))
                advance(1)
        return np.array(counted, np.int64)

    def read(self, name: str) -> Mapping[str, Array]:
        value = self.environment.read(name)
        if value is None:
            raise ValueError(f"{self.where} has no regions of {name!r}")
        try:
            if value.startswith(b"PK"):
                with np.load(io.BytesIO(value), allow_pickle=False) as archive:
                    record = {key: archive[key] for key in _RECORD if key in archive.files}
            else:
                record = unpack_arrays(value)
        except Exception as error:  # numpy and zipfile raise a dozen kinds for damaged bytes
            raise ValueError(f"{self.where}: regions of {name!r}: {error}") from error
        arrays = {key: record[key] for key in _RECORD if isinstance(record.get(key), np.ndarray)}
        if any(array.dtype.kind != "f" for array in arrays.values()) or "features" not in arrays:
            raise ValueError(f"{self.where}: regions of {name!r} are no arrays of floats")
        return arrays


@final
class JoinedRecords(RegionRecords):
    """The regions of several databases as one; of images that stand twice, the first is taken."""

    def __init__(self, where: Path, parts: Sequence[RegionRecords]) -> None:
        self.where = where
        counts: dict[str, int] = {}
        self._parts: dict[str, RegionRecords] = {}
        for part in parts:
            for name, count in zip(part.names, part.lengths.tolist(), strict=True):
                if name not in counts:
                    counts[name], self._parts[name] = count, part
        self.names, self.lengths = list(counts), np.array([*counts.values()], np.int64)

    def read(self, name: str) -> Mapping[str, Array]:
        return self._parts[name].read(name)


def open_image_database(folder: Path) -> RegionRecords:
    """Open an ``img_db`` of UNITER, one of its environments, or a folder of several ``img_db``."""
    if (folder / "data.mdb").exists() or _environments(folder):
        return ImageDatabase(folder)
    return JoinedRecords(folder, [ImageDatabase(part) for part in _databases(folder)])


def is_image_database(folder: Path) -> bool:
    """Return True if a folder is something that `open_image_database` opens."""
    if (folder / "txt2img.json").exists() or not folder.is_dir():
        return False
    return (folder / "data.mdb").exists() or bool(_environments(folder) or _databases(folder))


def _databases(folder: Path) -> list[Path]:
    """Folders in a folder that hold environments."""
    inside = {path.parents[1] for path in folder.glob("*/*/data.mdb")}
    return sorted(path for path in inside if _environments(path))


def _environments(folder: Path) -> list[Path]:
    folders = (path.parent for path in folder.glob("*/data.mdb"))
    return sorted(path for path in folders if path.name.startswith(("feat_", "all")))


def _environment(folder: Path) -> Path:
    if (folder / "data.mdb").exists():
        return folder
    folders = _environments(folder)
    usual = [path for path in folders if path.name.startswith("feat_th")] or folders
    if len(usual) != 1:
        names = ", ".join(path.name for path in folders) or "none"
        raise ValueError(f"{folder} holds the environments {names}; give the path of one of them")
    return usual[0]


# Captions.


@final
@dataclass(frozen=True, slots=True)
class StoredCaption:
    """A caption as UNITER stores it."""

    id: str
    image: str  # key in the ``img_db``
    pieces: tuple[str, ...]  # WordPiece tokens
    tree: Sequence[tuple[str, Sequence[int]]] | None  # of TAGS: kind and tokens of each phrase

    def text(self) -> str:
        """The caption, its words separated by spaces."""
        return "".join(self._parts()).strip()

    def spans(self, positions: Sequence[int]) -> list[list[int]]:
        """Characters [start, stop] in `text` of some tokens; adjacent tokens make one span."""
        ends, length = [], -1  # the first word has no space before it
        for part in self._parts():
            ends.append((length + len(part) - len(part.lstrip()), length + len(part)))
            length += len(part)
        spans: list[list[int]] = []
        for position in sorted(set(positions)):
            start, stop = ends[position]
            if spans and start <= spans[-1][1] + 1 and position - 1 in positions:
                spans[-1][1] = stop
            else:
                spans.append([start, stop])
        return spans

    def _parts(self) -> Iterator[str]:
        for piece in self.pieces:
            yield piece.removeprefix("##") if piece.startswith("##") else f" {piece}"


def is_text_database(folder: Path) -> bool:
    """Return True if a folder is a ``txt_db`` of UNITER, or holds some."""
    return bool(_text_databases(folder))


def read_text_database(folder: Path, *, name: str | None = None) -> ImageTextDataset:
    """Read UNITER's captions as a data set; words are separated by spaces.

    The folder is a ``.db`` folder with a split in its name, as in ``itm_flickr30k_train.db``, or
    holds several, which are read as one data set.
    """
    entries: dict[str, DatasetEntry] = {}
    for database in _text_databases(folder):
        split = next((part for part in SPLITS if part in re.split(r"[_.]", database.name)), "")
        for caption in read_stored_captions(database):
            image = caption.image.removesuffix(".npz")
            known = entries.get(image) or DatasetEntry(image, split, ())
            texts, ids = (*known.texts, caption.text()), (*known.text_ids, caption.id)
            entries[image] = replace(known, texts=texts, text_ids=ids)
    return build_dataset(name or folder.resolve().name, list(entries.values()), where=str(folder))


def read_stored_captions(folder: Path) -> Iterator[StoredCaption]:
    """Yield the captions of a ``.db`` folder, whose meta.json names the tokenizer.

    That is read from a folder of its name beside the captions or in their folder, where there is
    one.

    Raises:
        ValueError: a file is damaged, or there is no such tokenizer.
    """
    from counterfoil.data.tokenizers import WordPieceTokenizer

    needs = f'{folder} is compressed: pip install "counterfoil[uniter]"'
    frame = optional_import("lz4.frame", needs)
    images = read_json(folder / "txt2img.json", "the image of each caption")
    if not isinstance(images, dict):
        raise ValueError(f"{folder / 'txt2img.json'} needs the image of each caption id")
    meta = read_json(folder / "meta.json", "the name of the tokenizer")
    with parsing(folder / "meta.json", "the name of the tokenizer"):
        tokenizer = str(meta.get("tokenizer") or meta.get("toker") or "bert-base-cased")
    beside = [place / Path(tokenizer).name for place in (folder, folder.parent)]
    given = next((path for path in beside if path.is_dir()), tokenizer)
    try:
        pieces = WordPieceTokenizer(str(given)).pretrained
    except ValueError as error:
        raise ValueError(
            f"{folder} holds word ids of the tokenizer {tokenizer!r}, which is not at hand "
            f"({error}); put its folder there as {beside[1]}"
        ) from error
    environment = Environment(folder)
    for name, image in images.items():
        value = environment.read(name)
        try:
            if value is None:
                raise ValueError("it has no record")
            record = unpack_arrays(frame.decompress(value))
            ids = [int(number) for number in record["input_ids"]]
            tree = _tree(record["tree"], len(ids)) if record.get("tree") else None
            tokens = tuple(pieces.convert_ids_to_tokens(ids))
            if not all(isinstance(token, str) for token in tokens):
                raise ValueError("it holds ids that the tokenizer does not have")
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{folder}: caption {name!r} cannot be read: {error}") from error
        except OverflowError:
            raise ValueError(f"{folder}: caption {name!r} holds ids without end") from None
        yield StoredCaption(str(name), str(record.get("img_fname", image)), tokens, tree)


def read_tree_phrases(folder: Path) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Captions with scene graphs of TAGS by id: their text and the phrases of the graph."""
    graphs = {}
    for database in _text_databases(folder):
        for caption in read_stored_captions(database):
            if caption.tree is not None:
                phrases = [{"kind": k, "spans": caption.spans(group)} for k, group in caption.tree]
                graphs[caption.id] = caption.text(), phrases
    if not graphs:
        raise ValueError(f"{folder} has no captions with a tree, as TAGS' own txt_db has")
    return graphs


def _text_databases(folder: Path) -> list[Path]:
    if (folder / "txt2img.json").exists():
        return [folder] if (folder / "data.mdb").exists() else []
    return sorted(path.parent for path in folder.glob("*/txt2img.json"))


def _tree(plain: Any, length: int) -> list[tuple[str, list[int]]]:
    """Kind and tokens of each phrase; those without tokens are left out."""
    tree: list[tuple[str, list[int]]] = []
    for name, kind in (("node", "object"), ("attribute", "attribute"), ("relation", "relation")):
        groups = (element.get("ids") for element in plain.get(name, []))
        tree += [(kind, [int(place) for place in group]) for group in groups if group]
        if any(not 0 <= place < length for _, group in tree for place in group):
            raise ValueError(f"a {name} names a token that the caption does not have")
    return tree


# Bottom-up attention: tables of boxes and features.

_TABLE = re.compile(r".*\.tsv(\.\d+)?")  # the authors wrote a part for each GPU: .tsv.0, .tsv.1


@final
class DetectorTable(RegionRecords):
    """Regions in the tables of bottom-up attention, found by their place in the file.

    Opening reads the files once for the places and numbers of boxes, so convert a table that is
    used more than once. Of images that stand twice, as in the files of COCO, the first is taken.
    """

    def __init__(self, path: Path) -> None:
        self.where, self._width = path, 0
        self._places: dict[str, tuple[Path, int]] = {}
        counts: list[int] = []
        files = _tables(path)
        with progress(
            "megabytes read", sum(file.stat().st_size for file in files) >> 20
        ) as advance:
            for file in files:
                for place, line in _lines(file, advance):
                    if line.image not in self._places:
                        self._places[line.image] = file, place
                        counts.append(line.count)
                    if line.count and not self._width:
                        self._width = len(line.decoded("features")) // line.count
        if not self._width:
            raise ValueError(f"{path} holds no image with boxes")
        self.names, self.lengths = list(self._places), np.array(counts, np.int64)

    def read(self, name: str) -> Mapping[str, Array]:
        file, place = self._places[name]
        with file.open("rb") as lines:
            lines.seek(place)
            line = _Line(lines.readline(), file, name)
        count, numbers, corners = line.count, line.decoded("features"), line.decoded("boxes")
        if len(numbers) != count * self._width or len(corners) != count * 4:
            raise ValueError(
                f"{file}: image {name!r} has {len(numbers):,} feature values and "
                f"{len(corners)} box values for {count} boxes of {self._width}"
            )
        try:
            size = [float(line.fields[side]) for side in ("image_w", "image_h")]
        except ValueError as error:
            raise ValueError(f"{file}: the size of image {name!r}: {error}") from None
        boxes = corners.reshape(count, 4) / np.array(size * 2, np.float32)  # fractions of the image
        return {"features": numbers.reshape(count, self._width), "norm_bb": boxes}


def is_detector_table(path: Path) -> bool:
    """Return True if a path is a table of bottom-up attention, or a folder of them."""
    files = _tables(path)
    if not files:
        return False
    with files[0].open("rb") as lines:
        fields = lines.readline().rstrip(b"\n").split(b"\t")
    # A list of captions has a header, and fewer columns.
    return _names(fields) is not None and fields[-3].isdigit()


def _tables(path: Path) -> list[Path]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in files if _TABLE.fullmatch(file.name) and file.is_file()]


def _lines(file: Path, advance: Callable[[int], None]) -> Iterator[tuple[int, _Line]]:
    """The lines of a table, and the byte at which each begins."""
    place = 0
    with file.open("rb") as lines:
        for number, text in enumerate(lines, 1):
            yield place, _Line(text, file, f"line {number}")
            advance((place + len(text) >> 20) - (place >> 20))
            place += len(text)


@final
class _Line:
    """A line of a table: an image with its boxes."""

    def __init__(self, text: bytes, file: Path, where: str) -> None:
        parts = text.rstrip(b"\n").split(b"\t")
        names = _names(parts)
        if names is None:
            fields = ", ".join(TSV_FIELDS)
            raise ValueError(f"{file}, {where}: {len(parts)} fields; {fields} are read")
        self.file, self.fields = file, dict(zip(names, parts, strict=True))
        self.image = self.fields["image_id"].decode(errors="replace")
        if not self.fields["num_boxes"].isdigit():
            raise ValueError(f"{file}: the number of boxes of image {self.image!r} is no number")
        self.count = int(self.fields["num_boxes"])
        if self.count > MOST_COUNTED:  # before memory for all of them is allocated
            raise ValueError(
                f"{file}: image {self.image!r} names {self.count:,} boxes; {MOST_COUNTED:,} are "
                "read"
            )

    def decoded(self, name: str) -> npt.NDArray[np.float32]:
        """The numbers of a field in base64."""
        try:
            return np.frombuffer(base64.b64decode(self.fields[name], validate=True), np.float32)
        except (binascii.Error, ValueError) as error:
            raise ValueError(
                f"{self.file}: {name} of {self.fields['image_id']!r} are damaged: {error}"
            ) from error


def _names(parts: Sequence[bytes]) -> tuple[str, ...] | None:
    return next((names for names in (TSV_FIELDS, LXMERT_FIELDS) if len(names) == len(parts)), None)


# regions of UNITER's ``img_db``, and of a table of bottom-up attention
DATABASE = FeatureFormat(is_image_database, lambda path: region_table(open_image_database(path)))
DETECTIONS = FeatureFormat(is_detector_table, lambda path: region_table(DetectorTable(path)))


FORMAT = Format(
    "a txt_db of UNITER",
    lambda source: is_text_database(source.path),
    lambda source: read_text_database(source.path, name=source.name),
    named_pictures=True,
    phrases=read_tree_phrases,
)
