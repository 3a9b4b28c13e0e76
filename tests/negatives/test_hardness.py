"""Hardness of negatives against scores looked up by hand."""

from __future__ import annotations

import torch

from counterfoil.core.types import Embeddings
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.negatives.diagnose import hardness
from counterfoil.scoring.encode import EmbeddedDataset


def member(seed, images=7, texts=21):
    rng = torch.Generator().manual_seed(seed)
    pools = []
    for count in (images, texts):
        tokens = torch.nn.functional.normalize(torch.randn(count, 1, 6, generator=rng), dim=-1)
        pools.append(Embeddings(tokens, torch.ones(count, 1, dtype=torch.bool)))
    return EmbeddedDataset(EmbeddingModel(), *pools)


def test_every_number_is_a_score_of_its_kind():
    text_to_image = torch.arange(21) // 3
    members = [member(0), member(1)]
    whole = torch.stack([m.model.score_matrix(m.images, m.texts) for m in members]).mean(0)
    true = text_to_image == torch.arange(7)[:, None]
    mined = whole.masked_fill(true, -torch.inf).topk(4, 1).indices.int()
    found = hardness(
        members, text_to_image, mined, batch=21, samples=21, rng=torch.Generator().manual_seed(3)
    )
    assert len(found.positive) == len(found.online) == len(found.offline) == 21
    hardest = whole.masked_fill(true, -torch.inf).amax(1)
    expected = hardest.repeat_interleave(3).sort().values  # a batch of all captions
    torch.testing.assert_close(found.online.sort().values, expected)
    torch.testing.assert_close(found.positive.sort().values, whole[true].sort().values)
    listed = whole.gather(1, mined.long()).flatten()
    assert all((listed - score).abs().min() < 1e-6 for score in found.offline)


def test_short_lists_and_orphans_are_passed_over():
    text_to_image = torch.arange(21) // 3
    text_to_image[-3:] = -1
    mined = torch.full((7, 2), -1, dtype=torch.int32)
    mined[0] = torch.tensor([20, -1])
    found = hardness(
        [member(0)],
        text_to_image,
        mined,
        batch=50,
        samples=10,
        rng=torch.Generator().manual_seed(0),
    )
    score = member(0).model.score_matrix(member(0).images, member(0).texts)[0, 20]
    assert len(found.offline) == 3
    torch.testing.assert_close(found.offline, score.expand(3))
    assert found.batch == 18
