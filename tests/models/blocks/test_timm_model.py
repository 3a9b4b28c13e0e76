from __future__ import annotations

import sys

import pytest
import torch

import matcher_cases
import vision_cases
from counterfoil.core.types import ModalityBatch
from counterfoil.models.layers.pretrained import TimmTower, timm_format


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", vision_cases.timm())


def test_states_are_read_in_place_of_pixels():
    images = matcher_cases.pixels(3, torch.Generator().manual_seed(0))
    tower = TimmTower(name="resnet8", width=4, trained=False)
    states = tower.states(images)
    assert states.shape == (3, 1, 6)
    assert not states.requires_grad
    seen = ModalityBatch(images.ids, states, torch.ones(3, 1, dtype=torch.bool))
    torch.testing.assert_close(tower(seen).tokens, tower(images).tokens)
    assert tower(images).tokens.shape == (3, 1, 4)


@pytest.mark.parametrize("trained", [True, False])
def test_what_is_trained(trained):
    images = matcher_cases.pixels(3, torch.Generator().manual_seed(0))
    tower = TimmTower(name="resnet8", width=4, trained=trained).train()
    before = tower.body.norm.running_mean.clone()
    tower(images).tokens.sum().backward()
    assert tower.fc.weight.grad is not None
    assert (tower.body.conv.weight.grad is not None) == trained
    assert (tower.cache_key is None) == trained
    assert trained or tower.name in tower.cache_key  # weights tell no strides
    torch.testing.assert_close(tower.body.norm.running_mean, before)
    assert not tower.body.training


def test_formats():
    form = timm_format("resnet8")
    assert (form.size, form.mean, form.deviation) == (16, vision_cases.MEAN, vision_cases.DEVIATION)
    assert not form.crop
    with pytest.raises(ValueError, match=r"'resnet9' is no model of timm; near are: resnet8"):
        timm_format("resnet9")
    with pytest.raises(ValueError, match="width=0 is not possible"):
        TimmTower(name="resnet8", width=0)
