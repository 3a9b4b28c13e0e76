"""The "precomp" folders of VSE++, SCAN and their successors.

For each split, such as "train", "dev", "test" or "testall":

    train_ims.npy      (N, R, F) or (N, F) features, one row an image, or repeated for each caption;
                       or train_ims_int8.npy, with int8_scale.npy (F,) for all splits
    train_caps.txt     a caption a line
    train_ids.txt      optional: image ids, one a line for each image, or for each caption
    train_boxes.npy    optional: (N, R, 4)
    train_owner.txt    optional: the row of train_ims.npy that each caption describes, from 0;
                       needed where images have different numbers of captions and no ids say so
    train_lengths.npy  optional: (N,) number of real regions
    train_caps.json    optional: dependency pairs of a parser, of CGMN: a list for each caption of
                       [head, dependent], where the first word is 1 and [0, n] marks the root

The owners and lengths are extensions. Captions are read as text; the authors' readers turn a line
into "b'a dog ...'" under Python 3 and lose its first word. GPO and its successors have all of it in
a folder ``precomp``, beside the pictures. BFAN's data has no captions but ``train_precaps.txt``,
the word ids of each, with a vocabulary beside it or in ``../vocab``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch

from counterfoil.core.console import warn
from counterfoil.core.io import read_array, read_json, read_text_lines
from counterfoil.core.types import joined_dependencies
from counterfoil.data.dataset import (
    DatasetEntry,
    ImageTextDataset,
    build_dataset,
    canonical_split,
    existing_split,
)
from counterfoil.data.features import (
    Array,
    FeatureArray,
    FeatureFormat,
    FeatureTable,
    RowStack,
)
from counterfoil.data.readers.source import Format
from counterfoil.data.tokenizers import LONGEST, WordTokenizer, read_vocabulary, split_words

PROBES = 64  # images whose repeated rows are compared
MAX_REPEATS = 64  # of an image; more equal rows are no repetition


@final
@dataclass(frozen=True, slots=True)
class _StoredSplit:
    """A stored split; `rows` are the stored rows of its images."""

    entries: list[DatasetEntry]
    rows: list[int]
    values: Array
    boxes: Array | None
    lengths: Array | None
    dependencies: torch.Tensor | None  # (T, E, 2) of its captions, image after image


INSIDE = "precomp"  # folder of the files within the data's own, in GPO's layout


def is_precomp(folder: Path) -> bool:
    """Return True if a folder, or its ``precomp``, contains files of a split."""
    return bool(_splits(_inside(folder)))


def _inside(folder: Path) -> Path:
    """The folder of the files of a data set."""
    return folder if _splits(folder) or not (folder / INSIDE).is_dir() else folder / INSIDE


def read_precomp(
    folder: Path, *, name: str | None = None, splits: Sequence[str] = ()
) -> ImageTextDataset:
    """Read all splits of a folder as one data set with memory-mapped features.

    If there are "test" and "testall", "testall" is read, which contains "test".
    """
    name, folder = name or folder.resolve().name, _inside(folder)
    existing = _splits(folder)
    if not existing:
        raise ValueError(f"{folder} holds no split: looked for train_caps.txt and the like")
    chosen = [s for s in existing if s != "test" or "testall" not in existing]
    if splits:
        chosen = [existing_split(split, existing, str(folder)) for split in splits]
    parts = [_read_split(folder, split) for split in chosen]
    starts = np.cumsum([0, *(len(part.values) for part in parts)])
    rows = [int(start) + row for start, part in zip(starts, parts) for row in part.rows]
    scale = folder / "int8_scale.npy"
    packed = parts[0].values.dtype == np.int8
    boxes = [part.boxes for part in parts if part.boxes is not None]
    lengths = [
        np.full(len(part.values), part.values.shape[1]) if part.lengths is None else part.lengths
        for part in parts
    ]
    features = FeatureArray(
        _joined([part.values for part in parts]),
        torch.tensor(rows, dtype=torch.long),
        read_array(scale, "the scale of int8 features", mapped=False) if packed else None,
        None if all(part.lengths is None for part in parts) else np.concatenate(lengths),
        _joined(boxes) if len(boxes) == len(parts) else None,
        str(folder / f"{'|'.join(chosen)}_ims.npy"),
    )
    entries = [entry for part in parts for entry in part.entries]
    dataset = build_dataset(name, entries, where=str(folder), features=features)
    return replace(dataset, dependencies=_joined_dependencies(folder, chosen, parts))


def _splits(folder: Path) -> list[str]:
    ends = ("_caps.txt", "_precaps.txt", "_ims.npy", "_ims_int8.npy")
    names = {path.name.removesuffix(end) for end in ends for path in folder.glob(f"*{end}")}
    order = ["train", "restval", "dev", "val", "test", "testall"]
    return sorted(names, key=lambda s: (order.index(s) if s in order else len(order), s))


def _read_split(folder: Path, split: str) -> _StoredSplit:
    plain, packed = folder / f"{split}_ims.npy", folder / f"{split}_ims_int8.npy"
    values = read_array(packed if packed.exists() and not plain.exists() else plain, "features")
    if values.ndim not in (2, 3):
        raise ValueError(
            f"{folder / f'{split}_ims.npy'} has shape {values.shape}; (images, regions, width) or "
            "(images, width) are read"
        )
    values = values[:, None, :] if values.ndim == 2 else values
    texts = _read_captions(folder, split)
    if not texts and not (folder / f"{split}_owner.txt").exists():
        raise ValueError(f"{_captions_file(folder, split)} is empty; captions are needed there")
    rows, text_to_image, ids = _relation(folder, split, values, len(texts))
    captions: list[list[str]] = [[] for _ in rows]
    for text, image in zip(texts, text_to_image):
        captions[image].append(text)
    pairs = _read_dependencies(folder / f"{split}_caps.json", texts)
    as_split = canonical_split(split)
    entries = [DatasetEntry(name, as_split, tuple(own)) for name, own in zip(ids, captions)]
    boxes, lengths = folder / f"{split}_boxes.npy", folder / f"{split}_lengths.npy"
    return _StoredSplit(
        entries,
        rows,
        values,
        read_array(boxes, "boxes") if boxes.exists() else None,
        read_array(lengths, "numbers of regions", mapped=False) if lengths.exists() else None,
        None
        if pairs is None
        else torch.from_numpy(pairs[np.argsort(text_to_image, kind="stable")]),
    )


def _captions_file(folder: Path, split: str) -> Path:
    """The file of a split's captions, or of the ids of their words where it has no other."""
    plain, words = folder / f"{split}_caps.txt", folder / f"{split}_precaps.txt"
    return plain if plain.exists() or not words.exists() else words


