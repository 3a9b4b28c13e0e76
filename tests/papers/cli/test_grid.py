"""``counterfoil sweep``."""

from __future__ import annotations

import json
from pathlib import Path

import recipes_cases

TINY = ("vsepp-scenes", "--data", "scenes:images=36", "--smoke")
for setting in ("*.model.image.width=16", "*.model.text.width=16", "*.batch=16"):
    TINY += ("--set", setting)


def test_dry_shows_the_points_and_runs_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    over = ("--over", "adaptive.draw.texts=10,20", "--over", "adaptive.rate=1e-3,1e-2")
    code = recipes_cases.run("sweep", "aoq/vsepp-scenes", *over, "--seeds", "0,1", "--dry")
    shown = " ".join(capsys.readouterr().out.split())
    assert code == 0
    assert "4 20 1e-2" in shown
    assert "4 points × 2 seeds, compared on dev by 'adaptive': 12 stages, 10 train, 2 mine" in shown
    assert "(24 if none were shared)" in shown
    assert not list(tmp_path.iterdir())


def test_named_sweeps_are_listed(capsys) -> None:
    assert recipes_cases.run("sweep") == 0
    assert "sweeps/tags-dc-flickr30k" in capsys.readouterr().out


def test_a_command_leaves_a_table_a_page_and_numbers(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    over = ("--over", "online.rate=1e-4,1e-3,1e-2", "--draw", 2, "--seed", 1)
    assert recipes_cases.run("sweep", *TINY, *over, "--minutes", 1e9) == 0
    shown = capsys.readouterr()
    folder = tmp_path / "runs" / "sweeps" / "vsepp-scenes"
    found = json.loads((folder / "sweep.json").read_text())
    assert found["draw"] == {"points": 2, "seed": 1}
    assert len(found["points"]) == len(list((folder / "points").iterdir())) == 2
    best = found["points"][found["ranked"][0]]
    assert f"The best dev RSum is {best['mean']:.1f}, with online.rate=" in shown.out
    assert "2 points drawn from 3 with seed 1" in " ".join(shown.out.split())
    assert (folder / "sweep.html").is_file()


def test_a_stopped_sweep_says_how_to_go_on(tmp_path: Path, capsys) -> None:
    over = ("--over", "online.rate=1e-4,1e-3", "--set", "online.minutes=0.000001")
    assert recipes_cases.run("sweep", *TINY, *over, "--output", tmp_path / "runs") == 3
    assert "add --resume to continue" in " ".join(capsys.readouterr().err.split())
    assert len(list((tmp_path / "runs" / "points").iterdir())) == 1
