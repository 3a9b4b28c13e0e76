from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

import bag_cases
import hub_cases
import train_cases
from counterfoil.core.types import ModalityBatch
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import SumTripletLoss
from counterfoil.models.layers.pretrained import BertTextTower, TimmGridTower
from counterfoil.models.layers.towers import GRU, MLPRegions, Regions
from counterfoil.papers.models.gpo import GPO
from counterfoil.training.step import TrainingStep

WORDS, WIDTH = 40, 8


def model(**options: object) -> GPO:
    torch.manual_seed(0)
    parts = {
        "image": MLPRegions(features=train_cases.WIDTH, width=WIDTH),
        "text": GRU(words=WORDS, word_width=6, width=WIDTH),
    }
    return GPO(**(parts | options))


def test_vectors_are_pooled_tower_outputs_at_length_one():
    host, items = model().eval(), train_cases.batch_of(train_cases.processor(), [0, 1, 5]).texts
    pooled = host.text_pool(host.text(items))
    found = host.encode_texts(items)
    assert found.tokens.shape == (3, 1, WIDTH)
    torch.testing.assert_close(found.tokens[:, 0], pooled / pooled.norm(dim=1, keepdim=True))
    raw = model(normalise_texts=False).eval().encode_texts(items)
    torch.testing.assert_close(raw.tokens[:, 0], pooled)


def test_each_side_has_a_pool_of_its_own():
    host = model()
    images, texts = (set(map(id, p.parameters())) for p in (host.image_pool, host.text_pool))
    assert images
    assert not images & texts
    assert sum(p.numel() for p in host.image_pool.parameters()) == 12_704


def test_an_image_without_regions_scores_zero():
    host = model().eval()
    items = ModalityBatch(
        torch.arange(2), torch.zeros(2, 3, 6), torch.zeros(2, 3, dtype=torch.bool)
    )
    assert not host.encode_images(items).tokens.any()


def test_words_of_a_pretrained_model_are_pooled(tmp_path):
    host = model(text=BertTextTower(name=hub_cases.bert(tmp_path), width=WIDTH)).eval()
    items = train_cases.batch_of(train_cases.processor(), [0, 1, 5]).texts
    alone = host.encode_texts(items.rows(slice(1, 2))).tokens
    torch.testing.assert_close(host.encode_texts(items).tokens[1:2], alone)


class Network(nn.Module):
    """A small network with the face of timm's."""

    num_features = 5

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, self.num_features, 4, stride=4)

    def forward_features(self, pixels):
        return self.conv(pixels)


def test_the_grid_of_a_network_that_is_trained_along(monkeypatch):
    made = types.SimpleNamespace(create_model=lambda *_, **__: Network())
    monkeypatch.setitem(sys.modules, "timm", made)
    host = model(image=TimmGridTower(name="any", width=WIDTH, pretrained=False, cell_drop=0.5))
    items = bag_cases.whole(torch.randn(8, 3, 16, 16))
    whole = host.eval().encode_images(items).tokens
    alone = host.encode_images(items.rows(slice(2, 3))).tokens
    torch.testing.assert_close(alone, whole[2:3])
    dropped = host.train().encode_images(items).tokens
    assert not torch.allclose(dropped, whole)
    dropped.sum().backward()
    assert host.image.body.conv.weight.grad.any()


@pytest.mark.parametrize("image", [MLPRegions, Regions])
def test_it_learns(image):
    host = model(image=image(features=train_cases.WIDTH, width=WIDTH, region_drop=0.2))
    step = TrainingStep(
        host, WeightedSum(terms={"triplet": (1.0, SumTripletLoss(reduction="mean"))})
    )
    made = train_cases.batch_of(train_cases.processor(), [0, 5, 10, 15])
    first, *told = train_cases.learnt(step, lambda: step(made), rate=0.02, steps=30)
    assert min(losses["triplet"] for losses in told[-3:]) < 0.5 * first["triplet"]
