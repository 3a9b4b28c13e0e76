"""Digests of a data set's content, independent of its location."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Self, final

import torch
from torch import Tensor

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import Pictures

PICTURES, ROWS = 16, 64  # sample sizes: a whole data set would take minutes to read


def data_contents(dataset: ImageTextDataset) -> str:
    """Sixteen hex digits of ids, captions and splits, and of a sample of pictures and features."""
    digest = hashlib.sha256(dataset.fingerprint.encode())
    digest.update("\x00".join(dataset.splits).encode())
    digest.update("".join(f"\x00{name} {w}" for name, w in dataset.datasets.items()).encode())
    for name, features in (("images", dataset.features), ("texts", dataset.text_features)):
        if features is not None:
            digest.update(name.encode())
            digest.update(_feature_bytes(features))
    digest.update(_dependency_bytes(dataset))
    if dataset.pictures is not None:
        digest.update(_picture_digest(dataset.pictures))
    return digest.hexdigest()[:16]


@final
@dataclass(frozen=True, slots=True)
class ContentDigests:
    """What tells that pictures or features were exchanged behind the same ids and captions.

    Attributes:
        pictures: hash of the sizes of all picture files and of the pixels of a sample; "" for none.
        features: hash of a sample of the features of images and texts, and of all dependencies;
            "" without features.
    """

    pictures: str = ""
    features: str = ""

    @classmethod
    def of(cls, dataset: ImageTextDataset) -> Self:
        """The digests of a data set; times and places of files do not count."""
        pictures, features = "", hashlib.sha256()
        if dataset.pictures is not None:
            sizes = map(dataset.pictures.byte_count, range(len(dataset)))
            digest = hashlib.sha256(",".join(map(str, sizes)).encode())
            digest.update(_picture_digest(dataset.pictures))
            pictures = digest.hexdigest()[:16]
        stored = [part for part in (dataset.features, dataset.text_features) if part is not None]
        for part in stored:
            features.update(_feature_bytes(part))
        features.update(_dependency_bytes(dataset))
        return cls(pictures, features.hexdigest()[:16] if stored else "")

    def exchanged(self, now: ContentDigests) -> tuple[str, ...]:
        """Names of what has another digest now; what one of the two lacks is not compared."""
        names = [each.name for each in fields(self)]
        pairs = [(name, getattr(self, name), getattr(now, name)) for name in names]
        return tuple(name for name, old, new in pairs if old and new and old != new)


def _feature_bytes(features: FeatureArray) -> bytes:
    rows = _sample_rows(len(features), ROWS)
    values, _ = features.take_unchecked(rows)
    classes = b"" if features.classes is None else features.likely(rows).numpy().tobytes()
    shape = f"{tuple(values.shape)} {features.values.dtype}".encode()
    return shape + values.numpy().tobytes() + classes


def _dependency_bytes(dataset: ImageTextDataset) -> bytes:
    """Numbers of pairs and the pairs, whatever the most of any text is; b"" without a parser."""
    pairs = dataset.dependencies
    if pairs is None:
        return b""
    given = pairs[..., 0] >= 0
    return given.sum(1).numpy().tobytes() + pairs[given].numpy().tobytes()


def _picture_digest(pictures: Pictures) -> bytes:
    digest = hashlib.sha256()
    for row in _sample_rows(len(pictures), PICTURES).tolist():
        try:
            picture = pictures.open(row)
        except ValueError:  # a stage that needs the picture reports it
            digest.update(b"unreadable")
        else:
            digest.update(f"{picture.size}".encode() + picture.tobytes())
    return digest.digest()


def _sample_rows(count: int, most: int) -> Tensor:
    """Up to `most` rows, evenly over `count`."""
    return torch.linspace(0, max(count - 1, 0), min(count, most), dtype=torch.float64).long()
