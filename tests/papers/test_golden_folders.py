"""Every tensor of the golden folders is described, so that none is left out."""

from __future__ import annotations

import json
import shutil

import pytest

import golden_vectors

SYSTEMS = (
    "bfan",
    "cgmn",
    "chan",
    "ernievil",
    "esa",
    "gpo",
    "hrem",
    "lightningdot",
    "ndgl",
    "scan",
    "sgraf",
    "vsepp",
)


@pytest.mark.golden
@pytest.mark.parametrize(
    "system", [pytest.param(s, marks=golden_vectors.needs(s)) for s in SYSTEMS]
)
def test_every_tensor_is_described(system, monkeypatch):
    for folder in golden_vectors.folders(system):
        monkeypatch.setitem(golden_vectors.CHOSEN, system, folder)
        own = {key for key in golden_vectors.keys(system) if key.folder == folder}
        assert set(golden_vectors.load(system).outputs) == own


@pytest.mark.golden
@golden_vectors.needs("scan")
def test_folders_are_found_by_their_system_whatever_they_are_called(tmp_path, monkeypatch):
    for name in ("scan", "other", "zz"):
        shutil.copytree(golden_vectors.folder("scan"), tmp_path / name)
    meta = json.loads((tmp_path / "zz" / "meta.json").read_text())
    (tmp_path / "zz" / "meta.json").write_text(json.dumps(meta | {"system": "SCAN 2"}))
    (tmp_path / "other" / "meta.json").write_text(json.dumps(meta | {"system": "X-Dim"}))
    monkeypatch.setenv("COUNTERFOIL_GOLDEN", str(tmp_path))
    assert [path.name for path in golden_vectors.folders("scan")] == ["scan", "zz"]
    assert [path.name for path in golden_vectors.folders("xdim")] == ["other"]
    assert {key.folder.name for key in golden_vectors.keys("scan")} == {"scan", "zz"}
