"""What a training prints and leaves, and that the next commands take what it names."""

from __future__ import annotations

from pathlib import Path

import recipes_cases
from corpus_cases import write_folder
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model


def test_the_model_of_a_run_is_in_one_place(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_folder(load_dataset("scenes:images=60"), tmp_path / "photos")
    words = ("contrastive", "--model", models / "clip", "--tune", "frozen", "--data", "photos")
    assert recipes_cases.run("train", *words, "--epochs", 12, "--output", "runs/mine") == 0
    shown = capsys.readouterr()
    lines = [*shown.out.splitlines(), *shown.err.splitlines()]
    assert len([line for line in lines if not line.startswith("warning")]) <= 40
    assert shown.out.count("RSum  ") == 1  # one table
    assert "runs/mine/report/report.html" in shown.out
    assert "model: runs/mine/model" in shown.out
    link = Path("runs/mine/model")
    assert link.resolve() == Path("runs/mine/tuned/model").resolve()
    assert not link.readlink().is_absolute()  # the run may be moved
    assert load_model("runs/mine").identity() == load_model("runs/mine/tuned").identity()

    def done(*words: object) -> str:
        assert recipes_cases.run(*words) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "photos test" in done("evaluate", "runs/mine", "--data", "photos")
    done("index", "runs/mine", "photos", "--output", "index")
    several = ("evaluate", "runs/mine", models / "clip", "--data", "photos", "--output", "eval-ab")
    assert done(*several).endswith("eval-ab")
    assert "clip reaches RSum" in done("report", "eval-ab")
    assert "runs/mine/comparison.html" in done("report", "runs/mine", "--data", "photos")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "eval-ab",
        "index",
        "photos",
        "runs",
    ]
    assert recipes_cases.run("train", *words, "--epochs", 12, "--output", "runs/mine") == 0
    assert link.is_symlink()
