from __future__ import annotations

import pytest
import torch

import bag_cases
from counterfoil.core.types import ModalityBatch
from counterfoil.models.layers.towers import MLPRegions

FEATURES, WIDTH = 6, 8


def tower(**options: object) -> MLPRegions:
    torch.manual_seed(0)
    made = MLPRegions(features=FEATURES, width=WIDTH, **options)
    for tensor in (made.norm.weight, made.norm.bias, made.norm.running_mean):
        torch.nn.init.normal_(tensor)
    return made.double()


def items(counts: list[int], padding: float = torch.nan) -> ModalityBatch:
    made = bag_cases.bag(counts, FEATURES, seed=1, garbage=padding)
    return ModalityBatch(torch.arange(len(counts)), made.tokens, made.mask)


def by_hand(made: MLPRegions, rows: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    """The same from rows and from the rows that the batch statistics are taken of."""
    inner, seen = made.enter(rows), made.enter(stats)
    spread = (seen.var(0, correction=0) + made.norm.eps).sqrt()
    normal = (inner - seen.mean(0)) / spread * made.norm.weight + made.norm.bias
    return made.fc(rows) + made.leave(normal.clamp(min=0))


def test_padding_takes_no_part():
    made, given = tower(), items([3, 1, 2])
    real = given.values[given.mask]
    torch.testing.assert_close(made(given).tokens[given.mask], by_hand(made, real, real))


def test_released_padding_counts_as_regions_of_zeros():
    made, given = tower(released_padding=True), items([3, 1, 2])
    real = given.values[given.mask]
    zeros = torch.zeros(3, FEATURES, dtype=torch.double)
    found = made(given).tokens[given.mask]
    torch.testing.assert_close(found, by_hand(made, real, torch.cat([real, zeros])))
    assert (found - by_hand(made, real, real)).abs().max() > 1e-3
    made.eval()  # padding has no share in evaluation
    alone = items([3])
    torch.testing.assert_close(made(given).tokens[0, :3], made(alone).tokens[0])


def test_one_region_can_be_trained_on():
    assert tower()(items([1])).tokens.isfinite().all()


def test_padding_reaches_no_gradient():
    made, given = tower(), items([3, 1])
    made(given).tokens[given.mask].square().sum().backward()
    assert all(p.grad.isfinite().all() for p in made.parameters())


def test_layers_start_as_the_authors_start_them():
    made = MLPRegions(features=40, width=60)
    assert made.enter.out_features == 30
    assert not made.fc.bias.any()
    assert made.enter.bias.any()
    assert made.leave.weight.abs().max() <= 30**-0.5
    made = MLPRegions(features=40, width=60, init="xavier")
    for layer in (made.fc, made.enter, made.leave):
        limit = (6 / sum(layer.weight.shape)) ** 0.5
        assert 0.95 * limit < layer.weight.abs().max() <= limit
        assert not layer.bias.any()


def test_regions_are_dropped_in_training():
    made, given = tower(region_drop=0.5), items([4] * 20)
    assert made(given).mask.sum() < given.mask.sum()
    assert torch.equal(made.eval()(given).mask, given.mask)


def test_what_cannot_be_read():
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4\) do not fit .*\(images, regions, 6\)"):
        tower()(bag_cases.whole(torch.ones(2, 3, 4)))