def _read_captions(folder: Path, split: str) -> list[str]:
    """The captions of a split: as they are, or from the ids of their words."""
    words = _captions_file(folder, split)
    if not words.name.endswith("_precaps.txt"):
        return read_text_lines(words, "captions, one a line")
    tokenizer = _vocabulary(folder, words)
    texts, changed = [], 0
    for number, line in enumerate(read_text_lines(words, "word ids, one caption a line"), 1):
        try:
            ids = [int(part) for part in line.split(",")]
            if not 0 <= min(ids) <= max(ids) < tokenizer.size:
                raise ValueError(f"ids are 0 to {tokenizer.size - 1:,}")
        except ValueError as error:
            where = f"{words}, line {number}"
            raise ValueError(f"{where}: {line[:40]!r} are no word ids: {error}") from None
        spoken = [i for i in ids if i == tokenizer.unknown or i not in tokenizer.wordless]
        texts.append(" ".join(tokenizer.tokens(spoken)))
        changed += tokenizer.encode(texts[-1:])[0][1:-1] != spoken
    if changed:
        warn(f"{words}: {changed:,} captions have other word ids when their words are read again")
    return texts


MOST_WORDS = 10_000  # a larger word number of a dependency pair is damage


def _read_dependencies(path: Path, texts: Sequence[str]) -> Array | None:
    """The (T, E, 2) dependency pairs of a split's captions, -1 for none; None without a file.

    Parsers split words in their own way. A number above a caption's last word is left to the model,
    which leaves it out as the authors' code does; many of them show a file of other captions.
    """
    if not path.exists():
        return None
    lists = read_json(path, "dependency pairs, a list for each caption")
    if not isinstance(lists, list):
        raise ValueError(f"{path} holds no list with the dependency pairs of each caption")
    if len(lists) != len(texts):
        raise ValueError(
            f"{path} has the dependency pairs of {len(lists):,} captions, and there are "
            f"{len(texts):,} captions beside it; parse these, line by line"
        )
    read = [_dependency_pairs(given, path, number) for number, given in enumerate(lists, 1)]
    pairs = np.full((len(read), max(1, *map(len, read)), 2), -1, np.int16)
    beyond = 0
    for row, (own, text) in enumerate(zip(read, texts)):
        pairs[row, : len(own)] = own
        # counted only where it may be so, as splitting all captions takes time
        highest = int(own[1:].max(initial=0))
        beyond += highest > len(text.split()) and highest > len(split_words(text)) + 1
    if beyond:
        warn(
            f"{path}: {beyond:,} of {len(texts):,} captions ({100 * beyond / len(texts):.1f} %) "
            "have pairs of words behind their end, which models leave out, as the authors' code "
            "does; with many of them, look whether the file is of these captions"
        )
    return pairs


