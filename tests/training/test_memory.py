"""Gradient caching and gradient checkpointing: the plain gradient, in less memory."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import hub_cases
import train_cases
from counterfoil.core.types import Batch, ModalityBatch, Pairs
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.models.clip import DualEncoder
from counterfoil.models.frozen import FrozenAdapters
from counterfoil.training.step import TrainingStep, checkpointed


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return hub_cases.clip(tmp_path_factory.mktemp("hub") / "clip")


def batch_of(count: int, model: DualEncoder) -> Batch:
    rng, rows = torch.Generator().manual_seed(0), torch.arange(count)
    side = model.body.config.vision_config.image_size
    ids = torch.randint(3, 9, (count, 6), generator=rng)
    ids[:, -1] = model.body.config.text_config.eos_token_id
    pixels = torch.randn(count, 3, side, side, generator=rng)
    images = ModalityBatch(rows, pixels, torch.ones(count, 1, dtype=torch.bool))
    texts = ModalityBatch(rows, ids, torch.ones(count, 6, dtype=torch.bool))
    return Batch(0, rows, rows, images, texts, (count, count), Pairs(rows, rows))


def stepped(clip: str, *, piece: int = 0, again: bool = False, dropout: float = 0.0):
    """Loss and gradients of a step, and how often a layer of the image tower ran."""
    torch.manual_seed(0)
    model = DualEncoder(name=clip).double().train()
    for module in model.modules():
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = dropout
    loss = WeightedSum(terms={"nce": (1.0, InfoNCELoss(temperature=0.05))})
    step, calls = TrainingStep(model, loss.double()), []
    layer = next(
        m for n, m in model.named_modules() if n.endswith("vision_model.encoder.layers.0.self_attn")
    )
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    batch = batch_of(7, model)
    torch.manual_seed(3)
    with checkpointed(model) if again else nullcontext():
        found = train_cases.stepped(step, batch, piece)
    return found, len(calls)


@pytest.mark.parametrize(
    ("piece", "again", "runs"), [(0, True, 2), (3, False, 6), (3, True, 6)], ids=str
)
def test_the_gradient_is_the_plain_one(clip, piece, again, runs):
    """A layer runs once more, at least; pieces of 7 items are three."""
    plain, once = stepped(clip)
    found, calls = stepped(clip, piece=piece, again=again)
    assert once == 1
    assert calls >= runs
    assert max(abs(g).max() for g in plain["gradients"].values()) > 1e-2
    train_cases.assert_same_step(found, plain, within=1e-9)


def test_dropout_is_drawn_once(clip):
    """What is computed again has the same dropout."""
    plain, _ = stepped(clip, dropout=0.5)
    found, _ = stepped(clip, again=True, dropout=0.5)
    other, _ = stepped(clip)
    assert plain["losses"] != pytest.approx(other["losses"], rel=1e-3)
    train_cases.assert_same_step(found, plain, within=1e-9)


def test_it_ends_with_the_training(clip):
    model = DualEncoder(name=clip)

    def on() -> bool:
        return any(getattr(m, "gradient_checkpointing", False) for m in model.modules())

    with checkpointed(model):
        assert on()
    assert not on()
    with pytest.raises(RuntimeError), checkpointed(model):
        raise RuntimeError
    assert not on()


def test_a_model_of_open_clip_is_switched():
    class Tower(nn.Module):
        def set_grad_checkpointing(self, enable: bool = True) -> None:
            self.enabled = enable

    model = nn.Sequential(nn.Linear(1, 1), Tower())
    with checkpointed(model):
        assert model[1].enabled
    assert not model[1].enabled


def test_a_model_without_such_layers_is_refused():
    message = "FrozenAdapters holds no model of transformers.*set grad_cache"
    with pytest.raises(ValueError, match=message), checkpointed(FrozenAdapters(width=4, hidden=4)):
        pass
