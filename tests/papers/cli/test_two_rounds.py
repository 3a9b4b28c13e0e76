"""What a training of two rounds prints."""

from __future__ import annotations

import re

import recipes_cases
from corpus_cases import write_folder
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model


def test_a_second_training_is_told_in_few_lines(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_folder(load_dataset("scenes:images=60"), tmp_path / "photos")
    (tmp_path / "clip").symlink_to(models / "clip")
    words = ("--model", "clip", "--tune", "frozen", "--data", "photos", "--epochs", 2)
    assert recipes_cases.run("train", "aoq", *words, "--output", "runs/both") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    (chosen,) = [line for line in lines if line.startswith("Use ")]  # said once
    name = chosen.split(":")[0].removeprefix("Use ")
    assert all("…" not in line or re.search(r"\d…[+−]?\d", line) for line in lines)  # none is cut
    assert "the model to use: runs/both/best" in lines
    assert load_model("runs/both").identity() == load_model(f"runs/both/{name}").identity()
