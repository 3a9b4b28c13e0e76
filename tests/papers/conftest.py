"""Tests of golden vectors are run on every folder of their system."""

from __future__ import annotations

from pathlib import Path

import pytest

import golden_vectors


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """The name of a key begins with that of its folder."""
    if isinstance(val, golden_vectors.Key):
        return f"{val.folder.name}-{val}"
    return val.name if argname == "golden_folder_name" and isinstance(val, Path) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    system = getattr(metafunc.module, "SYSTEM", None)
    if isinstance(system, str) and "key" not in metafunc.fixturenames:
        found = golden_vectors.folders(system)
        if len(found) > 1:
            metafunc.fixturenames.append("golden_folder_name")
            metafunc.parametrize("golden_folder_name", found)


@pytest.fixture(autouse=True)
def _golden_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the key, or of the case, that is run."""
    system = getattr(request.module, "SYSTEM", None)
    params = getattr(getattr(request.node, "callspec", None), "params", {})
    for value in params.values() if isinstance(system, str) else ():
        if isinstance(value, golden_vectors.Key):
            monkeypatch.setitem(golden_vectors.CHOSEN, system, value.folder)
    if isinstance(path := params.get("golden_folder_name"), Path):
        monkeypatch.setitem(golden_vectors.CHOSEN, system, path)
