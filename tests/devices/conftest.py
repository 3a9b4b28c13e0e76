"""Tests on the pretend device, which changes PyTorch for the process: `make test-devices` only."""

import os

import pytest

from recipes_cases import no_figures  # noqa: F401 - runs here are of few steps

collect_ignore_glob = ["pretend.py" if "COUNTERFOIL_PRETEND" in os.environ else "*"]


@pytest.fixture
def device(monkeypatch):
    """The pretend device, which is the device of this process."""
    from counterfoil.core import distributed
    from devices import pretend

    monkeypatch.setattr(distributed, "device", lambda: pretend.DEVICE)
    return pretend.DEVICE
