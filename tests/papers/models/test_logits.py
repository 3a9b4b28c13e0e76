"""Models that are trained on probabilities rank by logits: near 1, many logits are one float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from counterfoil.core.types import Pairs, WordHead
from papers_matcher_cases import ALL

TRAINED_ON_PROBABILITIES = [
    case for case in ALL if case.name.startswith(("sgraf", "uniter", "vilt", "blip"))
]
HEADS = ("says.rank", "says.match", "itm_head", "rank")  # the last layer of each


def final_layer(model: nn.Module) -> nn.Linear:
    modules = dict(model.named_modules())
    return next(modules[name] for name in HEADS if isinstance(modules.get(name), nn.Linear))


@torch.no_grad()
@pytest.mark.parametrize("case", TRAINED_ON_PROBABILITIES, ids=lambda case: case.name)
def test_different_pairs_do_not_tie(case):
    model, rng = case.build(), torch.Generator().manual_seed(3)
    images, texts = model.encode_images(case.images(9, rng)), model.encode_texts(case.texts(9, rng))
    head, spread = final_layer(model), model.score_matrix(images, texts).std()
    head.weight.mul_(0.15 / spread)
    head.bias.zero_()[-1] = 14.5
    scores = model.score_matrix(images, texts)
    assert 13 < scores.min() < scores.max() < 16
    assert len(scores.unique()) > 60  # of 81
    assert len(scores.sigmoid().unique()) < 15
    rows = torch.arange(9)
    for found in (
        model.score_pairs(images, texts),
        model.score_indices(images, texts, Pairs(rows, rows)),
    ):
        torch.testing.assert_close(found, scores.diagonal(), rtol=0, atol=1e-4)
    if hasattr(model, "read"):
        score = model.read(images, texts, frozenset({WordHead.SCORE})).score
        torch.testing.assert_close(score, scores.diagonal(), rtol=0, atol=1e-4)