def _dependency_pairs(given: object, path: Path, number: int) -> Array:
    """The (E, 2) pairs of one caption, by its number from 1."""
    try:
        pairs = np.asarray(given if given != [] else np.empty((0, 2), np.int64))
    except ValueError:  # lists of different lengths
        pairs = np.empty(0)
    if pairs.dtype.kind != "i" or pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(
            f"{path}: {str(given)[:60]!r} of caption {number} are no dependency pairs; a list of "
            "[head, dependent] is read, as [[0, 2], [2, 1]]"
        )
    if len(pairs) and not 0 <= pairs.min() <= pairs.max() <= MOST_WORDS:
        raise ValueError(
            f"{path}: the dependency pairs of caption {number} name words {pairs.min()} to "
            f"{pairs.max()}; 1 is its first word and 0 its root"
        )
    return pairs


def _joined_dependencies(
    folder: Path, splits: Sequence[str], parts: Sequence[_StoredSplit]
) -> torch.Tensor | None:
    """The dependency pairs of all splits; none of a split without them, of which it warns."""
    missing = [split for split, part in zip(splits, parts) if part.dependencies is None]
    if missing and len(missing) < len(parts):
        warn(
            f"{folder} has no {' or '.join(f'{split}_caps.json' for split in missing)}, and "
            "dependency pairs of other splits: models that read them relate no words there"
        )
    counts = [sum(len(entry.texts) for entry in part.entries) for part in parts]
    return joined_dependencies(
        [(count, part.dependencies) for count, part in zip(counts, parts, strict=True)]
    )


def _vocabulary(folder: Path, words: Path) -> WordTokenizer:
    """The vocabulary of a folder's word ids, which BFAN has in ``vocab`` beside the data.

    One that is named after the folder comes first, then one without a name, then the only other.
    """
    named = (folder.absolute(), folder.resolve())  # it may be a link
    stems = [place / f"{place.name}_vocab" for place in named]
    stems += [place.parent / "vocab" / f"{place.name}_vocab" for place in named]
    stems += [folder / "vocab"]
    places = [stem.with_name(f"{stem.name}{end}") for stem in stems for end in (".json", ".pkl")]
    found = [path for path in places if path.is_file()]
    if not found:
        others = [path for path in sorted(folder.glob("*vocab*")) if path.is_file()]
        found = [path for path in others if path.suffix in (".json", ".pkl")]
        if len({path.stem for path in found}) > 1:
            raise ValueError(
                f"{words} holds word ids, and {folder} has several vocabularies: "
                f"{', '.join(path.name for path in found)}; name the one that they belong to "
                f"{named[0].name}_vocab{found[0].suffix}, or leave it there alone"
            )
    if not found:
        raise ValueError(
            f"{words} holds word ids and no captions; put the vocabulary that they belong to "
            f"beside it, as {folder / 'vocab.json'}"
        )
    return read_vocabulary(found[0], longest=LONGEST)


