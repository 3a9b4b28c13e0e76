"""What a frozen vision model makes of pictures, kept and read in their place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from torch.nn.functional import adaptive_avg_pool2d

import hub_cases
from counterfoil.core.types import ModalityBatch
from counterfoil.models.base import FrozenTower
from counterfoil.models.layers.pooling import field_shift
from counterfoil.models.layers.pretrained import FrozenPatches, HFVisionTower
from counterfoil.models.layers.towers import PatchTower


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


# Patches in place of regions.


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    hub = tmp_path_factory.mktemp("towers")
    makers = ("vit", "siglip", "clip", "mobilenet", "bert", "siglip2")
    return {make: getattr(hub_cases, make)(hub / make) for make in makers}


@pytest.mark.parametrize("name", ["vit", "siglip", "clip"])
def test_patches_are_the_tokens_of_the_picture_alone(name, towers):
    tower = FrozenPatches(name=towers[name], width=8).eval()
    assert isinstance(tower, FrozenTower)
    with torch.no_grad():
        tokens = tower.body(pixel_values=pictures(16).values).last_hidden_state
    assert tokens.shape[1] == (4 if name == "siglip" else 5)
    torch.testing.assert_close(tower.states(pictures(16)), tokens[:, -4:])
    torch.testing.assert_close(
        tower(kept(tower.states(pictures(16)))).tokens, tower(pictures(16)).tokens
    )


def test_patches_are_averaged_to_a_coarser_grid(towers):
    whole, one, finer = (FrozenPatches(name=towers["vit"], grid=grid) for grid in (0, 1, 7))
    patches = whole.states(pictures(16))
    torch.testing.assert_close(one.states(pictures(16))[:, 0], patches.mean(1))
    assert torch.equal(finer.states(pictures(16)), patches)
    assert len({tower.cache_key for tower in (whole, one, finer)}) == 3


def test_cells_of_a_map_are_patches(towers):
    tower = FrozenPatches(name=towers["mobilenet"], grid=2)
    wanted = HFVisionTower(name=towers["mobilenet"], grid=2).states(pictures(96))
    torch.testing.assert_close(tower.states(pictures(96)), wanted)


@pytest.mark.parametrize("mlp", [False, True])
def test_patches_are_read_as_regions_at_any_scale(mlp, towers):
    tower = FrozenPatches(name=towers["vit"], width=8, mlp=mlp, region_drop=0.5).eval()
    patches = tower.states(pictures(16))
    normal = torch.nn.functional.layer_norm(patches, patches.shape[-1:])
    torch.testing.assert_close(tower(pictures(16)).tokens, tower.regions(kept(normal)).tokens)
    large = tower(kept(100 * patches)).tokens
    torch.testing.assert_close(large, tower(pictures(16)).tokens, rtol=1e-3, atol=1e-3)
    torch.manual_seed(0)
    assert not tower.train()(kept(patches)).mask.all(), "patches are dropped in training alone"
    assert not tower.body.training
    learnt = {name for name, value in tower.named_parameters() if value.requires_grad}
    assert learnt
    assert all(name.startswith("regions.") for name in learnt)


def test_a_model_without_patches_is_refused(towers):
    with pytest.raises(ValueError, match="grid=-1 is not possible"):
        FrozenPatches(name=towers["vit"], grid=-1)
    for name in ("bert", "siglip2"):  # of texts, and of pictures of any shape
        with pytest.raises(ValueError, match=f"{name} gives no patches of square pictures"):
            FrozenPatches(name=towers[name])


def resnet(folder: Path) -> str:
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"}
    transformers.ResNetModel(transformers.ResNetConfig(**sizes)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["vit", "frozen vit", "resnet", "patches"])
def test_the_patches_of_a_tower_are_where_it_says(kind, tmp_path):
    """A dot in the middle of where a patch is said to lie changes it and those around it."""
    side = {"resnet": 64, "patches": 32}.get(kind, 16)
    tower: torch.nn.Module = PatchTower(size=32, patch=8, width=8, channels=8, depth=0)
    if kind == "resnet":
        tower = HFVisionTower(name=resnet(tmp_path / "resnet"), width=8)
    elif kind != "patches":
        name = hub_cases.vit(tmp_path / "vit")
        frozen = kind == "frozen vit"
        tower = FrozenPatches(name=name, grid=0) if frozen else HFVisionTower(name=name)
    tower.eval()
    seen = pictures(side)
    with torch.no_grad():
        before = tower(seen).tokens
    grid = tower.patch_grid(before.shape[1], (side, side))
    assert grid.first == (kind == "vit")  # its class token
    assert grid.first + grid.rows * grid.columns == before.shape[1]
    assert tower.patch_grid(before.shape[1], (side, 2 * side)) is None
    convolves = kind in ("resnet", "patches")
    assert (-0.5 < grid.shift < -0.25) if convolves else grid.shift == 0
    cell = side / grid.rows
    inner = max(1, grid.rows // 2)
    for row, column in ((1, inner), (inner, 1)):
        y, x = (int(cell * (at + 0.5 + grid.shift)) for at in (row, column))
        values = seen.values.clone()
        values[:, :, y - 1 : y + 2, x - 1 : x + 2] += 3
        with torch.no_grad():
            after = tower(ModalityBatch(seen.ids, values, seen.mask)).tokens
        change = (after - before)[:, grid.first :].square().sum((0, 2))
        change = change.view(grid.rows, grid.columns) / change.sum()
        middle = [float(change.sum(1 - at) @ torch.arange(0.0, grid.rows)) for at in (0, 1)]
        assert middle == pytest.approx([row, column], abs=0.4)


def test_the_shift_of_cells_is_that_of_their_fields():
    tower = PatchTower(size=64, patch=8, width=8, channels=8, depth=1)
    measured = field_shift(lambda seen: tower.fc(tower.stem(seen).flatten(2).mT), 64)
    assert measured == pytest.approx(tower.patch_grid(64, (64, 64)).shift, abs=0.05)
    cut = torch.nn.Conv2d(3, 4, 8, stride=8)  # as a ViT cuts patches
    assert field_shift(lambda seen: cut(seen).flatten(2).mT, 64) == pytest.approx(0, abs=0.1)
    assert field_shift(lambda seen: 0 * cut(seen).flatten(2).mT, 64) == 0
    with torch.inference_mode():
        assert field_shift(lambda seen: tower.stem(seen).flatten(2).mT, 64) < -0.3
