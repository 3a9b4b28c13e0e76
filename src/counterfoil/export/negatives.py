"""Files with one record a line."""

from __future__ import annotations

import csv
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final
from urllib.parse import quote

import numpy as np
from torch import Tensor

from counterfoil.core.artifact import MANIFEST
from counterfoil.core.config import parse_choice
from counterfoil.core.console import progress
from counterfoil.core.io import atomic_folder, ensure_absent, ensure_writable_folder, read_json
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import PictureFiles
from counterfoil.negatives.generation.store import GeneratedCaption, GeneratedStore
from counterfoil.negatives.store import NegativeStore

Record = Mapping[str, object]


def write_jsonl_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines as they come; how many there were."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    return count


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write JSON, one record a line; how many there were."""
    return write_jsonl_lines(path, (json.dumps(record, ensure_ascii=False) for record in records))


# Where other tools find the picture of an image.


DRAWN = "pictures"


@final
class PictureLocations:
    """Paths of the pictures of a data set.

    Files are named where they lie; pictures that are none are drawn into the exported folder when
    they are first asked for; where there are no pictures, the data set's own name stands for one.

    Args:
        dataset: whose pictures.
        made: the folder while it is being made.
        named: the folder as it will be called.
    """

    def __init__(self, dataset: ImageTextDataset, made: Path, named: Path) -> None:
        self._corpus, self._made, self._named = dataset, made / DRAWN, named.absolute() / DRAWN
        self._known: dict[int, str] = {}

    def __call__(self, row: int) -> str:
        """What stands for the image of this row."""
        if row not in self._known:
            self._known[row] = self._found(row)
        return self._known[row]

    def _found(self, row: int) -> str:
        pictures = self._corpus.pictures
        if pictures is None:
            return self._corpus.image_ids[row]
        if isinstance(pictures, PictureFiles):
            return str(Path(pictures.place(row)).absolute())
        name = f"{row:06d}.png"
        self._made.mkdir(exist_ok=True)
        pictures.open(row).save(self._made / name)
        return str(self._named / name)


# What is exported: queries, each with what is true of it and what is hard to tell from that.


Direction = Literal["image-to-text", "text-to-image"]
TO_TEXT: Direction = "image-to-text"
TO_IMAGE: Direction = "text-to-image"


@final
@dataclass(frozen=True, slots=True)
class ExportItem:
    """An image or a caption.

    Attributes:
        id: the data set's name of it.
        value: the caption, or the path of the picture; the name where there is neither.
    """

    id: str
    value: str


@final
@dataclass(frozen=True, slots=True)
class ExportGroup:
    """A query and its counterparts.

    Attributes:
        query: what is asked.
        positives: what is true of it; at least one.
        negatives: what is not, hardest first.
        scores: of the negatives; () where none are known.
    """

    query: ExportItem
    positives: tuple[ExportItem, ...]
    negatives: tuple[ExportItem, ...]
    scores: tuple[float, ...] = ()


class ExportedNegatives(ABC):
    """Queries of one or both directions.

    Attributes:
        directions: those there are.
        about: where they come from, in one sentence.
    """

    directions: tuple[Direction, ...]
    about: str

    @abstractmethod
    def groups(self, direction: Direction) -> Iterator[ExportGroup]:
        """Every query that something is true of, in data set order."""

    @abstractmethod
    def documents(self, direction: Direction) -> Iterator[ExportItem]:
        """Everything that may answer a query."""

    @abstractmethod
    def count(self, direction: Direction) -> int:
        """How many queries there are at most."""

    @abstractmethod
    def longest(self, direction: Direction) -> int:
        """How many negatives a query has at most."""


@final
class MinedGroups(ExportedNegatives):
    """Mined lists, both ways.

    Args:
        dataset: what they were mined from.
        store: the lists.
        place: where the picture of an image's row is.
        most: negatives of a query, at most.
    """

    directions = (TO_TEXT, TO_IMAGE)

    def __init__(
        self,
        dataset: ImageTextDataset,
        store: NegativeStore,
        place: Callable[[int], str],
        most: int,
    ) -> None:
        self._corpus, self._lists, self._place, self._most = dataset, store.lists, place, most
        models = " and ".join(source.matcher for source in store.manifest.sources)
        self.about = (
            f"Hard negatives of {dataset.name} ({store.manifest.split}), mined by counterfoil "
            f"{store.manifest.version} with {models or 'an unknown model'}."
        )

    def groups(self, direction: Direction) -> Iterator[ExportGroup]:
        to_text = direction == TO_TEXT
        true = self._true()
        lists, scores = (
            (self._lists.texts, self._lists.text_scores)
            if to_text
            else (self._lists.images, self._lists.image_scores)
        )
        for row, counterparts in enumerate(true if to_text else self._turned(true)):
            if not counterparts:
                continue
            known = () if scores is None else scores[row].tolist()
            yield self._group(row, counterparts, lists[row], known, to_text=to_text)

    def documents(self, direction: Direction) -> Iterator[ExportItem]:
        to_text = direction == TO_TEXT
        rows = len(self._corpus.texts) if to_text else len(self._corpus)
        return map(self._text if to_text else self._image, range(rows))

    def count(self, direction: Direction) -> int:
        return len(self._corpus) if direction == TO_TEXT else len(self._corpus.texts)

    def longest(self, direction: Direction) -> int:
        lists = self._lists.texts if direction == TO_TEXT else self._lists.images
        return min(self._most, int((lists >= 0).sum(1).max())) if len(lists) else 0

    def _group(
        self,
        row: int,
        true: list[int],
        listed: Tensor,
        scores: tuple[float, ...] | list[float],
        *,
        to_text: bool,
    ) -> ExportGroup:
        asks, answers = (self._image, self._text) if to_text else (self._text, self._image)
        hard = [found for found in listed.tolist() if found >= 0][: self._most]
        return ExportGroup(
            asks(row),
            tuple(map(answers, true)),
            tuple(map(answers, hard)),
            tuple(scores[: len(hard)]),
        )

    def _true(self) -> list[list[int]]:
        """Texts of every image: its captions, then what somebody found true besides."""
        true: list[list[int]] = [[] for _ in range(len(self._corpus))]
        for text, image in enumerate(self._corpus.text_to_image.tolist()):
            if image >= 0:
                true[image].append(text)
        if self._corpus.extra_positives is not None:
            also = self._corpus.extra_positives
            for image, text in zip(also.image.tolist(), also.text.tolist(), strict=True):
                if text not in true[image]:
                    true[image].append(text)
        return true

    def _turned(self, true: list[list[int]]) -> list[list[int]]:
        """Images of every text, its own first."""
        turned: list[list[int]] = [[] for _ in range(len(self._corpus.texts))]
        text_to_image = self._corpus.text_to_image.tolist()
        for image, texts in enumerate(true):
            for text in texts:
                place = 0 if text_to_image[text] == image else len(turned[text])
                turned[text].insert(place, image)
        return turned

    def _image(self, row: int) -> ExportItem:
        return ExportItem(self._corpus.image_ids[row], self._place(row))

    def _text(self, row: int) -> ExportItem:
        name = self._corpus.text_ids[row]
        return ExportItem(name, self._corpus.texts[row] or name)


@final
class GeneratedGroups(ExportedNegatives):
    """Written captions: what is asked is an image with one of its captions, by that caption's name.

    Args:
        dataset: what they were written for.
        store: the captions.
        place: where the picture of an image's row is.
        most: negatives of a query, at most.

    Raises:
        ValueError: the store is damaged.
    """

    directions = (TO_TEXT,)

    def __init__(
        self,
        dataset: ImageTextDataset,
        store: GeneratedStore,
        place: Callable[[int], str],
        most: int,
    ) -> None:
        self._rows = {name: row for row, name in enumerate(dataset.image_ids)}
        self._place, self._most = place, most
        self._foils: dict[str, list[GeneratedCaption]] = {}
        for foil in store.foils():
            if foil.image not in self._rows:
                raise ValueError(
                    f"{store.folder} has captions of {foil.image!r}, which is no image of "
                    f"{dataset.name}; write again"
                )
            self._foils.setdefault(foil.text, []).append(foil)
        self.about = (
            f"False captions of {dataset.name} ({store.manifest.split}), written by counterfoil "
            f"{store.manifest.version}: {store.manifest.writer}."
        )

    def groups(self, direction: Direction) -> Iterator[ExportGroup]:
        for text, foils in self._foils.items():
            first = foils[0]
            yield ExportGroup(
                ExportItem(text, self._place(self._rows[first.image])),
                (ExportItem(text, first.caption),),
                tuple(self._hard(text, foils)),
            )

    def documents(self, direction: Direction) -> Iterator[ExportItem]:
        for text, foils in self._foils.items():
            yield ExportItem(text, foils[0].caption)
            yield from self._hard(text, foils)

    def count(self, direction: Direction) -> int:
        return len(self._foils)

    def longest(self, direction: Direction) -> int:
        return min(self._most, max(map(len, self._foils.values()), default=0))

    def _hard(self, text: str, foils: list[GeneratedCaption]) -> Iterator[ExportItem]:
        for number, foil in enumerate(foils[: self._most], 1):
            yield ExportItem(f"{text}#{number}", foil.foil)


# Negatives in the files that other trainers read.


TAG = "counterfoil"
TABLE = "train.tsv"


def write_sentence_transformers(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """``DIRECTION.jsonl`` with the columns anchor, positive, negative_1, …, negative_n.

    A query has a row for each of its positives; n is the longest list, and queries with fewer are
    left out, as losses need every column.

    Returns:
        What was written, a line for each file.

    Raises:
        ValueError: no query has a negative.
    """
    said = []
    for direction in negatives.directions:
        wanted, short = negatives.longest(direction), [0]
        if not wanted:
            raise ValueError(f"there are no negatives to export from {direction.split('-')[0]}s")
        rows = _columns(_shown(negatives, direction), wanted, short)
        count = write_records(folder / f"{direction}.jsonl", rows)
        said.append(f"{direction}.jsonl: {count:,} rows, {_of(wanted, 'negative')} each")
        if short[0]:
            said.append(
                f"{short[0]:,} of {direction} have fewer than {wanted} negatives and are left out; "
                "a lower --most keeps them"
            )
    return said


def write_flag_embedding(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """``DIRECTION.jsonl`` with query, pos, neg and, where they are known, neg_scores."""
    return _each(negatives, folder, _flag_embedding)


def write_tevatron(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """``DIRECTION.jsonl`` and ``DIRECTION-corpus.jsonl`` in Tevatron's form for several media.

    Its older form, with passages inside the queries, has no place for a picture.
    """
    said = _each(negatives, folder, _tevatron)
    for direction in negatives.directions:
        images = direction == TO_IMAGE
        path = folder / f"{direction}-corpus.jsonl"
        documents = (_document(item, image=images) for item in negatives.documents(direction))
        said.append(f"{path.name}: {write_records(path, documents):,} documents")
    return said


def write_open_clip(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """``train.tsv`` with filepath and title, as open_clip reads, and NegCLIP's two more columns.

    ``neg_caption`` is a list of captions, ``neg_image`` a list of rows of this table; without mined
    images there is no second one.
    """
    both = TO_IMAGE in negatives.directions
    rows = _pairs(negatives) if both else _captions(negatives)
    columns = ["filepath", "title", "neg_caption", *(["neg_image"] if both else [])]
    with (folder / TABLE).open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(columns)
        count = 0
        for row in rows:
            table.writerow(row)
            count += 1
    return [f"{TABLE}: {count:,} pairs; {', '.join(columns)}"]


def write_trec(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """``DIRECTION.run`` of the negatives and ``DIRECTION.qrels`` of what is true.

    Blanks in names are written as %20. Where no scores are known, a rank stands for one. Readers go
    by scores and order equal ones by name, so that a score which does not fall from rank to rank,
    as kept in 16 bits some do not, is written as the next lower number of 32 bits.
    """
    said = []
    for direction in negatives.directions:
        lines = (line for group in _shown(negatives, direction) for line in _run(group))
        count = write_jsonl_lines(folder / f"{direction}.run", lines)
        true = (line for group in negatives.groups(direction) for line in _qrels(group))
        said.append(f"{direction}.run: {count:,} negatives")
        said.append(
            f"{direction}.qrels: {write_jsonl_lines(folder / f'{direction}.qrels', true):,} true"
        )
    return said


FORMATS: dict[str, Callable[[ExportedNegatives, Path], list[str]]] = {
    "sentence-transformers": write_sentence_transformers,
    "flagembedding": write_flag_embedding,
    "tevatron": write_tevatron,
    "open-clip": write_open_clip,
    "trec": write_trec,
}


def _each(
    negatives: ExportedNegatives, folder: Path, form: Callable[[ExportGroup, Direction], Record]
) -> list[str]:
    said = []
    for direction in negatives.directions:
        records = (form(group, direction) for group in _shown(negatives, direction))
        count = write_records(folder / f"{direction}.jsonl", records)
        said.append(f"{direction}.jsonl: {_of(count, 'query', 'queries')}")
    return said


def _shown(negatives: ExportedNegatives, direction: Direction) -> Iterator[ExportGroup]:
    """The queries that have negatives, counted on the terminal."""
    with progress(f"{direction} written", negatives.count(direction)) as done:
        for group in negatives.groups(direction):
            done(1)
            if group.negatives:
                yield group


def _columns(groups: Iterator[ExportGroup], wanted: int, short: list[int]) -> Iterator[Record]:
    for group in groups:
        if len(group.negatives) < wanted:
            short[0] += 1
            continue
        hard = {f"negative_{n}": item.value for n, item in enumerate(group.negatives, 1)}
        for positive in group.positives:
            yield {"anchor": group.query.value, "positive": positive.value, **hard}


def _flag_embedding(group: ExportGroup, direction: Direction) -> Record:
    return {
        "query": group.query.value,
        "pos": [item.value for item in group.positives],
        "neg": [item.value for item in group.negatives],
        **({"neg_scores": list(group.scores)} if group.scores else {}),
    }


def _tevatron(group: ExportGroup, direction: Direction) -> Record:
    image = direction == TO_TEXT
    return {
        "query_id": group.query.id,
        "query_text": None if image else group.query.value,
        "query_image": group.query.value if image else None,
        "positive_document_ids": [item.id for item in group.positives],
        "negative_document_ids": [item.id for item in group.negatives],
    }


def _document(item: ExportItem, *, image: bool) -> Record:
    return {
        "docid": item.id,
        "text": None if image else item.value,
        "image": item.value if image else None,
    }


def _pairs(negatives: ExportedNegatives) -> Iterator[list[object]]:
    """A row for every caption of an image, with hard ones of that image and hard images of it."""
    captions = {
        group.query.id: [item.value for item in group.negatives]
        for group in negatives.groups(TO_TEXT)
    }
    first: dict[str, int] = {}
    for row, group in enumerate(negatives.groups(TO_IMAGE)):
        first.setdefault(group.positives[0].id, row)
    for group in _all(negatives, TO_IMAGE):
        image = group.positives[0]
        rows = [first[item.id] for item in group.negatives if item.id in first]
        yield [image.value, _plain(group.query.value), captions.get(image.id, []), rows]


def _captions(negatives: ExportedNegatives) -> Iterator[list[object]]:
    for group in _all(negatives, TO_TEXT):
        hard = [item.value for item in group.negatives]
        yield [group.query.value, _plain(group.positives[0].value), hard]


def _all(negatives: ExportedNegatives, direction: Direction) -> Iterator[ExportGroup]:
    with progress("pairs written", negatives.count(direction)) as done:
        for group in negatives.groups(direction):
            done(1)
            yield group


def _plain(caption: str) -> str:
    """A caption on one line."""
    return " ".join(caption.split())


def _run(group: ExportGroup) -> Iterator[str]:
    query = _name(group.query)
    scores = _falling(group.scores or range(-1, -len(group.negatives) - 1, -1))
    for rank, (item, score) in enumerate(zip(group.negatives, scores, strict=True), 1):
        yield f"{query} Q0 {_name(item)} {rank} {score:.9g} {TAG}"


def _falling(scores: Iterable[float]) -> Iterator[np.float32]:
    """The same, each below the one before."""
    above = np.float32(np.inf)
    for score in scores:
        above = min(np.float32(score), np.nextafter(above, np.float32(-np.inf)))
        yield above


def _qrels(group: ExportGroup) -> Iterator[str]:
    for item in group.positives:
        yield f"{_name(group.query)} 0 {_name(item)} 1"


def _name(item: ExportItem) -> str:
    """Fields of these files are separated by blanks."""
    return re.sub(r"[\s%]", lambda found: quote(found.group()), item.id)


def _of(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# Negatives out of their store into a folder of another tool.


Kind = Literal["mined", "written"]
Place = Callable[[int], str]


def kind_of(store: Path) -> Kind | None:
    """What kind of negatives lie in a folder; None for none.

    Raises:
        ValueError: there is a manifest, and it cannot be read.
    """
    if not (store / MANIFEST).is_file():
        return None
    plain = read_json(store / MANIFEST, "a manifest")
    known = plain if isinstance(plain, dict) else {}
    if "texts_per_image" in known:
        return "mined"
    return "written" if "writer" in known else None


def check_negatives_export(store: Path, to: str, folder: Path) -> None:
    """Refuse what cannot be exported, before the data are read.

    Raises:
        ValueError: no such format, something is there, or there are no negatives.
    """
    if kind_of(store) is None:
        raise ValueError(
            f"{store} holds no negatives; give what `counterfoil mine` or `counterfoil write` made"
        )
    parse_choice(FORMATS, to, "a form of negatives")
    ensure_absent(folder)
    ensure_writable_folder(folder)


def export_negatives(
    store: Path, to: str, folder: Path, dataset: ImageTextDataset, *, most: int
) -> list[str]:
    """Write negatives as another tool reads them, whole or not at all.

    Args:
        store: of mined or written negatives.
        to: whose files, see `FORMATS`.
        folder: where they go; must not exist yet.
        dataset: the split that they were made for.
        most: negatives of a query, at most.

    Returns:
        What was written, in words.

    Raises:
        ValueError: no such format, something is there, or no negatives of these data.
    """
    check_negatives_export(store, to, folder)
    opened = _opened(store, dataset)
    with atomic_folder(folder) as temporary:
        named = to == "trec"  # by the data set, where pictures would be drawn for nothing
        place = (
            dataset.image_ids.__getitem__ if named else PictureLocations(dataset, temporary, folder)
        )
        negatives = opened(place, most)
        said = FORMATS[to](negatives, temporary)
        (temporary / "README.md").write_text(_card(negatives, temporary), encoding="utf-8")
    if dataset.pictures is None and not named:
        said.append(f"{dataset.name} has no pictures; images are given by their names")
    return said


def _opened(store: Path, dataset: ImageTextDataset) -> Callable[[Place, int], ExportedNegatives]:
    if kind_of(store) == "written":
        written = GeneratedStore.open(store, fingerprint=dataset.fingerprint)
        return lambda places, most: GeneratedGroups(dataset, written, places, most)
    mined = NegativeStore.open(store, fingerprint=dataset.fingerprint)
    return lambda places, most: MinedGroups(dataset, mined, places, most)


def _card(negatives: ExportedNegatives, folder: Path) -> str:
    """What the folder holds, in the form that `datasets.load_dataset` reads."""
    files = sorted(path.name for path in folder.glob("*.jsonl"))
    configs = "".join(
        f"- config_name: {name.removesuffix('.jsonl')}\n  data_files: {name}\n" for name in files
    )
    head = f"---\nconfigs:\n{configs}---\n\n" if files else ""
    return f"{head}{negatives.about}\n"
