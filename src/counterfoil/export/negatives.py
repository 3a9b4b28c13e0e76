"""Mined and generated negatives in the formats of other trainers and evaluation tools."""

from __future__ import annotations

import csv
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, final
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.artifact import MANIFEST
from counterfoil.core.config import parse_choice
from counterfoil.core.console import progress
from counterfoil.core.io import (
    atomic_folder,
    ensure_absent,
    ensure_writable_folder,
    files_digest,
    read_json,
)
from counterfoil.data.batching import BatchSampler
from counterfoil.data.checks import counted
from counterfoil.data.dataset import ImageTextDataset, images_saying, plain_caption
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers.webdataset import write_sample
from counterfoil.negatives.batch_mining import BatchMiningConfig, NeighbourBatches
from counterfoil.negatives.generated import GeneratedCaption, GeneratedStore
from counterfoil.negatives.store import TO_IMAGE, TO_TEXT, Direction, NegativeStore
from counterfoil.negatives.tables import positive_rows

NegativesKind = Literal["mined", "written"]
IMAGE_FOLDER = "pictures"  # of images that are in no file of their own
TREC_TAG = "counterfoil"
OPEN_CLIP_TABLE = "train.tsv"
BATCHES, CORPUS = "batches.jsonl", "batches-corpus.jsonl"
MOST_IN_BATCHES = 8  # mined negatives of a row, for forms that have a list of them
VLM2VEC_IMAGE = "<|image_1|>"  # in place of each model's own mark of an image
SHARD = 1000  # samples

Rows: TypeAlias = Iterator[Mapping[str, object]]
Sample: TypeAlias = tuple[int, Sequence[str], Mapping[str, object]]  # image row, captions, JSON


@final
@dataclass(frozen=True, slots=True)
class ExportItem:
    """An image or a caption."""

    id: str
    value: str  # the caption, or the path of the image; the id if there is neither


