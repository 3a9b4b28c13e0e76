"""Matchers and plain-loop oracles for the engine's tests."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import RetrievalModel
from counterfoil.scoring.encode import EmbeddedDataset


class Dot(RetrievalModel):
    """Items are their own encodings; the score is the inner product of masked sums."""

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return Embeddings(images.values, images.mask)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return Embeddings(texts.values, texts.mask)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return (_sum(images) * _sum(texts)).sum(-1)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return _sum(images) @ _sum(texts).T


@final
class Noisy(RetrievalModel):
    """Encodes through dropout and a linear map, so that modes and devices matter."""

    def __init__(self, width: int = 6, gram: bool = False) -> None:
        super().__init__()
        self.gram = gram
        self.image, self.text = nn.Linear(width, width), nn.Embedding(50, width)
        self.drop = nn.Dropout(0.5)
        self.seen: list[tuple[int, ...]] = []

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        tokens = self.drop(self.image(images.values))
        return Embeddings(tokens, images.mask, tokens @ tokens.mT if self.gram else None)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        self.seen.append(tuple(texts.values.shape))
        return Embeddings(self.drop(self.text(texts.values)), texts.mask)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return (_sum(images) * _sum(texts)).sum(-1)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return _sum(images) @ _sum(texts).T


def _sum(encoded: Embeddings) -> Tensor:
    return encoded.tokens.masked_fill(~encoded.mask.unsqueeze(-1), 0).sum(1)


def vectors(values: Tensor) -> Embeddings:
    """(N, D) vectors as bags of one."""
    return Embeddings(values.unsqueeze(1), torch.ones(len(values), 1, dtype=torch.bool))


def given(scores: Tensor) -> EmbeddedDataset:
    """A member whose score matrix is this one, exactly: images are its rows, texts are places."""
    return EmbeddedDataset(Dot(), vectors(scores), vectors(torch.eye(scores.shape[1])))


def ranking(scores: Tensor, k: int, true: Tensor) -> tuple[list[list[int]], list[list[float]]]:
    """Rows and scores of the k best in each row of scores by a plain sort; true ones left out."""
    rows, values = [], []
    for line, own in zip(scores.tolist(), true.tolist()):
        left = [(-score, row) for row, score in enumerate(line) if not own[row]]
        left = sorted(pair for pair in left if pair[0] < float("inf"))[:k]
        rows.append([row for _, row in left] + [-1] * (k - len(left)))
        values.append([-score for score, _ in left] + [float("-inf")] * (k - len(left)))
    return rows, values


def best_rank(line: list[float], own: list[bool], ties: str) -> int:
    """Rank of the best true one in a list of scores, by looking at every other."""
    true = [(-score, row) for row, score in enumerate(line) if own[row]]
    if not true:
        return -1
    level, place = min(true)
    before = 0
    for row, score in enumerate(line):
        if -score < level:
            before += 1
        elif -score == level and not own[row]:
            before += {"optimistic": 0, "pessimistic": 1, "row": int(row < place)}[ties]
    return before
