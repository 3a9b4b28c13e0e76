"""What a frozen vision model makes of pictures, kept and read in their place."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch.nn.functional import adaptive_avg_pool2d

import hub_cases
from counterfoil.core.types import ModalityBatch
from counterfoil.models.base import FrozenTower
from counterfoil.models.layers.pretrained import HFVisionTower


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return hub_cases.mobilenet(tmp_path_factory.mktemp("hub") / "mobilenet")


def pictures(side: int) -> ModalityBatch:
    values = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(0))
    return ModalityBatch(torch.arange(3), values, torch.ones(3, 1, dtype=torch.bool))


def kept(states: torch.Tensor) -> ModalityBatch:
    return ModalityBatch(torch.arange(len(states)), states, torch.ones(states.shape[:2]).bool())


@pytest.mark.parametrize("grid", [0, 1, 2])
def test_states_are_read_in_place_of_pictures(grid, folder):
    tower = HFVisionTower(name=folder, width=8, grid=grid)
    assert isinstance(tower, FrozenTower)
    seen = tower.states(pictures(96))
    assert seen.shape == (3, (grid or 3) ** 2, tower.fc.in_features)
    torch.testing.assert_close(tower(kept(seen)).tokens, tower(pictures(96)).tokens)
    assert not seen.requires_grad


def test_maps_are_averaged_to_cells_row_by_row(folder):
    whole, averaged = (HFVisionTower(name=folder, grid=grid) for grid in (0, 2))
    map_ = whole.states(pictures(128)).mT.unflatten(2, (4, 4))
    wanted = adaptive_avg_pool2d(map_, 2)
    torch.testing.assert_close(averaged.states(pictures(128))[:, 1], wanted[:, :, 0, 1])
    torch.testing.assert_close(averaged.states(pictures(128))[:, 2], wanted[:, :, 1, 0])


def test_only_a_frozen_model_is_still(folder):
    assert HFVisionTower(name=folder).cache_key != HFVisionTower(name=folder, grid=2).cache_key
    assert HFVisionTower(name=folder, trained=True).cache_key is None


def test_a_written_configuration_is_enough(folder, tmp_path):
    moved = shutil.copytree(folder, tmp_path / "moved")
    first = HFVisionTower(name=str(moved), width=8)
    assert "id2label" not in json.loads(first.config_json)
    shutil.rmtree(moved)
    again = HFVisionTower(name=str(moved), width=8, pretrained=False, config=first.config_json)
    again.load_state_dict(first.state_dict())
    torch.testing.assert_close(again(pictures(32)).tokens, first.eval()(pictures(32)).tokens)
    assert again.config_json == first.config_json


def test_states_of_another_model_are_refused(folder):
    with pytest.raises(ValueError, match=r"stored states of shape \(3, 4, 5\) do not fit"):
        HFVisionTower(name=folder)(kept(torch.zeros(3, 4, 5)))


def test_tokens_cannot_be_averaged_to_cells(folder, tmp_path):
    with pytest.raises(ValueError, match="grid=-1 is not possible"):
        HFVisionTower(name=folder, grid=-1)
    with pytest.raises(
        ValueError, match=r"gives no map to average to 2 x 2 cells; .* or set grid=0"
    ):
        HFVisionTower(name=hub_cases.vit(tmp_path / "vit"), grid=2)
