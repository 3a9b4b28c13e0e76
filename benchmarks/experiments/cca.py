"""Closed-form CCA on frozen features: a baseline without gradient, and vectors to train on.

Image vectors are the mean and the maximum of an image's regions and the mean of its last 16 (the
grid of Flickr8k's features); caption vectors are TF-IDF of words and word pairs, reduced by a
truncated SVD. Regularised canonical correlation projects both; a direction counts by its
correlation (Gong et al., "A Multi-View Embedding Space", IJCV 2014, with a power of 1).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterfoil.core.io import atomic_folder, write_json, write_text
from counterfoil.data.dataset import ImageTextDataset

WIDTH = 256  # of the joint space
GRID = 16  # last regions of an image, pooled apart
WORDS = 1500  # width of a caption before CCA
RIDGE = 1.0, 0.3  # of images and of captions, as a share of the mean variance
SPLITS = ("train", "dev", "test")
_AT_ONCE = 1024
DIGITS = 5  # vectors are rounded, so that libraries' last digits do not change a run

Array = Any


def write_cca_vectors(dataset: ImageTextDataset, folder: Path, *, width: int = WIDTH) -> None:
    """Fit CCA on the training split and write the vectors of all splits, as a data set of vectors.

    Args:
        dataset: with features and the splits train, dev and test.
        folder: to write; `counterfoil.data.readers.embeddings` describes the files.
        width: of the vectors.

    Raises:
        ValueError: no features, or a split is missing.
    """
    parts = {name: dataset.split(name) for name in SPLITS}
    images = _standardise({name: _image_vectors(part) for name, part in parts.items()})
    texts = _caption_vectors({name: list(part.texts) for name, part in parts.items()}, width)
    own = images["train"][parts["train"].text_to_image.numpy()]
    by_image, by_text = _projections(own, texts["train"], width)
    captions = [" ".join(text.split()) for part in parts.values() for text in part.texts]
    starts = np.cumsum([0, *(len(part) for part in parts.values())])
    owners = [
        part.text_to_image.numpy() + start
        for part, start in zip(parts.values(), starts, strict=False)
    ]
    with atomic_folder(folder) as made:
        np.save(made / "images.npy", _unit([images[name] @ by_image for name in SPLITS]))
        np.save(made / "texts.npy", _unit([texts[name] @ by_text for name in SPLITS]))
        np.save(made / "owner.npy", np.concatenate(owners))
        write_json(made / "splits.json", [n for n, part in parts.items() for _ in range(len(part))])
        write_json(made / "image_ids.json", [i for part in parts.values() for i in part.image_ids])
        write_text(made / "captions.txt", "".join(f"{caption}{os.linesep}" for caption in captions))


def _image_vectors(part: ImageTextDataset) -> Array:
    """(I, 3F) pooled regions."""
    if part.features is None:
        raise ValueError(f"{part.name} has no features, and CCA needs them; give --features")
    pooled = []
    for rows in torch.arange(len(part)).split(_AT_ONCE):
        batch = part.features.take(rows)
        counts = batch.mask.sum(1, keepdim=True)
        highest = batch.values.masked_fill(~batch.mask.unsqueeze(2), -torch.inf).amax(1)
        mean, grid = batch.values.sum(1) / counts, batch.values[:, -GRID:].mean(1)
        pooled.append(torch.cat([mean, highest, grid], 1))
    return torch.cat(pooled).double().numpy()


def _caption_vectors(
    captions: dict[str, list[str]], width: int, words: int = WORDS
) -> dict[str, Array]:
    """(T, `words`) reduced TF-IDF, centred on the training captions."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    terms = TfidfVectorizer(
        sublinear_tf=True, min_df=3, ngram_range=(1, 2), token_pattern=r"[a-z]+"
    )
    train = terms.fit_transform(captions["train"])
    reduce = TruncatedSVD(max(width, min(words, train.shape[1] - 1)), random_state=0).fit(train)
    made = {n: reduce.transform(terms.transform(some)) for n, some in captions.items()}
    mean = made["train"].mean(0)
    return {name: vectors - mean for name, vectors in made.items()}


def _standardise(vectors: dict[str, Array]) -> dict[str, Array]:
    mean, deviation = vectors["train"].mean(0), vectors["train"].std(0) + 1e-6
    return {name: (value - mean) / deviation for name, value in vectors.items()}


def _projections(images: Array, texts: Array, width: int) -> tuple[Array, Array]:
    """(F, width) and (W, width) of paired training vectors."""
    count = len(images)
    left = _inverse_root(images.T @ images / count, RIDGE[0])
    right = _inverse_root(texts.T @ texts / count, RIDGE[1])
    u, correlation, v = np.linalg.svd(left @ (images.T @ texts / count) @ right)
    scale = correlation[:width]
    return left @ u[:, :width] * scale, right @ v[:width].T * scale


def _inverse_root(covariance: Array, ridge: float) -> Array:
    eye = np.eye(len(covariance)) * (ridge * np.trace(covariance) / len(covariance))
    values, vectors = np.linalg.eigh(covariance + eye)
    return (vectors / np.sqrt(values)) @ vectors.T


def _unit(parts: list[Array]) -> Array:
    vectors = np.concatenate(parts)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    return vectors.round(DIGITS).astype(np.float32)
