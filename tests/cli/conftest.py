from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

import recipes_cases


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A folder with the model folders "pixels", "regions" and "clip", and the run "run"."""
    root = tmp_path_factory.mktemp("models")
    recipes_cases.pixel_model(root / "pixels")
    recipes_cases.feature_model(root / "regions")
    recipes_cases.clip_like(root / "clip")
    with contextlib.redirect_stdout(io.StringIO()):
        assert recipes_cases.aoq(root / "run") == 0
    return root
