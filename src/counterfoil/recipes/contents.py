"""What is in a data set, told apart by content and not by where it lies."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.pictures import Pictures
from counterfoil.corpus.regions import Features
from counterfoil.negatives.written import Written
from counterfoil.negatives.written_store import foils_digest
from counterfoil.spec import Spec

PICTURES, ROWS = 16, 64  # how many are looked at


def contents(corpus: Corpus) -> str:
    """Sixteen hex digits of ids, captions and splits, and of a sample of pictures and features."""
    digest = hashlib.sha256(corpus.fingerprint.encode())
    digest.update("\x00".join(corpus.splits).encode())
    for name, features in (("images", corpus.features), ("texts", corpus.text_features)):
        if features is not None:
            digest.update(name.encode())
            digest.update(_features(features))
    if corpus.pictures is not None:
        digest.update(_pictures(corpus.pictures))
    return digest.hexdigest()[:16]


def foils_drawn(call: Any) -> list[str]:
    """Digests of the folders of captions, written before, that a written call draws from.

    Args:
        call: of a proposer, or anything inside one.
    """
    match call:
        case Spec():
            found = [digest for inner in call.arguments.values() for digest in foils_drawn(inner)]
            folder = call.arguments.get("folder") if call.make is Written else None
            return [*found, foils_digest(Path(folder))] if isinstance(folder, str) else found
        case tuple() | list():
            return [digest for inner in call for digest in foils_drawn(inner)]
    return []


def _features(features: Features) -> bytes:
    rows = _spread(len(features), ROWS)
    values, _ = features.look(rows)
    said = b"" if features.classes is None else features.likely(rows).numpy().tobytes()
    shape = f"{tuple(values.shape)} {features.values.dtype}".encode()
    return shape + values.numpy().tobytes() + said


def _pictures(pictures: Pictures) -> bytes:
    digest = hashlib.sha256()
    for row in _spread(len(pictures), PICTURES).tolist():
        try:
            picture = pictures.open(row)
        except ValueError:  # whoever needs it says so
            digest.update(b"unreadable")
        else:
            digest.update(f"{picture.size}".encode() + picture.tobytes())
    return digest.digest()


def _spread(count: int, most: int) -> Tensor:
    """Up to `most` rows, evenly over `count`."""
    return torch.linspace(0, max(count - 1, 0), min(count, most), dtype=torch.float64).long()
