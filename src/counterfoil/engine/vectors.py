"""What a frozen model of one vector an item makes of a whole corpus: encoded once, kept on disk.

Both sides, for a model of which nothing but adapters behind its vectors is trained; where only the
sight of a model is frozen, `counterfoil.corpus.seen` keeps the states behind it.

A folder of the cache with ``images.npy`` (I, D) and ``texts.npy`` (T, D) float32, read through
memory maps, and ``vectors.json``, the digests that both are checked against when they are opened.
Batches go to the disk as they are made, so a run that was killed goes on where it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from counterfoil import world
from counterfoil.core.console import warn
from counterfoil.corpus.lens import CorpusLens, FeatureEye, Lens
from counterfoil.corpus.pixels import kept_at
from counterfoil.corpus.regions import Features
from counterfoil.engine.bags import Bags, BagWriter
from counterfoil.engine.encode import images_in_batches, texts_in_batches
from counterfoil.engine.identity import model_digest
from counterfoil.files import read_array, read_json, write_json
from counterfoil.matcher import Matcher
from counterfoil.records import Encoded

NOTE = "vectors.json"
KINDS = ("images", "texts")
_ROWS = 1 << 14  # written at once


def on_vectors(matcher: Matcher, lens: CorpusLens) -> CorpusLens:
    """A corpus of pictures as the vectors that a frozen model makes of it, worked out once.

    Every process of a group calls this. A corpus that has images alone, or texts alone, stays as
    it is.

    Args:
        matcher: makes one vector of an item; its weights and layers tell the vectors from others'.
        lens: what it sees of the corpus.

    Raises:
        ValueError: it makes several vectors of an item, or the corpus has no pictures.
    """
    corpus = lens.corpus
    if not (len(corpus) and corpus.texts):
        return lens
    if corpus.pictures is None:
        lens.images(torch.zeros(1, dtype=torch.long))  # which says what is wrong
    place = _place(matcher, lens)
    if not _whole(place):
        _make(place, matcher, lens)
    images, texts = (Features.of(read_array(_path(place, kind), kind)) for kind in KINDS)
    seen = replace(corpus, features=images, text_features=texts)
    return CorpusLens(Lens(FeatureEye(images.width), None), seen)


def kept_vectors(matcher: Matcher, lens: CorpusLens) -> tuple[Encoded, Encoded] | None:
    """Images and texts of a corpus as the same model, frozen, has encoded them before, if it has.

    Every process of a group calls this.

    Args:
        matcher: makes one vector of an item.
        lens: what it sees of the corpus.
    """
    corpus = lens.corpus
    if corpus.pictures is None or lens.lens.tokenizer is None:
        return None
    place = _place(matcher, lens)
    if not _whole(place):
        return None
    read = (torch.from_numpy(np.array(read_array(_path(place, kind), kind))) for kind in KINDS)
    images, texts = (vectors.unsqueeze(1) for vectors in read)
    ones = torch.ones(len(images), 1), torch.ones(len(texts), 1)
    return Encoded(images, ones[0].bool()), Encoded(texts, ones[1].bool())


def _place(matcher: Matcher, lens: CorpusLens) -> Path:
    corpus, tokenizer = lens.corpus, lens.lens.tokenizer
    assert corpus.pictures is not None
    assert tokenizer is not None
    texts = hashlib.sha256("\x00".join(corpus.texts).encode()).hexdigest()
    key = f"{model_digest(matcher)} {lens.lens.eye} {tokenizer.digest} {texts}"
    return kept_at(corpus.pictures, key, "vectors").with_suffix("")


def _whole(place: Path) -> bool:
    """Whether the vectors are there, undamaged, for every process."""
    there = (place / NOTE).is_file()
    fine = there and _checked(place)
    if there and not fine:
        warn(f"{place} is damaged; what it held is encoded again")
    return not world.largest(int(not fine))


@lru_cache(maxsize=64)
def _checked(place: Path) -> bool:
    try:
        noted = read_json(place / NOTE, "a note of vectors")
        return bool(noted == {kind: _digest(_path(place, kind)) for kind in KINDS})
    except (OSError, ValueError):
        return False


def _make(place: Path, matcher: Matcher, lens: CorpusLens) -> None:
    corpus, partial = lens.corpus, place.with_suffix(".partial")
    with _alone(place):
        _checked.cache_clear()
        if _whole(place):  # another run has made them meanwhile
            return
        for kind, encode, look, count in (
            ("images", images_in_batches, lens.images, len(corpus)),
            ("texts", texts_in_batches, lens.texts, len(corpus.texts)),
        ):
            writer = _writer(partial / kind) if world.rank() == 0 else None
            done = world.largest(writer.written.batches if writer else 0)
            try:
                _write(writer, encode(matcher, look, count, done=done))
            finally:
                if writer:
                    writer.close()
        if world.rank() == 0:
            _finish(place, partial, (len(corpus), len(corpus.texts)))
        world.wait()
        _checked.cache_clear()


def _write(writer: BagWriter | None, batches: Iterator[tuple[Tensor, Encoded]]) -> None:
    for rows, part in batches:
        if part.tokens.shape[1] != 1:
            raise ValueError(
                f"the frozen model makes {part.tokens.shape[1]} vectors of an item; adapters need "
                "a model that makes one, such as CLIP or SigLIP"
            )
        if writer:
            writer.put(rows, part)


def _writer(folder: Path) -> BagWriter:
    """Goes on with what was begun, unless it is damaged."""
    try:
        return BagWriter(folder, "fp32")
    except ValueError:
        shutil.rmtree(folder)
        return BagWriter(folder, "fp32")


def _finish(place: Path, partial: Path, counts: tuple[int, int]) -> None:
    """In row order, with digests; then what was begun takes its name."""
    for kind, count in zip(KINDS, counts):
        bags = Bags(partial / kind, count)
        shape = count, bags.written.width
        out = np.lib.format.open_memmap(_path(partial, kind), "w+", np.float32, shape)
        for rows in torch.split(torch.arange(count), _ROWS):
            out[rows.numpy()] = bags.vectors(rows).numpy()
        out.flush()
        del out, bags
        shutil.rmtree(partial / kind)
    write_json(partial / NOTE, {kind: _digest(_path(partial, kind)) for kind in KINDS})
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Lets one run at a time write here; others wait."""
    if world.rank():
        yield
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _path(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.npy"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
