from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

import bag_cases
from counterfoil.models.layers.pretrained import TimmGridTower, random_crop


class Network(nn.Module):
    """A small network with the face of timm's."""

    num_features = 6

    def __init__(self, kind="map"):
        super().__init__()
        self.kind = kind
        self.conv, self.norm = nn.Conv2d(3, 6, 4, stride=4), nn.BatchNorm2d(6)

    def forward_features(self, pixels):
        found = self.norm(self.conv(pixels))
        if self.kind == "last":
            return found.permute(0, 2, 3, 1)
        return found.flatten(2).transpose(1, 2) if self.kind == "tokens" else found


@pytest.fixture(autouse=True)
def timm(monkeypatch):
    asked = []

    def create_model(name, *, pretrained, num_classes):
        asked.append((name, pretrained, num_classes))
        if name == "none":
            raise RuntimeError("Unknown model (none)\nand more")
        return Network(name)

    fake = types.SimpleNamespace(create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", fake)
    return asked


def pictures(count=3, side=12):
    values = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))
    return bag_cases.whole(values)


@pytest.mark.parametrize("kind", ["map", "last"])
def test_each_cell_is_a_vector_row_by_row(kind, timm):
    torch.manual_seed(0)
    tower = TimmGridTower(name=kind, width=5, pretrained=False).eval()
    assert timm == [(kind, False, 0)]
    made = tower(pictures())
    assert made.tokens.shape == (3, 9, 5)
    assert made.mask.all()
    cell = pictures().values[1:2, :, 4:8, 8:12]
    expected = tower.fc(tower.body.norm(tower.body.conv(cell)).flatten(1))
    torch.testing.assert_close(made.tokens[1, 5], expected[0])


def test_batch_norms_keep_their_statistics_and_the_network_learns():
    tower = TimmGridTower(name="map", width=5).train()
    before = tower.body.norm.running_mean.clone()
    tower(pictures()).tokens.square().sum().backward()
    assert torch.equal(tower.body.norm.running_mean, before)
    assert tower.training
    assert not tower.body.training
    assert tower.body.conv.weight.grad.any()
    alone = TimmGridTower(name="map", width=5, trained=False)
    alone(pictures()).tokens.sum().backward()
    assert alone.body.conv.weight.grad is None
    assert alone.fc.weight.grad.any()


def test_cells_are_dropped_and_pictures_cut_in_training_alone():
    torch.manual_seed(0)
    tower = TimmGridTower(name="map", width=5, smallest=0.6, mirror=0.5, cell_drop=0.9)
    made = tower.train()(pictures(20))
    assert 20 < made.mask.sum() < 180
    assert not torch.equal(tower(pictures()).tokens, tower(pictures()).tokens)
    tower.eval()
    assert tower(pictures()).mask.all()
    assert torch.equal(tower(pictures()).tokens, tower(pictures()).tokens)


def test_nothing_cut_is_the_picture_itself():
    values = pictures().values
    assert random_crop(values, smallest=1.0, mirror=0.0) is values
    torch.testing.assert_close(random_crop(values, smallest=1 - 1e-9, mirror=0.0), values)
    torch.testing.assert_close(random_crop(values, smallest=1.0, mirror=1.0), values.flip(3))


def ramps(count, side=50):
    """Pictures whose channels tell the place of each pixel, from 0 to 1."""
    line = (torch.arange(side) + 0.5) / side
    flat = torch.stack([line.expand(side, side), line.unsqueeze(1).expand(side, side)])
    return flat.double().expand(count, 2, side, side)


def test_a_part_has_one_share_for_both_sides_and_lies_within():
    torch.manual_seed(0)
    seen = random_crop(ramps(4000), smallest=0.6, mirror=0.5)
    assert seen.shape == (4000, 2, 50, 50)
    assert seen.dtype == torch.float64
    assert seen.min() >= 0
    assert seen.max() <= 1
    x, y = seen[:, 0, 25, [10, 39]], seen[:, 1, [10, 39], 25]  # away from the border's half pixel
    across, down = ((line[:, 1] - line[:, 0]) * 50 / 29 for line in (x, y))
    torch.testing.assert_close(across.abs(), down, atol=1e-4, rtol=0)
    assert (across < 0).double().mean() == pytest.approx(0.5, abs=0.03)
    assert down.min() == pytest.approx(0.6, abs=0.005)
    assert down.max() == pytest.approx(1, abs=0.005)
    assert down.mean() == pytest.approx(0.8, abs=0.01)
    middle = (x.mean(1) - 0.5) / (1 - down).clamp(min=1e-9)
    clear = middle[down < 0.98]
    assert clear.abs().max() <= 0.51
    assert clear.std() == pytest.approx(1 / 12**0.5, abs=0.02)
    assert torch.corrcoef(torch.stack([x.mean(1), y.mean(1)]))[0, 1].abs() < 0.05


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"name": "none"}, r"timm cannot make 'none': Unknown model \(none\)$"),
        ({"smallest": 0.0}, r"smallest=0.0, mirror=0.0: give shares up to 1"),
        ({"mirror": 1.5}, r"mirror=1.5: give shares up to 1"),
        ({"cell_drop": 1.0}, r"cell_drop=1.0 is not possible"),
        ({"width": 0}, r"width=0 is not possible"),
    ],
)
def test_what_cannot_be_made(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        TimmGridTower(**{"name": "map", **arguments})


def test_what_does_not_fit():
    with pytest.raises(ValueError, match=r"Network gives \(3, 9, 6\), which is no map of 6"):
        TimmGridTower(name="tokens")(pictures())
    bag = bag_cases.whole(torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match=r"pictures of shape \(2, 3, 4\) do not fit"):
        TimmGridTower(name="map")(bag)


def test_without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r'needs timm: pip install "counterfoil\[vision\]"'):
        TimmGridTower()
