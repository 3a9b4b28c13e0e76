"""Asks teachers about a whole split and writes down what they say, straight to the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil import __version__, world
from counterfoil.core.resumable import WorkStopped
from counterfoil.corpus.lens import CorpusLens
from counterfoil.engine.bags import BagPrecision, BagWriter
from counterfoil.engine.encode import (
    encode_images,
    encode_texts,
    images_in_batches,
    texts_in_batches,
)
from counterfoil.engine.modes import evaluating
from counterfoil.matcher import Matcher
from counterfoil.negatives.store import Source
from counterfoil.negatives.taught import TAUGHT, Form, Taught, TaughtManifest
from counterfoil.records import Encoded

SAMPLE = 256  # images, and as many texts, whose scores tell a teacher's mean and deviation
_SAME = 1e-5  # how far an inner product may be from a teacher's score


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A model that is to teach.

    Attributes:
        matcher: the model.
        lens: what it sees of the split that is taught.
        source: its model and weights, in words.
    """

    matcher: Matcher
    lens: CorpusLens
    source: Source


def write(
    folder: Path,
    trained: Sequence[Trained],
    *,
    form: Form = "stored",
    precision: BagPrecision = "fp32",
    stop: Callable[[], bool] = lambda: False,
) -> TaughtManifest:
    """Write down what a split looks like to its teachers, from where it was stopped on.

    Every process of a group calls this; the first one writes. Encodings go to the disk as they are
    made, into ``FOLDER.partial``, which takes the folder's name when all are there.

    Args:
        folder: where to.
        trained: the teachers.
        form: "stored", or "models" for the manifest alone.
        precision: of what is stored.
        stop: asked after every batch; when it answers True on any process, all of them stop.

    Raises:
        ValueError: what was begun there is of other teachers or data.
        WorkStopped: a process was asked to stop.
    """
    corpus = trained[0].lens.corpus
    manifest = TaughtManifest(
        corpus=corpus.fingerprint,
        form=form,
        precision=precision,
        image_count=len(corpus),
        text_count=len(corpus.texts),
        teachers=tuple(_taught(one) for one in trained),
        version=__version__,
    )
    if TAUGHT.exists(folder) and (there := TAUGHT.read_manifest(folder)).same(manifest):
        return there
    partial = partial_of(folder)
    manifest = _begin(partial, manifest)
    if form == "stored":
        for number, one in enumerate(trained):
            _store(one, partial / f"{number}", precision, stop)
    world.wait()
    if world.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    world.wait()
    return manifest


def partial_of(folder: Path) -> Path:
    """Where `write` keeps how far it is."""
    return folder.with_name(f"{folder.name}.partial")


def _begin(partial: Path, manifest: TaughtManifest) -> TaughtManifest:
    """The manifest of what was begun, or now is."""
    world.wait()  # nobody looks before everybody has what is in the manifest
    if TAUGHT.exists(partial):
        begun = TAUGHT.read_manifest(partial)
        if not begun.same(manifest):
            raise ValueError(f"{partial} is of other teachers or data; delete it")
        manifest = begun
    world.wait()  # nobody writes before everybody has looked
    if world.rank() == 0 and not TAUGHT.exists(partial):
        TAUGHT.write_manifest(partial, manifest)
    world.wait()
    return manifest


def _store(one: Trained, folder: Path, precision: BagPrecision, stop: Callable[[], bool]) -> None:
    """Encode all images and texts straight to the disk."""
    corpus = one.lens.corpus
    for name, encode, look, count in (
        ("images", images_in_batches, one.lens.images, len(corpus)),
        ("texts", texts_in_batches, one.lens.texts, len(corpus.texts)),
    ):
        writer = BagWriter(folder / name, precision) if world.rank() == 0 else None
        done = world.largest(writer.written.batches if writer else 0)
        for rows, part in encode(one.matcher, look, count, done=done):
            if writer:
                writer.put(rows, part)
            if world.largest(int(stop())):
                if writer:
                    writer.close()
                raise WorkStopped
        if writer:
            writer.close()


def _taught(one: Trained) -> Taught:
    """A teacher, measured on a sample of pairs."""
    corpus = one.lens.corpus
    images, texts = _spread(len(corpus)), _spread(len(corpus.texts))
    seen = encode_images(one.matcher, lambda rows: one.lens.images(images[rows]), len(images))
    read = encode_texts(one.matcher, lambda rows: one.lens.texts(texts[rows]), len(texts))
    device = world.device()
    with evaluating([one.matcher]):
        scores = one.matcher.grid(seen.to(device), read.to(device)).cpu()
    wrong = scores[corpus.owner[texts] != images.unsqueeze(1)].double()
    return Taught(
        source=one.source,
        scale=one.matcher.score_scale,
        mean=float(wrong.mean()) if len(wrong) else 0.0,
        deviation=float(wrong.std()) if len(wrong) > 1 else 0.0,
        plain=_plain(seen, read, scores),
    )


def _plain(images: Encoded, texts: Encoded, scores: Tensor) -> bool:
    if images.tokens.shape[1] > 1 or texts.tokens.shape[1] > 1:
        return False
    if images.tokens.shape[2] != texts.tokens.shape[2]:
        return False
    products = images.tokens[:, 0] @ texts.tokens[:, 0].T
    room = _SAME * max(1.0, float(scores.abs().max()))
    return float((products - scores).abs().max()) <= room


def _spread(count: int) -> Tensor:
    """Up to `SAMPLE` rows, evenly over `count`."""
    return torch.linspace(0, count - 1, min(count, SAMPLE), dtype=torch.float64).long()
