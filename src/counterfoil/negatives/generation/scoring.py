"""Scores and word heads of many pairs, computed in parts and shared between processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.core import distributed
from counterfoil.core.types import (
    Embeddings,
    ModalityBatch,
    Pairs,
    WordHead,
    WordHeadModel,
    WordReading,
    WordSlots,
)
from counterfoil.models.base import RetrievalModel
from counterfoil.scoring.encode import evaluation_mode, gather_shards

TEXTS_AT_ONCE = 1024


@final
@dataclass(frozen=True, slots=True)
class PairInputs:
    """Texts paired with images.

    Attributes:
        images: I encoded images.
        texts: P texts.
        image: (P,) index of each text's image.
    """

    images: Embeddings
    texts: ModalityBatch
    image: Tensor


def score_in_parts(model: RetrievalModel, inputs: PairInputs) -> Tensor:
    """Score (P,) pairs in evaluation mode without a graph, each process a share of them."""
    count, device = len(inputs.texts), inputs.image.device

    def score(rows: Tensor | slice) -> Tensor:
        texts, image = inputs.texts.rows(rows), inputs.image[rows]
        parts = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = slice(start, start + TEXTS_AT_ONCE)
            encoded = model.encode_texts(texts.rows(part))
            pairs = Pairs(image[part], torch.arange(len(encoded), device=device))
            parts.append(model.score_indices(inputs.images, encoded, pairs))
        return torch.cat(parts)

    if not count:
        return torch.zeros(0, device=device)
    with evaluation_mode([model]):
        return gather_shards(count, score, device)


def predict_words(model: RetrievalModel, inputs: PairInputs, slots: WordSlots) -> Tensor:
    """Return the (M, V) logits of the words in the slots, as `read_in_parts` computes them."""
    logits = read_in_parts(model, inputs, frozenset({WordHead.FILL}), slots).fill
    assert logits is not None
    return logits


def read_in_parts(
    model: RetrievalModel, inputs: PairInputs, want: frozenset[WordHead], slots: WordSlots
) -> WordReading:
    """Run word heads on all texts, each process on a share; the result is the same on all.

    Args:
        model: a model with word heads.
        inputs: P texts, at least one, with their images.
        want: the heads.
        slots: M places in the texts, in the order of the texts.
    """
    assert isinstance(model, WordHeadModel), "the step checks that it reads words"
    count, device = len(inputs.texts), inputs.image.device
    begin, end = _bounds(count, distributed.rank())
    rows = torch.arange(begin, end, device=device)
    inside = (slots.pair >= begin) & (slots.pair < end)
    own_slots = WordSlots(slots.pair[inside] - begin, slots.place[inside])
    texts = model.encode_texts(inputs.texts.rows(rows))
    reading = model.read(inputs.images.rows(inputs.image[rows]), texts, want, own_slots)
    if distributed.size() == 1:
        return reading
    by_text, by_slot = _shares(count, slots)
    return WordReading(
        score=_gather_share(reading.score, by_text),
        fill=_gather_share(reading.fill, by_slot),
        doubt=_gather_share(reading.doubt, by_text),
        correct=_gather_share(reading.correct, by_slot),
    )


_Share = list[tuple[int, bool]]  # rows that each process sends, and whether they count


def _bounds(count: int, rank: int) -> tuple[int, int]:
    """Return the bounds of a process's share of rows; the last row if it has none."""
    each = -(-count // distributed.size())
    begin = min(rank * each, count - 1)
    return begin, max(min((rank + 1) * each, count), begin + 1)


def _shares(count: int, slots: WordSlots) -> tuple[_Share, _Share]:
    """Return the share of each process of the texts, and of the slots."""
    each = -(-count // distributed.size())
    texts, words = [], []
    for rank in range(distributed.size()):
        begin, end = _bounds(count, rank)
        real = rank * each < count
        inside = int(((slots.pair >= begin) & (slots.pair < end)).sum())
        texts.append((end - begin, real))
        words.append((inside, real))
    return texts, words


def _gather_share(share: Tensor | None, shares: _Share) -> Tensor | None:
    """Gather the rows of all processes that count, with their gradients."""
    if share is None:
        return None
    most = max(rows for rows, _ in shares)  # every process sends as many
    padded = pad(share, (0, 0) * (share.dim() - 1) + (0, most - len(share)))
    gathered = distributed.gather_rows(padded)
    starts = (rank * most for rank in range(len(shares)))
    parts = zip(starts, shares, strict=True)
    return torch.cat([gathered[start : start + rows] for start, (rows, real) in parts if real])
