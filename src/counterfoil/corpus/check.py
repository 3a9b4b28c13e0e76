"""Looks a data set over before anything is trained on it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from counterfoil.core.console import progress
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.findings import (
    Findings,
    Lengths,
    SplitCounts,
    Twins,
    conclusions,
    counted,
)
from counterfoil.corpus.pictures import PictureFiles, Pictures
from counterfoil.corpus.regions import Features

SAMPLE = 256  # rows of features that a quick look reads
AT_ONCE = 64  # rows of features in memory
LONG = 60  # words, where captions are cut by default


def check(corpus: Corpus, *, quick: bool = False) -> Findings:
    """Everything worth knowing about a data set, found by reading all of it once.

    Args:
        corpus: what to look at.
        quick: do not open pictures, only see whether their files are there, and read a sample of
            the features.
    """
    looked = look(corpus.pictures, quick=quick) if corpus.pictures is not None else ({}, {})
    unreadable, hashes = tuple(looked[0].values()), looked[1]
    not_finite, rows = _stream(corpus.features, quick) if corpus.features else ([], {})
    same_images = _twins(hashes or rows, corpus.image_ids, corpus.splits)
    same_texts = tuple(twins for twins in _same_texts(corpus) if twins.across)
    counts = tuple(_counts(corpus))
    bad = tuple(corpus.image_ids[row] for row in not_finite)
    histogram = tuple(sorted(Counter(corpus.relation.counts.tolist()).items()))
    return Findings(
        name=corpus.name,
        splits=counts,
        captions_per_image=histogram,
        lengths=_lengths(corpus.texts),
        images=_described(corpus),
        unreadable=unreadable,
        not_finite=bad,
        same_images=same_images,
        same_texts=same_texts,
        orphans=int((corpus.owner < 0).sum()),
        errors=tuple(conclusions(corpus, counts, unreadable, bad)),
        warnings=tuple(_warnings(corpus, counts, unreadable, same_images, same_texts)),
    )


def _counts(corpus: Corpus) -> Iterator[SplitCounts]:
    of = corpus.relation.counts
    for name in corpus.split_names:
        here = of[torch.tensor([split == name for split in corpus.splits], dtype=torch.bool)]
        yield SplitCounts(name, len(here), int(here.sum()), int((here == 0).sum()))


def look(pictures: Pictures, *, quick: bool = False) -> tuple[dict[int, str], dict[int, bytes]]:
    """What is wrong with pictures that cannot be read, and a hash of the pixels of the others.

    Args:
        pictures: by row.
        quick: do not open them, only see whether their files are there; no hashes then.
    """
    if quick and not isinstance(pictures, PictureFiles):
        return {}, {}

    def one(row: int) -> str | bytes:
        if quick:
            there = Path(pictures.place(row)).is_file()
            return b"" if there else f"{pictures.place(row)} does not exist"
        try:
            picture = pictures.open(row)
        except ValueError as error:
            return str(error)
        size = repr(picture.size).encode()
        return hashlib.blake2b(size + picture.tobytes(), digest_size=16).digest()

    sentences, hashes = {}, {}
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads,
        progress("pictures looked at", len(pictures)) as done,
    ):
        for row, found in enumerate(threads.map(one, range(len(pictures)))):
            if isinstance(found, str):
                sentences[row] = found
            elif found:
                hashes[row] = found
            done(1)
    return sentences, hashes


def _stream(features: Features, quick: bool) -> tuple[list[int], dict[int, bytes]]:
    """Rows that hold NaN, and a hash of the values of the others."""
    count = min(SAMPLE, len(features)) if quick else len(features)
    rows = torch.linspace(0, max(len(features) - 1, 0), count, dtype=torch.float64).round().long()
    bad: list[int] = []
    hashes = {}
    with progress("features read", count) as done:
        for start in range(0, count, AT_ONCE):
            block = rows[start : start + AT_ONCE]
            values, finite = features.look(block)
            for row, good, value in zip(block.tolist(), finite.tolist(), values.numpy()):
                if good:
                    hashes[row] = hashlib.blake2b(value.tobytes(), digest_size=16).digest()
                else:
                    bad.append(row)
            done(len(block))
    return bad, hashes


def _twins(
    contents: dict[int, bytes], names: Sequence[str], splits: Sequence[str]
) -> tuple[Twins, ...]:
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for row, content in contents.items():
        places[content].append(row)
    return tuple(
        Twins(tuple(names[row] for row in rows), tuple(splits[row] for row in rows))
        for rows in places.values()
        if len(rows) > 1
    )


def same_texts(corpus: Corpus) -> list[list[int]]:
    """Rows of captions equal but for capitals, blanks and a last full stop; of images only."""
    owner = corpus.owner.tolist()
    places: defaultdict[str, list[int]] = defaultdict(list)
    for row, text in enumerate(corpus.texts):
        if owner[row] >= 0 and text.strip():
            places[" ".join(text.lower().rstrip(" .").split())].append(row)
    return [rows for rows in places.values() if len(rows) > 1]


def _same_texts(corpus: Corpus) -> Iterator[Twins]:
    owner = corpus.owner.tolist()
    for rows in same_texts(corpus):
        yield Twins(
            tuple(repr(corpus.texts[row]) for row in rows),
            tuple(corpus.splits[owner[row]] for row in rows),
        )


def _lengths(texts: Sequence[str]) -> Lengths:
    words = torch.tensor([len(text.split()) for text in texts] or [0])
    empty = sum(not text.strip() for text in texts)
    return Lengths(int(words.min()), float(words.double().quantile(0.5)), int(words.max()), empty)


def _described(corpus: Corpus) -> str:
    kinds = []
    if corpus.pictures is not None:
        kinds.append("pictures")
    if corpus.features is not None:
        features = corpus.features
        boxes = " with boxes" if features.boxes is not None else ""
        kinds.append(
            f"features of {features.regions} x {features.width}, {features.values.dtype}{boxes}"
        )
    return " and ".join(kinds) or "ids only"


def _warnings(
    corpus: Corpus,
    counts: tuple[SplitCounts, ...],
    unreadable: tuple[str, ...],
    same_images: tuple[Twins, ...],
    same_texts: tuple[Twins, ...],
) -> Iterator[str]:
    names = [part.name for part in counts]
    for wanted, why in (
        ("dev", "the best epoch is chosen on"),
        ("test", "results are measured on"),
    ):
        if wanted not in names:
            yield f"there is no {wanted} split, which {why}"
    if unreadable and corpus.features is not None:
        yield f"{counted(len(unreadable), 'picture')} cannot be read, such as: {unreadable[0]}"
    if without := sum(part.without_text for part in counts):
        yield f"{counted(without, 'image')} without a caption"
    if orphans := int((corpus.owner < 0).sum()):
        yield f"{counted(orphans, 'caption')} describing no image"
    yield from _repeated(same_images, same_texts)
    yield from _odd(corpus)


def _repeated(images: tuple[Twins, ...], texts: tuple[Twins, ...]) -> Iterator[str]:
    across = [twins for twins in images if twins.across]
    within = [twins for twins in images if not twins.across]
    if across:
        yield f"{counted(len(across), 'image')} in more than one split, such as {across[0]}"
    if within:
        yield f"{counted(len(within), 'image')} more than once in a split, such as {within[0]}"
    if texts:
        yield f"{counted(len(texts), 'caption')} in more than one split, such as {texts[0]}"


def _odd(corpus: Corpus) -> Iterator[str]:
    if corpus.text_features is None and (empty := _lengths(corpus.texts).empty):
        yield f"{counted(empty, 'caption')} without a word"
    printed = [text for text in corpus.texts if text[:2] in ("b'", 'b"') and text[-1:] == text[1]]
    if printed:
        yield (
            f"{counted(len(printed), 'caption')} like {printed[0][:40]!r}, which are printed "
            "bytes: write them again as text"
        )
    if long := sum(len(text.split()) > LONG for text in corpus.texts):
        yield f"{counted(long, 'caption')} of more than {LONG} words, cut there by default"