@final
@dataclass(frozen=True, slots=True)
class ExportGroup:
    """A query with its positives and its negatives, hardest first; () for unknown scores."""

    query: ExportItem
    positives: tuple[ExportItem, ...]
    negatives: tuple[ExportItem, ...]
    scores: tuple[float, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class ExportedNegatives:
    """Queries of one or both directions, in data set order."""

    description: str  # where they come from
    dataset: ImageTextDataset
    groups: Mapping[Direction, Sequence[ExportGroup]]
    documents: Callable[[Direction], Iterable[ExportItem]]  # all that may answer a query


def mined_negatives(
    dataset: ImageTextDataset, store: NegativeStore, locate: Callable[[int], str], most: int
) -> ExportedNegatives:
    """Mined lists, in both directions; `locate` gives the path of the image of a row."""

    @cache
    def image(row: int) -> ExportItem:
        return ExportItem(dataset.image_ids[row], locate(row))

    @cache
    def text(row: int) -> ExportItem:
        return ExportItem(dataset.text_ids[row], dataset.texts[row] or dataset.text_ids[row])

    lists = store.lists
    texts, images = positive_rows(dataset)
    models = " and ".join(source.matcher for source in store.manifest.sources)
    return ExportedNegatives(
        f"Hard negatives of {dataset.name} ({store.manifest.split}), mined by counterfoil "
        f"{store.manifest.version} with {models or 'an unknown model'}.",
        dataset,
        {
            TO_TEXT: ranked_groups(image, text, texts, lists.texts, lists.text_scores, most),
            TO_IMAGE: ranked_groups(text, image, images, lists.images, lists.image_scores, most),
        },
        lambda direction: (
            map(text, range(len(dataset.texts)))
            if direction == TO_TEXT
            else map(image, range(len(dataset)))
        ),
    )


def ranked_groups(
    query: Callable[[int], ExportItem],
    answer: Callable[[int], ExportItem],
    positives: Sequence[Sequence[int]],
    rows: Tensor,
    scores: Tensor | None,
    most: int | None = None,
) -> list[ExportGroup]:
    """The queries that have an answer, each with the first `most` of its list.

    Args:
        query: a query by its row.
        answer: an answer by its row.
        positives: rows of the true answers of each of the Q queries.
        rows: (Q, K) rows of other answers, hardest first; -1 at the end of shorter lists.
        scores: (Q, K); None if they are unknown.
        most: length of a list; None for all.
    """
    groups = []
    for row, true in enumerate(positives):
        if not true:
            continue
        listed = [other for other in rows[row].tolist() if other >= 0][:most]
        known = () if scores is None else tuple(scores[row, : len(listed)].tolist())
        right, wrong = tuple(map(answer, true)), tuple(map(answer, listed))
        groups.append(ExportGroup(query(row), right, wrong, known))
    return groups


def generated_negatives(
    dataset: ImageTextDataset, store: GeneratedStore, locate: Callable[[int], str], most: int
) -> ExportedNegatives:
    """Generated captions: a query is an image with one of its captions, under the caption's id."""
    rows = {image_id: row for row, image_id in enumerate(dataset.image_ids)}
    foils: dict[str, list[GeneratedCaption]] = {}
    written = list(store.foils())
    true = images_saying(dataset, (foil.foil for foil in written))
    for foil in written:
        if foil.image not in rows:
            raise ValueError(
                f"{store.folder} has captions of {foil.image!r}, which is no image of "
                f"{dataset.name}; write again"
            )
        if rows[foil.image] not in true.get(plain_caption(foil.foil), ()):
            foils.setdefault(foil.text, []).append(foil)
    groups = [
        ExportGroup(
            ExportItem(text, locate(rows[own[0].image])),
            (ExportItem(text, own[0].caption),),
            tuple(ExportItem(f"{text}#{n}", foil.foil) for n, foil in enumerate(own[:most], 1)),
        )
        for text, own in foils.items()
    ]
    return ExportedNegatives(
        f"False captions of {dataset.name} ({store.manifest.split}), written by counterfoil "
        f"{store.manifest.version}: {store.manifest.writer}.",
        dataset,
        {TO_TEXT: groups},
        lambda _: (item for group in groups for item in (*group.positives, *group.negatives)),
    )


# The formats. Each writer returns a line of text for each file that it wrote.


def write_sentence_transformers(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """``DIRECTION.jsonl`` with the columns anchor, positive, negative_1, …, negative_n.

    A query has a row for each of its positives; n is the longest list, and queries with fewer are
    left out, as losses need every column.
    """
    lines = []
    for direction, groups in negatives.groups.items():
        longest = max((len(group.negatives) for group in groups), default=0)
        if not longest:
            raise ValueError(f"there are no negatives to export from {direction.split('-')[0]}s")
        records = (
            {
                "anchor": group.query.value,
                "positive": positive.value,
                **{f"negative_{n}": item.value for n, item in enumerate(group.negatives, 1)},
            }
            for group in _with_progress(direction, groups)
            if len(group.negatives) == longest
            for positive in group.positives
        )
        count = _write_json_lines(folder / f"{direction}.jsonl", records)
        lines.append(f"{direction}.jsonl: {count:,} rows, {counted(longest, 'negative')} each")
        if short := sum(0 < len(group.negatives) < longest for group in groups):
            lines.append(
                f"{short:,} of {direction} have fewer than {longest} negatives and are left out; "
                "a lower --most keeps them"
            )
    return lines


def flag_embedding_rows(group: ExportGroup, direction: Direction) -> Rows:
    """FlagEmbedding: query, pos, neg and, if known, neg_scores."""
    yield {
        "query": group.query.value,
        "pos": _values(group.positives),
        "neg": _values(group.negatives),
        **({"neg_scores": list(group.scores)} if group.scores else {}),
    }


def write_tevatron(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """``DIRECTION.jsonl`` and ``DIRECTION-corpus.jsonl`` in Tevatron's multi-modal format.

    Its older format, with passages inside the queries, has no place for an image.
    """
    lines = _write_queries(tevatron_rows, negatives, folder)
    for direction in negatives.groups:
        name = f"{direction}-corpus.jsonl"
        documents = _tevatron_documents(negatives.documents(direction), direction)
        lines.append(f"{name}: {_write_json_lines(folder / name, documents):,} documents")
    return lines


def tevatron_rows(group: ExportGroup, direction: Direction) -> Rows:
    """Tevatron: a query with the ids of its documents."""
    yield {
        "query_id": group.query.id,
        "query_text": None if direction == TO_TEXT else group.query.value,
        "query_image": group.query.value if direction == TO_TEXT else None,
        "positive_document_ids": [item.id for item in group.positives],
        "negative_document_ids": [item.id for item in group.negatives],
    }


def _tevatron_documents(items: Iterable[ExportItem], direction: Direction) -> Rows:
    for item in items:
        yield {
            "docid": item.id,
            "text": item.value if direction == TO_TEXT else None,
            "image": None if direction == TO_TEXT else item.value,
        }


def ms_swift_rows(group: ExportGroup, direction: Direction) -> Rows:
    """``swift sft --task_type embedding``: lists of messages, and of images where there are any."""
    sides = (
        ("", [group.query], direction == TO_TEXT),
        ("positive_", group.positives, direction == TO_IMAGE),
        ("negative_", group.negatives, direction == TO_IMAGE),
    )
    record: dict[str, list[Any]] = {}
    for name, items, pictures in sides:
        contents = ["<image>" if pictures else item.value for item in items]
        record[f"{name}messages"] = [[{"role": "user", "content": text}] for text in contents]
        if pictures and items:
            record[f"{name}images"] = [[item.value] for item in items]
    # a query is one list of messages, not a list of such lists
    yield {**record, **{key: record[key][0] for key in ("messages", "images") if key in record}}


def vlm2vec_rows(group: ExportGroup, direction: Direction) -> Rows:
    """The columns of MMEB-train: a row for each positive, with one negative, the hardest.

    VLM2Vec's own collators read queries and positives alone.
    """

    def side(name: str, item: ExportItem | None, picture: bool) -> dict[str, str]:
        query = "" if name == "qry" else "_text"
        value = item.value if item else ""
        text = VLM2VEC_IMAGE if picture and item else value
        return {f"{name}{query}": text, f"{name}_image_path": value if picture else ""}

    negative = group.negatives[0] if group.negatives else None
    for positive in group.positives:
        yield {
            **side("qry", group.query, direction == TO_TEXT),
            **side("pos", positive, direction == TO_IMAGE),
            **side("neg", negative, direction == TO_IMAGE),
        }


def write_webdataset(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """Shards of pictures and captions, with the negatives in ``KEY.json``.

    A sample is an image: ``caption`` and ``caption_ids`` are all true captions,
    ``negative_texts``, ``negative_text_ids`` and, if known, ``negative_text_scores`` its
    negatives, and ``negative_images`` the ids of the negatives of each caption.
    """
    dataset, groups = negatives.dataset, negatives.groups[TO_TEXT]
    wrong_images = {
        g.query.id: [i.id for i in g.negatives] for g in negatives.groups.get(TO_IMAGE, ())
    }
    # mined lists are of images, written captions of an image with a caption, under its id
    ids = dataset.image_ids if wrong_images else dataset.text_ids
    places = {id_: row for row, id_ in enumerate(ids)}

    def samples() -> Iterator[Sample]:
        for group in _with_progress(TO_TEXT, groups):
            row = places[group.query.id]
            row = row if wrong_images else int(dataset.text_to_image[row])
            note = _webdataset_note(dataset.image_ids[row], group)
            if wrong_images:
                note["negative_images"] = [wrong_images[item.id] for item in group.positives]
            yield row, _values(group.positives), note

    return [f"{_write_shards(dataset, folder, samples())}: {len(groups):,} samples"]


def _webdataset_note(image: str, group: ExportGroup) -> dict[str, object]:
    return {
        "image_id": image,
        "caption": _values(group.positives),
        "caption_ids": [item.id for item in group.positives],
        "negative_texts": _values(group.negatives),
        "negative_text_ids": [item.id for item in group.negatives],
        **({"negative_text_scores": list(group.scores)} if group.scores else {}),
    }


def _write_shards(dataset: ImageTextDataset, folder: Path, samples: Iterator[Sample]) -> str:
    """Write the samples in order; returns the names of the first and the last shard."""
    if dataset.pictures is None:
        raise ValueError(
            f"{dataset.name} has no pictures, with which a sample of webdataset begins"
        )
    names: list[str] = []
    while part := list(islice(samples, SHARD)):
        names.append(f"{dataset.split_name.replace('/', '_')}-{len(names):05}.tar")
        with tarfile.open(folder / names[-1], "w") as tar:
            for place, (row, texts, note) in enumerate(part, (len(names) - 1) * SHARD):
                lines = list(map(_one_line, texts))
                write_sample(tar, f"{place:09}", dataset.pictures, row, lines, note)
    return " to ".join(dict.fromkeys((*names[:1], *names[-1:])))


def write_open_clip(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """``train.tsv`` with filepath and title, as open_clip reads, and NegCLIP's two more columns.

    ``neg_caption`` is a list of captions, ``neg_image`` a list of rows of this table, left out
    without mined images.
    """
    columns = ["filepath", "title", "neg_caption"]
    by_text = negatives.groups.get(TO_IMAGE)
    rows: Iterable[list[object]]
    if by_text is None:
        groups = negatives.groups[TO_TEXT]
        rows = (
            [group.query.value, _one_line(group.positives[0].value), _values(group.negatives)]
            for group in _with_progress(TO_TEXT, groups)
        )
    else:
        columns.append("neg_image")
        captions = {g.query.id: _values(g.negatives) for g in negatives.groups[TO_TEXT]}
        first_row: dict[str, int] = {}
        for row, group in enumerate(by_text):
            first_row.setdefault(group.positives[0].id, row)
        rows = (
            [
                group.positives[0].value,
                _one_line(group.query.value),
                captions.get(group.positives[0].id, []),
                [first_row[item.id] for item in group.negatives if item.id in first_row],
            ]
            for group in _with_progress(TO_IMAGE, by_text)
        )
    with (folder / OPEN_CLIP_TABLE).open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)
    count = len(negatives.groups[TO_TEXT] if by_text is None else by_text)
    return [f"{OPEN_CLIP_TABLE}: {count:,} pairs; {', '.join(columns)}"]


def write_trec(negatives: ExportedNegatives, folder: Path) -> list[str]:
    """``DIRECTION.run`` of the negatives and ``DIRECTION.qrels`` of the positives.

    Blanks in ids are written as %20. Where no scores are known, minus the rank is the score.
    Readers sort by score and order equal ones by id, so a score that does not fall from rank to
    rank, as some of 16 bits do not, is written as the next lower float32.
    """
    return write_runs(negatives.groups, folder, "negatives")


def write_runs(
    groups: Mapping[Direction, Sequence[ExportGroup]], folder: Path, noun: str
) -> list[str]:
    """Write the files of `write_trec`: each query with its ranked items, which `noun` names."""
    lines = []
    for direction, queries in groups.items():
        run = (line for group in _with_progress(direction, queries) for line in _run_lines(group))
        qrels = (
            f"{_trec_id(group.query)} 0 {_trec_id(item)} 1"
            for group in queries
            for item in group.positives
        )
        count = _write_lines(folder / f"{direction}.run", run)
        lines.append(f"{direction}.run: {count:,} {noun}")
        count = _write_lines(folder / f"{direction}.qrels", qrels)
        lines.append(f"{direction}.qrels: {count:,} true")
    return lines


def _pair_rows(group: ExportGroup, direction: Direction) -> Rows:
    yield {"anchor": group.query.value, "positive": group.positives[0].value}


BATCH_ROWS: dict[str, Callable[[ExportGroup, Direction], Rows]] = {
    "sentence-transformers": _pair_rows,
    "flagembedding": flag_embedding_rows,
    "tevatron": tevatron_rows,
    "ms-swift": ms_swift_rows,
    "vlm2vec": vlm2vec_rows,
}


def _write_queries(
    rows: Callable[[ExportGroup, Direction], Rows], negatives: ExportedNegatives, folder: Path
) -> list[str]:
    """Write ``DIRECTION.jsonl`` with the rows of each query that has negatives."""
    lines = []
    for direction, groups in negatives.groups.items():
        with_negatives = (g for g in _with_progress(direction, groups) if g.negatives)
        records = (row for group in with_negatives for row in rows(group, direction))
        count = _write_json_lines(folder / f"{direction}.jsonl", records)
        lines.append(f"{direction}.jsonl: {counted(count, 'row')}")
    return lines


FORMATS: dict[str, Callable[[ExportedNegatives, Path], list[str]]] = {
    "sentence-transformers": write_sentence_transformers,
    "flagembedding": partial(_write_queries, flag_embedding_rows),
    "tevatron": write_tevatron,
    "ms-swift": partial(_write_queries, ms_swift_rows),
    "vlm2vec": partial(_write_queries, vlm2vec_rows),
    "webdataset": write_webdataset,
    "open-clip": write_open_clip,
    "trec": write_trec,
}


def _with_progress(direction: Direction, groups: Sequence[ExportGroup]) -> Iterator[ExportGroup]:
    with progress(f"{direction} written", len(groups)) as advance:
        for group in groups:
            yield group
            advance(1)


def _write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines one by one; returns their number."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    return count


def _write_json_lines(path: Path, records: Iterable[Mapping[str, object]]) -> int:
    return _write_lines(path, (json.dumps(record, ensure_ascii=False) for record in records))


def _run_lines(group: ExportGroup) -> Iterator[str]:
    above = np.float32(np.inf)
    scores = group.scores or range(-1, -len(group.negatives) - 1, -1)
    for rank, (item, score) in enumerate(zip(group.negatives, scores, strict=True), 1):
        above = min(np.float32(score), np.nextafter(above, np.float32(-np.inf)))
        yield f"{_trec_id(group.query)} Q0 {_trec_id(item)} {rank} {above:.9g} {TREC_TAG}"


def _trec_id(item: ExportItem) -> str:
    """An id without blanks, which separate the fields."""
    return re.sub(r"[\s%]", lambda match: quote(match.group()), item.id)


def _values(items: Iterable[ExportItem]) -> list[str]:
    return [item.value for item in items]


def _one_line(caption: str) -> str:
    return " ".join(caption.split())


def negatives_kind(store: Path) -> NegativesKind | None:
    """Return the kind of negatives that a folder holds; None for neither."""
    if not (store / MANIFEST).is_file():
        return None
    manifest = read_json(store / MANIFEST, "a manifest")
    keys = manifest if isinstance(manifest, dict) else {}
    if "texts_per_image" in keys:
        return "mined"
    return "written" if "writer" in keys else None


def check_negatives_export(store: Path, to: str, folder: Path) -> None:
    """Check the arguments of an export before the data are read."""
    if negatives_kind(store) is None:
        raise ValueError(
            f"{store} holds no negatives; give what `counterfoil mine` or "
            "`counterfoil papers write` made"
        )
    parse_choice(FORMATS, to, "a form of negatives")
    ensure_absent(folder)
    ensure_writable_folder(folder)


def export_negatives(
    store: Path, to: str, folder: Path, dataset: ImageTextDataset, *, most: int
) -> list[str]:
    """Write negatives of a split in a format of `FORMATS`, atomically; a line of text per file."""
    check_negatives_export(store, to, folder)
    ids_only = to == "trec"  # needs no paths, so images in no file are not written either
    with atomic_folder(folder) as temporary:
        locate = (
            dataset.image_ids.__getitem__
            if ids_only
            else _image_locator(dataset, temporary, folder)
        )
        if negatives_kind(store) == "written":
            generated = GeneratedStore.open(store, fingerprint=dataset.fingerprint)
            negatives = generated_negatives(dataset, generated, locate, most)
        else:
            mined = NegativeStore.open(
                store, fingerprint=dataset.fingerprint, relation=dataset.relation
            )
            negatives = mined_negatives(dataset, mined, locate, most)
        lines = FORMATS[to](negatives, temporary)
        _write_readme(negatives.description, temporary)
    if dataset.pictures is None and not ids_only:
        lines.append(f"{dataset.name} has no pictures; images are given by their names")
    return lines


def export_batches(
    store: Path,
    to: str,
    folder: Path,
    dataset: ImageTextDataset,
    *,
    batch: int,
    epochs: int = 1,
    seed: int = 0,
    mining: BatchMiningConfig | None = None,
) -> list[str]:
    """Write pairs in the order of batches composed from mined lists, atomically.

    ``batches.jsonl``, or the shards of webdataset, have an image and one of its captions in a row,
    in the form of `BATCH_ROWS`. Each `batch` rows from the beginning are a batch, which holds an
    image once. An epoch has every image with a random caption, but for a random choice of fewer
    images than a batch.

    ``false_negatives`` lists the places in the batch whose captions are no negatives of the row's
    image, by `false_negatives`. For sentence-transformers, which takes further columns for inputs,
    it is ``label``, which its ranking losses hand on and do not read, filled with -1 to one length;
    the column is left out if no batch has a false negative.
    """
    check_batches_export(store, to, folder)
    mined = NegativeStore.open(store, fingerprint=dataset.fingerprint, relation=dataset.relation)
    sampler = BatchSampler(
        dataset.relation,
        batch=batch,
        seed=seed,
        one_caption=True,
        drop_last=True,
        partition=NeighbourBatches(mined.lists, dataset.relation, mining),
    )
    batches = [texts for epoch in range(epochs) for texts in sampler.epoch(epoch)]
    masks = [places for texts in batches for places in false_negatives(dataset, texts)]
    texts = torch.cat(batches).tolist()
    with atomic_folder(folder) as temporary:
        locate = _image_locator(dataset, temporary, folder)
        listed = mined_negatives(dataset, mined, locate, MOST_IN_BATCHES).groups[TO_TEXT]
        groups = {group.query.id: group for group in listed}
        pairs = (
            replace(
                groups[dataset.image_ids[int(dataset.text_to_image[text])]],
                positives=(ExportItem(dataset.text_ids[text], dataset.texts[text]),),
            )
            for text in texts
        )
        if to == "webdataset":
            samples = (
                (
                    int(dataset.text_to_image[text]),
                    _values(pair.positives),
                    _webdataset_note(pair.query.id, pair) | {"false_negatives": places},
                )
                for text, pair, places in zip(texts, pairs, masks, strict=True)
            )
            name = _write_shards(dataset, temporary, samples)
        else:
            key, width = "false_negatives", max(map(len, masks))
            if to == "sentence-transformers":
                key, masks = "label", [[*p, *[-1] * (width - len(p))] for p in masks]
            records = (
                {**row, **({key: places} if width or key != "label" else {})}
                for pair, places in zip(pairs, masks, strict=True)
                for row in BATCH_ROWS[to](pair, TO_TEXT)
            )
            name = BATCHES
            _write_json_lines(temporary / name, records)
        if to == "tevatron":
            captions = map(ExportItem, dataset.text_ids, dataset.texts)
            _write_json_lines(temporary / CORPUS, _tevatron_documents(captions, TO_TEXT))
        _write_readme(
            f"Pairs of {dataset.name} ({mined.manifest.split}) in batches of {batch}, composed by "
            f"counterfoil {mined.manifest.version} from mined negatives; epochs: {epochs}. Read "
            "them in this order, without shuffling.",
            temporary,
        )
    lines = [f"{name}: {len(texts):,} pairs, {len(batches):,} batches of {batch}"]
    if count := sum(map(len, masks)) - sum(places.count(-1) for places in masks):
        lines.append(f"{counted(count, 'false negative')} in the batches, listed with their rows")
    return lines


def false_negatives(dataset: ImageTextDataset, texts: Tensor) -> list[list[int]]:
    """For the image of each of the (B,) captions of a batch, the places of the others true of it.

    These are the captions that were judged to be true of the image, or ambiguous, and those that
    say what one of its own captions says.
    """
    images = dataset.text_to_image[texts].unsqueeze(1).expand(-1, len(texts))
    true = dataset.relation.exempt_weight(images, texts.expand(len(texts), -1)) >= 0
    return [row.nonzero().flatten().tolist() for row in true]


def check_batches_export(store: Path, to: str, folder: Path) -> None:
    """Check the arguments of an export of batches before the data are read."""
    check_negatives_export(store, to, folder)
    if to not in (forms := [*BATCH_ROWS, "webdataset"]) or negatives_kind(store) != "mined":
        raise ValueError(
            f"batches are composed from mined negatives, for {', '.join(forms)}; {store} holds "
            f"{negatives_kind(store)} ones, and the format is {to}: leave --batch-size out, or "
            "change the two"
        )


def _image_locator(
    dataset: ImageTextDataset, temporary: Path, folder: Path
) -> Callable[[int], str]:
    """A function from image row to path; an image in no file is written when it is first needed."""
    pictures = dataset.pictures
    if pictures is None:
        return dataset.image_ids.__getitem__

    @cache
    def locate(row: int) -> str:
        if isinstance(pictures, PictureFiles):
            return str(Path(pictures.place(row)).absolute())
        name = f"{row:06d}.png"
        (temporary / IMAGE_FOLDER).mkdir(exist_ok=True)
        pictures.open(row).save(temporary / IMAGE_FOLDER / name)
        return str(folder.absolute() / IMAGE_FOLDER / name)

    return locate


_PATHS = (
    " Pictures are named by whole paths of the machine that wrote this, so that every program "
    "finds them; before you share the files, replace the part above your pictures."
)


def _write_readme(description: str, folder: Path) -> None:
    """Write the description, with a YAML head by which `datasets.load_dataset` opens the folder.

    Without a configuration's name it opens captions as queries, where there are such. `datasets`
    keeps what it has read by the folder's name and the version, which therefore is the content's:
    else a later export into a folder of this name would be taken for the first.
    """
    files = sorted((path.name for path in folder.glob("*.jsonl")), key=_opened_first)
    configs = "".join(
        f"- config_name: {name.removesuffix('.jsonl')}\n  data_files: {name}\n"
        f"  version: 0.0.{int(files_digest(folder / name)[:8], 16)}\n"
        + ("  default: true\n" if name == files[0] else "")
        for name in files
    )
    head = f"---\nconfigs:\n{configs}---\n\n" if files else ""
    # shards hold their pictures, and runs name ids
    named = files or (folder / OPEN_CLIP_TABLE).exists()
    (folder / "README.md").write_text(
        f"{head}{description}{_PATHS if named else ''}\n", encoding="utf-8"
    )


def _opened_first(name: str) -> tuple[bool, str]:
    return name not in (f"{TO_IMAGE}.jsonl", BATCHES), name
