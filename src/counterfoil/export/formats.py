"""Negatives in the files that other trainers read."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np

from counterfoil.core.console import progress
from counterfoil.export.groups import TO_IMAGE, TO_TEXT, Direction, Group, Item, Negatives
from counterfoil.export.lines import Record, write_lines, write_records

TAG = "counterfoil"
TABLE = "train.tsv"


def write_sentence_transformers(negatives: Negatives, folder: Path) -> list[str]:
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


def write_flag_embedding(negatives: Negatives, folder: Path) -> list[str]:
    """``DIRECTION.jsonl`` with query, pos, neg and, where they are known, neg_scores."""
    return _each(negatives, folder, _flag_embedding)


def write_tevatron(negatives: Negatives, folder: Path) -> list[str]:
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


def write_open_clip(negatives: Negatives, folder: Path) -> list[str]:
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


def write_trec(negatives: Negatives, folder: Path) -> list[str]:
    """``DIRECTION.run`` of the negatives and ``DIRECTION.qrels`` of what is true.

    Blanks in names are written as %20. Where no scores are known, a rank stands for one. Readers go
    by scores and order equal ones by name, so that a score which does not fall from rank to rank,
    as kept in 16 bits some do not, is written as the next lower number of 32 bits.
    """
    said = []
    for direction in negatives.directions:
        lines = (line for group in _shown(negatives, direction) for line in _run(group))
        count = write_lines(folder / f"{direction}.run", lines)
        true = (line for group in negatives.groups(direction) for line in _qrels(group))
        said.append(f"{direction}.run: {count:,} negatives")
        said.append(f"{direction}.qrels: {write_lines(folder / f'{direction}.qrels', true):,} true")
    return said


FORMATS: dict[str, Callable[[Negatives, Path], list[str]]] = {
    "sentence-transformers": write_sentence_transformers,
    "flagembedding": write_flag_embedding,
    "tevatron": write_tevatron,
    "open-clip": write_open_clip,
    "trec": write_trec,
}


def _each(
    negatives: Negatives, folder: Path, form: Callable[[Group, Direction], Record]
) -> list[str]:
    said = []
    for direction in negatives.directions:
        records = (form(group, direction) for group in _shown(negatives, direction))
        count = write_records(folder / f"{direction}.jsonl", records)
        said.append(f"{direction}.jsonl: {_of(count, 'query', 'queries')}")
    return said


def _shown(negatives: Negatives, direction: Direction) -> Iterator[Group]:
    """The queries that have negatives, counted on the terminal."""
    with progress(f"{direction} written", negatives.count(direction)) as done:
        for group in negatives.groups(direction):
            done(1)
            if group.negatives:
                yield group


def _columns(groups: Iterator[Group], wanted: int, short: list[int]) -> Iterator[Record]:
    for group in groups:
        if len(group.negatives) < wanted:
            short[0] += 1
            continue
        hard = {f"negative_{n}": item.value for n, item in enumerate(group.negatives, 1)}
        for positive in group.positives:
            yield {"anchor": group.query.value, "positive": positive.value, **hard}


def _flag_embedding(group: Group, direction: Direction) -> Record:
    return {
        "query": group.query.value,
        "pos": [item.value for item in group.positives],
        "neg": [item.value for item in group.negatives],
        **({"neg_scores": list(group.scores)} if group.scores else {}),
    }


def _tevatron(group: Group, direction: Direction) -> Record:
    image = direction == TO_TEXT
    return {
        "query_id": group.query.id,
        "query_text": None if image else group.query.value,
        "query_image": group.query.value if image else None,
        "positive_document_ids": [item.id for item in group.positives],
        "negative_document_ids": [item.id for item in group.negatives],
    }


def _document(item: Item, *, image: bool) -> Record:
    return {
        "docid": item.id,
        "text": None if image else item.value,
        "image": item.value if image else None,
    }


def _pairs(negatives: Negatives) -> Iterator[list[object]]:
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


def _captions(negatives: Negatives) -> Iterator[list[object]]:
    for group in _all(negatives, TO_TEXT):
        hard = [item.value for item in group.negatives]
        yield [group.query.value, _plain(group.positives[0].value), hard]


def _all(negatives: Negatives, direction: Direction) -> Iterator[Group]:
    with progress("pairs written", negatives.count(direction)) as done:
        for group in negatives.groups(direction):
            done(1)
            yield group


def _plain(caption: str) -> str:
    """A caption on one line."""
    return " ".join(caption.split())


def _run(group: Group) -> Iterator[str]:
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


def _qrels(group: Group) -> Iterator[str]:
    for item in group.positives:
        yield f"{_name(group.query)} 0 {_name(item)} 1"


def _name(item: Item) -> str:
    """Fields of these files are separated by blanks."""
    return re.sub(r"[\s%]", lambda found: quote(found.group()), item.id)


def _of(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
