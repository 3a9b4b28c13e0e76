"""Several processes find bit for bit what one does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import processes
from counterfoil.core.types import ModalityBatch
from counterfoil.scoring.encode import EmbeddedDataset, encode_images, encode_texts
from counterfoil.scoring.reducers import DenseScores, Ranks, TopK, TrueScores
from counterfoil.scoring.stream import stream_scores
from engine_cases import Dot, Noisy, vectors


def sweep_everything(images: int) -> list[np.ndarray]:
    rng = torch.Generator().manual_seed(3)
    texts = 3 * images
    left = torch.randn(images, 12, generator=rng)
    right = torch.randn(texts, 12, generator=rng)
    right[1::7] = right[0]  # ties
    text_to_image = torch.randint(-1, images, (texts,), generator=rng)
    reducers = (
        TopK("image", images, 7, text_to_image),
        TopK("text", texts, 7, text_to_image),
        TopK("image", images, 200),
        Ranks("image", images, text_to_image),
        Ranks("text", texts, text_to_image),
        TrueScores(text_to_image),
        DenseScores(images, texts),
    )
    member = EmbeddedDataset(Dot(), vectors(left), vectors(right))
    stream_scores([member, member], reducers, tile=(32, 64))
    lists = [part for r in reducers[:3] if isinstance(r, TopK) for part in (r.rows, r.scores)]
    ranks = [
        r.ranks(rule)
        for r in reducers
        if isinstance(r, Ranks)
        for rule in ("optimistic", "pessimistic", "row")
    ]
    return [part.numpy() for part in (*lists, *ranks, reducers[-2].scores, reducers[-1].scores)]


def encode_everything(count: int) -> list[np.ndarray]:
    torch.manual_seed(0)
    model = Noisy(gram=True)
    values = torch.randn(count, 3, 6)
    lengths = torch.randint(1, 9, (count,))
    words = torch.randint(1, 50, (count, 8))

    def pictures(rows):
        return ModalityBatch(rows, values[rows], torch.ones(len(rows), 3, dtype=torch.bool))

    def captions(rows):
        mask = torch.arange(int(lengths[rows].max())) < lengths[rows].unsqueeze(1)
        return ModalityBatch(rows, words[rows][:, : mask.shape[1]], mask)

    images = encode_images(model, pictures, count, batch=4)
    texts = encode_texts(model, captions, count, batch=4)
    assert images.gram is not None
    assert texts.gram is None
    return [t.numpy() for t in (images.tokens, images.mask, images.gram, texts.tokens, texts.mask)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "worker, count",
    [
        (sweep_everything, 75),
        (sweep_everything, 20),
        (encode_everything, 22),
        (encode_everything, 3),
    ],
)
def test_as_one(worker, count, size):
    torch.set_num_threads(1)
    alone = worker(count)
    for together in processes.run(worker, size, count):
        for a, b in zip(alone, together, strict=True):
            assert np.array_equal(a, b)
            assert a.dtype == b.dtype
