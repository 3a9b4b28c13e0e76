"""The benchmark that needs a GPU runs, small, without one."""

from __future__ import annotations

import pytest

SMALL = ["--images", "64", "--texts", "320", "--width", "32", "--device", "cpu"]


@pytest.fixture
def gpu_mining(monkeypatch):
    from benchmarks.speed import gpu_mining
    from counterfoil.scoring import encode

    monkeypatch.setitem(encode._BAGS, "cpu", (16, 64))  # many tiles
    monkeypatch.setattr(gpu_mining, "_SAMPLE", 0.01)
    return gpu_mining


@pytest.mark.parametrize(("minutes", "lines"), [("1", 0), ("0", 2)])
def test_flickr30k_sized_mining_runs_small_and_stops_by_itself(gpu_mining, capsys, minutes, lines):
    gpu_mining.main([*SMALL, "--minutes", minutes])
    said = capsys.readouterr().out
    assert said.count("pairs/s, all in") == 2
    assert "x the bfloat16 product" in said
    assert said.count("out of time") == lines
    assert ("images and 320 of 320 texts were certain at once" in said) == (lines == 0)