def _relation(
    folder: Path, split: str, values: Array, texts: int
) -> tuple[list[int], list[int], list[str]]:
    """Stored row of each image, image of each caption, and image ids.

    In order of precedence: an owner file; one id for each caption; equal runs, where the rows of an
    image may be repeated for each of its captions.
    """
    stored, ids_file = len(values), folder / f"{split}_ids.txt"
    ids = read_text_lines(ids_file, "image ids") if ids_file.exists() else None
    if (folder / f"{split}_owner.txt").exists():
        text_to_image = _read_owner(folder / f"{split}_owner.txt", stored, texts)
        return list(range(stored)), text_to_image, _image_ids(ids, stored, split, ids_file)
    if ids is not None and len(ids) == texts and len(set(ids)) < texts:
        return _by_caption_ids(ids, stored, ids_file)
    step = _repeats(values, ids, texts) if stored == texts else 1
    images = stored // step
    if not images or stored % step or texts % images:
        raise ValueError(
            f"{folder}: {split} has {images:,} images and {texts:,} captions, which do not divide; "
            f"write the image row of each caption into {split}_owner.txt, one number a line"
        )
    captions = texts // images
    names = _image_ids(ids, images, split, ids_file)
    return list(range(0, stored, step)), [row // captions for row in range(texts)], names


def _by_caption_ids(
    ids: Sequence[str], stored: int, file: Path
) -> tuple[list[int], list[int], list[str]]:
    """The relation from one image id for each caption."""
    place = {name: row for row, name in enumerate(dict.fromkeys(ids))}
    text_to_image = [place[name] for name in ids]
    if stored == len(place):
        return list(range(stored)), text_to_image, list(place)
    if stored != len(ids):
        raise ValueError(
            f"{file} names {len(place):,} images for {len(ids):,} captions, but there are features "
            f"of {stored:,}"
        )
    first = {image: row for row, image in reversed(list(enumerate(text_to_image)))}
    return [first[image] for image in range(len(place))], text_to_image, list(place)


def _repeats(values: Array, ids: Sequence[str] | None, texts: int) -> int:
    """Stored rows of each image, where there are as many rows as captions."""
    if ids is not None and ids and texts % len(ids) == 0:
        return texts // len(ids)
    run = 1
    while run < min(texts, MAX_REPEATS + 1) and np.array_equal(values[run], values[0]):
        run += 1
    if run > MAX_REPEATS or texts % run:
        return 1
    for image in np.unique(np.linspace(0, texts // run - 1, PROBES).astype(int)).tolist():
        rows = values[image * run : (image + 1) * run]
        if not all(np.array_equal(row, rows[0]) for row in rows):
            return 1
    return run


def _image_ids(ids: Sequence[str] | None, images: int, split: str, file: Path) -> list[str]:
    if ids is None:
        return [f"{split}/{row}" for row in range(images)]
    if len(ids) != images:
        raise ValueError(f"{file} names {len(ids):,} images, but there are {images:,}")
    return list(ids)


def _read_owner(path: Path, stored: int, texts: int) -> list[int]:
    lines = read_text_lines(path, "image rows, one a caption")
    try:
        text_to_image = [int(line) for line in lines]
    except ValueError as error:
        raise ValueError(f"{path} needs a whole number on every line: {error}") from error
    if len(text_to_image) != texts:
        raise ValueError(f"{path} has {len(text_to_image):,} lines for {texts:,} captions")
    if text_to_image and not 0 <= min(text_to_image) <= max(text_to_image) < stored:
        raise ValueError(
            f"{path} names rows {min(text_to_image)} to {max(text_to_image)}, but images are 0 to "
            f"{stored - 1}"
        )
    return text_to_image


def _joined(arrays: Sequence[Array]) -> Array | RowStack:
    return arrays[0] if len(arrays) == 1 else RowStack(arrays)


def _open_features(path: Path) -> FeatureTable:
    dataset = read_precomp(path)
    assert dataset.features is not None
    return FeatureTable(dataset.image_ids, dataset.features)


FEATURES = FeatureFormat(is_precomp, _open_features)


FORMAT = Format(
    "a precomp folder (train_ims.npy, train_caps.txt)",
    lambda source: is_precomp(source.path),
    lambda source: read_precomp(source.path, name=source.name, splits=source.splits),
    named_pictures=True,
)
