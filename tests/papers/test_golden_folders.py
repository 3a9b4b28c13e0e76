"""Every tensor of the golden folders is described, so that none is left out."""

from __future__ import annotations

import pytest

import golden_vectors

SYSTEMS = ("bfan", "chan", "esa", "gpo", "hrem", "ndgl", "scan", "vsepp")


@pytest.mark.golden
@pytest.mark.parametrize(
    "system", [pytest.param(s, marks=golden_vectors.needs(s)) for s in SYSTEMS]
)
def test_every_tensor_is_described(system):
    assert set(golden_vectors.load(system).outputs) == set(golden_vectors.keys(system))
