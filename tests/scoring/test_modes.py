from __future__ import annotations

import pytest
import torch
from torch import nn

from counterfoil.scoring.encode import evaluation_mode
from engine_cases import Noisy


class Noting(nn.Linear):
    """Notes how often its mode is set."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.notes: list[bool] = []

    def __setattr__(self, name: str, value: object) -> None:
        if name == "training" and "notes" in self.__dict__:
            self.notes.append(bool(value))
        super().__setattr__(name, value)


def test_every_part_is_as_it_was_whatever_the_block_did():
    model = Noisy().train()
    model.text.eval()

    def block() -> None:
        with evaluation_mode([model]):
            assert not any(part.training for part in model.modules())
            model.text.train()
            raise RuntimeError("of the block")

    with pytest.raises(RuntimeError, match="of the block"):
        block()
    assert model.training
    assert model.drop.training
    assert not model.text.training


def test_what_does_not_train_is_left_alone():
    """A model of hundreds of parts is asked for each query; to set their modes takes longer."""
    still, training = Noting().eval(), Noting().train()
    still.notes.clear()
    training.notes.clear()
    with evaluation_mode([nn.ModuleList([still, training])]):
        assert not training.training
    assert still.notes == []
    assert training.notes == [False, True]


@pytest.mark.parametrize("gradients", [False, True])
def test_a_graph_is_kept_where_it_is_wanted(gradients):
    layer = nn.Linear(2, 1)
    with evaluation_mode([layer], gradients=gradients):
        made = layer(torch.ones(1, 2))
    assert made.requires_grad is gradients
    assert not made.is_inference()
