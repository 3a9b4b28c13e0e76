"""Every loss has the same value and gradients on a device as on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from losses import test_contract as contract


def moved(value: Any, device: torch.device) -> Any:
    """A value with all tensors in it on another device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: moved(one, device) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(moved(one, device) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: moved(getattr(value, name), device) for name in names})
    return value


@pytest.mark.parametrize("plain", [False, True], ids=["record", "plain tensors"])
@pytest.mark.parametrize("name", contract.LOSSES)
def test_value_and_gradients_equal_those_of_the_cpu(name, plain, device):
    leaves, made = contract.leaves(name), contract.LOSSES[name]

    def value(place: torch.device) -> torch.Tensor:
        loss = made().to(place)
        if not plain:
            return loss(moved(contract.record(loss, leaves), place))
        options = contract.arguments(leaves, contract.copies(name))
        return loss(leaves["scores"].to(place), **moved(options, place))

    expected, there = value(torch.device("cpu")), value(device)
    assert there.device == device
    torch.testing.assert_close(there.detach().cpu(), expected.detach())
    pairs = zip(contract.gradients(there, leaves), contract.gradients(expected, leaves))
    for ours, theirs in pairs:
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs)
