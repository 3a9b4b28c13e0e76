"""What a training prints and leaves, and that the next commands take what it names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

import recipes_cases
from corpus_cases import write_folder
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.training.callbacks import DevEvaluation


def following(printed: str) -> list[str]:
    """The first command that an output names as the next one."""
    command = printed.split("next: counterfoil ", 1)[1]
    return shlex.split(re.split(r", or |, or$", command)[0])


def test_the_model_of_a_run_is_in_one_place(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_folder(load_dataset("scenes:images=60"), tmp_path / "photos")
    words = ("contrastive", "--model", models / "clip", "--tune", "frozen", "--data", "photos")
    assert recipes_cases.run("train", *words, "--epochs", 12, "--output", "runs/mine") == 0
    shown = capsys.readouterr()
    lines = [*shown.out.splitlines(), *shown.err.splitlines()]
    assert len([line for line in lines if not line.startswith("warning")]) <= 40
    assert shown.out.startswith("tuned reaches RSum")
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

    assert done("evaluate", "runs/mine", "--data", "photos").startswith("runs/mine on photos test:")
    several = ("evaluate", "runs/mine", models / "clip", "--data", "photos", "--output", "eval-ab")
    printed = done(*several)
    assert printed.startswith("On photos test, clip reaches RSum")
    # every command that is printed runs as it is
    assert done(*following(printed)).startswith("clip reaches RSum")
    assert "open runs/mine/comparison.html" in done("report", "runs/mine", "--data", "photos")
    printed = done(*following(" ".join(shown.out.split())))
    assert done(*following(printed)).startswith("words")
    assert done("index", "index").startswith("index: 60 images")
    printed = done("mine", "runs/mine", "--data", "photos", "--output", "lists")
    assert done(*following(printed)).endswith("open lists/diagnosis.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "eval-ab",
        "index",
        "lists",
        "photos",
        "runs",
    ]
    assert recipes_cases.run("train", *words, "--epochs", 12, "--output", "runs/mine") == 0
    assert link.is_symlink()


def photos(folder: Path, images: int = 50) -> Path:
    write_folder(load_dataset(f"scenes:images={images}"), folder)
    return folder


def pasted(shown: str) -> list[str]:
    """The words of the command that a training ends with."""
    (command,) = [line for line in shown.splitlines() if line.startswith("counterfoil train ")]
    return shlex.split(command)[1:]


@pytest.mark.parametrize("tune", ["full", "lora", "frozen"])
def test_the_command_to_go_on_goes_on(tune, models, tmp_path, monkeypatch, capsys):
    """Where the last evaluation is the best, the command that is shown works as it stands."""
    monkeypatch.chdir(tmp_path)
    data = photos(Path("my photos"))
    words = ("contrastive", "--model", models / "clip", "--tune", tune, "--data", data)
    settings = ("--lr", "1e-4", "--epochs", 2, "--set", "*.select=t2i_r10", "--set=*.least_dev=0")
    monkeypatch.setattr(DevEvaluation, "on_epoch_end", rising(DevEvaluation.on_epoch_end))
    assert recipes_cases.run("train", *words, *settings, "--output", "a run") == 0
    out = capsys.readouterr().out
    best = "the last evaluation on dev was the best, so more steps may help"
    assert f"tuned: still improving: {best}; this goes on from there:\n" in out
    again = pasted(out)
    assert again[-2:] == ["--set=tuned.start=a run/tuned", "--output=a run-2"]
    before = {path: path.read_bytes() for path in Path("a run").rglob("*") if path.is_file()}
    assert recipes_cases.run(*again) == 0
    assert before == {path: path.read_bytes() for path in before}
    assert pasted(capsys.readouterr().out)[-1] == "--output=a run-3"
    first, second = (load_model(name).model.state_dict() for name in ("a run", "a run-2"))
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert "a run/tuned" in Path("a run-2/tuned.json").read_text()


def rising(measure):
    """Evaluation on dev in which each is better than the one before."""

    def on_epoch_end(self, loop):
        step, evaluate = loop.progress.step, self.evaluate
        self.evaluate = lambda model: {n: v + step for n, v in evaluate(model).items()}
        measure(self, loop)
        self.evaluate = evaluate

    return on_epoch_end


def test_no_command_where_the_best_came_before(models, tmp_path, capsys):
    data = photos(tmp_path / "photos")
    words = ("contrastive", "--model", models / "clip", "--tune", "frozen", "--data", data)
    settings = ("--lr", "1e-9", "--epochs", 3, "--output", tmp_path / "run")
    assert recipes_cases.run("train", *words, *settings, "--set=*.least_dev=0") == 0
    out = capsys.readouterr().out
    assert "was the best" not in out
    assert "counterfoil train" not in out
    assert [line for line in out.splitlines() if line.startswith("tuned: converged: dev was no")]


def test_few_photos_of_dev_choose_nothing_at_any_length(models, tmp_path, capsys):
    """As many epochs as were asked for are made, and the last is kept; the loss tells the rest."""
    data = photos(tmp_path / "photos")
    words = ("contrastive", "--model", models / "clip", "--tune", "frozen", "--data", data)
    assert recipes_cases.run("train", *words, "--epochs", 1, "--output", tmp_path / "run") == 0
    shown = capsys.readouterr()
    assert "fewer than 50" in shown.err
    assert "(best)" not in shown.err
    assert "last epoch 1 of 1" in shown.err
    told = [line for line in shown.out.splitlines() if line.startswith("tuned: ")]
    few = "dev has fewer than 50 images, too few to tell by"
    few += ", and 2 steps are too few to tell by the loss"
    assert told == [f"tuned: cannot tell whether it converged: {few}; this goes on from there:"]
    assert pasted(shown.out)[-1] == f"--output={tmp_path / 'run-2'}"


def test_a_plan_tells_the_length_on_these_data(capsys):
    def told(data: str, *words: object) -> str:
        assert recipes_cases.run("train", "mobilenet", "--data", data, "--plan", *words) == 0
        return " ".join(capsys.readouterr().out.replace("│", " ").split())

    few = told("scenes:images=60")  # batches of 128 captions, and at least 300 steps
    assert "epochs=7" in few
    assert "length: 150 epochs of 2 steps, 300 steps in all; measured on 10 images of dev" in few
    assert "of dev every 13 epochs; the last epoch is kept" in few
    assert "length: 2 epochs of 2 steps, 4 steps in all" in told("scenes:images=60", "--epochs", 2)
    more = told("scenes:images=110,dev=50,test=10")
    assert "on 50 images of dev every 13 epochs; ended by 6 evaluations that are no better" in more
    assert "length: 1 epoch of 2 steps, 1 step in all" in told(
        "scenes:images=60", "--set", "*.steps=1"
    )
