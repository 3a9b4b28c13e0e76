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
from counterfoil.scoring.encode import evaluation_mode, gather_shards, shard_index

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
    count, rank = len(inputs.texts), distributed.rank()
    each = -(-count // distributed.size())
    rows = shard_index(count, inputs.image.device)
    owner = torch.div(slots.pair, each, rounding_mode="floor")  # the process of each slot
    slots_here = owner == rank
    own_slots = WordSlots(slots.pair[slots_here] - rank * each, slots.place[slots_here])
    texts = model.encode_texts(inputs.texts.rows(rows))
    reading = model.read(inputs.images.rows(inputs.image[rows]), texts, want, own_slots)
    if distributed.size() == 1:
        return reading
    counts = owner.bincount(minlength=distributed.size()).tolist()

    def by_text(share: Tensor | None) -> Tensor | None:
        return None if share is None else distributed.gather_rows(share)[:count]

    def by_slot(share: Tensor | None) -> Tensor | None:
        if share is None:
            return None
        most = max(counts)  # every process sends as many
        padded = pad(share, (0, 0) * (share.dim() - 1) + (0, most - len(share)))
        rows = distributed.gather_rows(padded)
        return torch.cat([rows[n * most : n * most + real] for n, real in enumerate(counts)])

    return WordReading(
        score=by_text(reading.score),
        fill=by_slot(reading.fill),
        doubt=by_text(reading.doubt),
        correct=by_slot(reading.correct),
    )
