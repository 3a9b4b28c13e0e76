from __future__ import annotations

import pytest
import torch

from counterfoil.core.types import ModalityBatch
from counterfoil.models.embeddings import EmbeddingModel


def items(*shape: int) -> ModalityBatch:
    return ModalityBatch(torch.arange(shape[0]), torch.randn(*shape), torch.ones(shape[:2]).bool())


def test_cosine_or_product():
    images, texts = items(2, 1, 3), items(4, 1, 3)
    v, w = images.values[:, 0], texts.values[:, 0]
    for normalise in (True, False):
        host = EmbeddingModel(normalise=normalise)
        expected = v @ w.T / (v.norm(dim=1)[:, None] * w.norm(dim=1) if normalise else 1)
        grid = host.score_matrix(host.encode_images(images), host.encode_texts(texts))
        torch.testing.assert_close(grid, expected)


def test_several_vectors_are_refused():
    with pytest.raises(ValueError, match=r"image vectors have shape \(2, 3, 4\)"):
        EmbeddingModel().encode_images(items(2, 3, 4))


def test_different_widths_are_refused():
    host = EmbeddingModel()
    with pytest.raises(ValueError, match="image vectors are 3 wide and text vectors 4"):
        host.score_matrix(host.encode_images(items(2, 1, 3)), host.encode_texts(items(2, 1, 4)))
