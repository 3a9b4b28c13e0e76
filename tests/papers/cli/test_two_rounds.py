"""What a training of two rounds prints."""

from __future__ import annotations

import re
import shlex

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


def test_a_training_that_goes_on_does_not_warm_up_again(tmp_path, monkeypatch, capsys):
    """VSE++ begins with all negatives of the batch: of few captions, in part of its steps."""
    monkeypatch.chdir(tmp_path)
    words = ("vsepp", "--data", "scenes:images=60,features=regions", "--output", "runs/v")
    assert recipes_cases.run("train", *words) == 0
    shown = capsys.readouterr()
    assert "the loss would warm up for 235 of 10 batches, so its warm-up is cut to 6" in shown.err
    (command,) = [line for line in shown.out.splitlines() if line.startswith("counterfoil train ")]
    again = shlex.split(command)[1:]
    assert "online.start=runs/v/online" in again
    assert "online.objective.triplet.steps=0" in again
    assert recipes_cases.run(*again) == 0
    assert "warm" not in capsys.readouterr().err
    first, second = (load_model(name).card.provenance for name in ("runs/v", "runs/v-2"))
    assert (first["warm_up"], second["warm_up"]) == (6, 0)
    assert second["training"]["losses"][0]["settings"]["steps"] == 0
