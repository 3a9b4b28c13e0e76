"""What a training prints and leaves, and that the next commands take what it names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import huggingface_hub.constants
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


def commands(printed: str) -> list[list[str]]:
    """The words of all commands that an output names as the next ones."""
    (line,) = [line for line in printed.splitlines() if "next: " in line]
    return [shlex.split(each)[1:] for each in line.split("next: ", 1)[1].split(", or ")]


def test_printed_commands_have_the_settings_of_the_data(models, tmp_path, monkeypatch, capsys):
    """Columns, the folder of pictures and unreadable ones are said again, whatever their names."""
    monkeypatch.chdir(tmp_path)
    photos(Path("two words"), 60)
    Path("two words/images/00.png").write_bytes(b"damaged")
    rows = [f"images/{n:02}.png;a red circle of number {n}" for n in range(60)]
    Path("fotos.csv").write_text("\n".join(["Datei;Der Titel", *rows]))
    columns = ("--image-column", "Datei", "--caption-column", "Der Titel")
    data = ("--data", "fotos.csv:images=two words,unreadable=skip", *columns)
    tuned = ("contrastive", "--model", models / "clip", "--tune", "frozen", "--epochs", 2)
    assert recipes_cases.run("train", *tuned, *data, "--output", "runs/mine") == 0
    shown = capsys.readouterr()
    named = "caption-column=Der Titel,image-column=Datei'"
    assert f"'fotos.csv:images=two words,unreadable=skip,{named}" in shown.out
    whole = f"'fotos.csv:images=two words,{named}"
    assert f"`counterfoil data check {whole}` lists all" in " ".join(shown.err.split())
    for command in commands(shown.out):
        assert recipes_cases.run(*command) == 0, command
    capsys.readouterr()
    assert recipes_cases.run("data", "check", *shlex.split(whole)) == 2
    assert "unreadable: " in capsys.readouterr().out
    assert recipes_cases.run("mine", "runs/mine", *data, "--output", "lists") == 0
    assert recipes_cases.run(*commands(capsys.readouterr().out)[0]) == 0


def test_more_epochs_in_the_same_folder(models, tmp_path, monkeypatch, capsys):
    """The refusal says how to go on, and its words behind the typed ones do so."""
    monkeypatch.chdir(tmp_path)
    data = photos(Path("photos"))
    words = ("train", "contrastive", "--model", models / "clip", "--tune", "frozen")
    words = (*words, "--data", data, "--output", "a run", "--epochs")
    assert recipes_cases.run(*words, 1) == 0
    capsys.readouterr()
    assert recipes_cases.run(*words, 2) == 2
    refusal = capsys.readouterr().err
    assert "a run/tuned was made with other settings: tuned.plan.epochs is 1 there" in refusal
    added = shlex.split(refusal.split("`")[1])
    assert added == ["--set", "tuned.start=a run/tuned", "--output", "a run-2"]
    assert recipes_cases.run(*words, 2, *added) == 0
    assert Path("a run-2/tuned/model").is_dir()
    assert recipes_cases.run(*words, 1, "--seed", 1) == 2
    assert "`" not in capsys.readouterr().err  # another seed is another run


@pytest.mark.parametrize(
    ("place", "first", "second"),
    [("run", "full", "full"), ("run/model", "lora", "lora"), ("run/tuned", "full", "frozen")],
)
def test_a_run_is_trained_on(place, first, second, models, tmp_path, monkeypatch, capsys):
    """A run, its model or its stage is what --model names, as its weights and its processor."""
    monkeypatch.chdir(tmp_path)
    data = photos(Path("photos"))
    words = ("contrastive", "--data", data, "--epochs", 1)
    clip = ("--model", models / "clip", "--tune", first, "--lr", "1e-3")
    assert recipes_cases.run("train", *words, *clip, "--output", "run") == 0
    kept = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    itself = ("--model", "run", "--tune", second, "--output", "./run/")
    assert recipes_cases.run("train", *words, *itself) == 2
    assert "as in --output run-2" in " ".join(capsys.readouterr().err.split())
    again = ("--model", place, "--tune", second, "--lr", "1e-12", "--output", "again")
    assert recipes_cases.run("train", *words, *again) == 0
    assert kept == {path: path.read_bytes() for path in kept}
    before, after, clip_itself = (load_model(name) for name in ("run", "again", models / "clip"))
    vectors = [model.encode_texts("a red circle") for model in (before, after, clip_itself)]
    here, there = (abs(vectors[1] - vectors[n]).max() for n in (0, 2))
    assert here < 1e-5 < 1e-4 < there
    assert before.processor.image_processor == after.processor.image_processor
    assert before.processor.tokenizer.digest == after.processor.tokenizer.digest


@pytest.mark.parametrize(("first", "second"), [("full", "frozen"), ("frozen", "frozen")])
def test_a_model_on_the_hub_is_trained_on(first, second, models, tmp_path, monkeypatch, capsys):
    """A model that was pushed from here is named as on the hub, like those of other libraries."""
    monkeypatch.chdir(tmp_path)
    data = ("--data", photos(Path("photos")), "--epochs", 1)
    clip = ("--model", models / "clip", "--tune", first, "--lr", "1e-3")
    assert recipes_cases.run("train", "contrastive", *data, *clip, "--output", "run") == 0
    place = tmp_path / "hub" / "models--me--mine"
    load_model("run").save_pretrained(place / "snapshots" / ("0" * 40))  # what a push uploads
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    again = ("--model", "me/mine", "--tune", second, "--lr", "1e-12", "--output", "again")
    assert recipes_cases.run("train", "contrastive", *data, *again) == 0
    before, after = (load_model(name).encode_texts("a red circle") for name in ("run", "again"))
    assert abs(before - after).max() < 1e-5
    capsys.readouterr()
    none = ("--model", "me/none", "--tune", second, "--output", "none")
    assert recipes_cases.run("train", "contrastive", *data, *none) == 2
    assert "me/none cannot be loaded as a Hugging Face model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "only these are trained on: add --tune frozen"),
        (("--tune", "lora"), "only these are trained on: add --tune frozen"),
        (("--tune", "frozen", "--long-captions"), "is saved with the text positions"),
        (("--tune", "frozen"), ""),
    ],
)
def test_adapters_are_trained_on_as_adapters(options, told, models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("--data", photos(Path("photos")), "--epochs", 1)
    frozen = ("--model", models / "clip", "--tune", "frozen", "--output", "run")
    assert recipes_cases.run("train", "contrastive", *words, *frozen) == 0
    capsys.readouterr()
    again = ("--model", "run", *options, "--output", "again")
    assert recipes_cases.run("train", "contrastive", *words, *again) == (2 if told else 0)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("make", [recipes_cases.pixel_model, recipes_cases.feature_model])
def test_a_model_of_words_is_trained_on_as_a_whole(make, tmp_path, capsys):
    model = make(tmp_path / "model")
    data = "scenes:images=50" + ",features=regions" * (make is recipes_cases.feature_model)
    words = ("triplet", "--model", model, "--data", data, "--epochs", 1)
    if make is recipes_cases.feature_model:
        model = recipes_cases.feature_model(tmp_path / "model", load_dataset(data).features.width)
    assert recipes_cases.run("train", *words, "--tune", "lora", "--output", tmp_path / "a") == 2
    assert "is trained on as a whole; leave --tune out" in capsys.readouterr().err
    assert recipes_cases.run("train", *words, "--output", tmp_path / "b") == 0
    before, after = load_model(model).processor, load_model(tmp_path / "b").processor
    assert before.tokenizer.digest == after.tokenizer.digest


def test_a_folder_of_several_models(tmp_path, capsys):
    for name in ("online", "second"):
        recipes_cases.pixel_model(tmp_path / "runs" / name / "model")
    words = ("contrastive", "--model", tmp_path / "runs", "--data", "scenes:images=50")
    assert recipes_cases.run("train", *words, "--output", tmp_path / "a") == 2
    assert "is a folder of several models; name one of them" in capsys.readouterr().err


def photos(folder: Path, images: int = 50) -> Path:
    write_folder(load_dataset(f"scenes:images={images}"), folder)
    return folder


def pasted(shown: str) -> list[str]:
    """The words of the command that a training ends with."""
    lines = shown.splitlines()
    (command,) = [
        line for line in lines if line.startswith(("counterfoil train ", "counterfoil run "))
    ]
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
    chosen = ["--set", "*.select=t2i_r10", "--set", "*.least_dev=0"]
    chosen += ["--set", "tuned.start=a run/tuned"]
    assert again[-8:] == [*chosen, "--output", "a run-2"]
    before = {path: path.read_bytes() for path in Path("a run").rglob("*") if path.is_file()}
    assert recipes_cases.run(*again) == 0
    assert before == {path: path.read_bytes() for path in before}
    chosen[-1] = "tuned.start=a run-2/tuned"  # in place of the earlier start
    assert pasted(capsys.readouterr().out)[-8:] == [*chosen, "--output", "a run-3"]
    first, second = (load_model(name).model.state_dict() for name in ("a run", "a run-2"))
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert "a run/tuned" in Path("a run-2/tuned.json").read_text()


def test_a_folder_without_the_pictures_is_said_once(models, tmp_path, monkeypatch, capsys):
    """Not once a picture: how many, which is the first, and what to do."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{n:03}.png,a red circle of number {n}" for n in range(200)]
    Path("photos.csv").write_text("\n".join(["image,caption", *rows]))
    Path("elsewhere").mkdir()
    data = "photos.csv:images=elsewhere"
    train = ("train", "contrastive", "--model", models / "clip", "--data", data)
    for words, number in (
        (("data", "check", data), 200),
        (("data", "check", data, "--quick"), 200),
        ((*train, "--output", "run"), 154),
    ):
        assert recipes_cases.run(*words) == 2
        shown = capsys.readouterr()
        printed = " ".join((shown.out + shown.err).split())
        told = f"none of the {number} pictures of {tmp_path.name} is there, such as elsewhere/0"
        assert printed.count(told) == 1, printed
        assert "name the folder that holds them, as in --data photos.csv:images=" in printed
        assert len(shown.out.splitlines()) < 40
    photos(Path("elsewhere"), 1)
    next(Path("elsewhere").rglob("*.png")).rename("elsewhere/007.png")
    assert recipes_cases.run("data", "check", data) == 2
    assert capsys.readouterr().out.count("\nunreadable: ") == 199  # some are there: which are not


RECIPE = """
from dataclasses import replace
from counterfoil.recipes.demo import demo_recipe

demo = demo_recipe()
recipe = replace(demo, stages=demo.stages[:2])
"""


def test_a_recipe_ends_as_a_training_does(tmp_path, monkeypatch, capsys):
    """Each of its trainings says whether it converged, with the command that goes on with all."""
    monkeypatch.chdir(tmp_path)
    Path("two.py").write_text(RECIPE)
    words = ("run", "two.py", "--data", "scenes:images=60,features=regions")
    short = ("--set", "*.epochs=1", "--set", "*.schedule.warmup=0.1")
    assert recipes_cases.run(*words, *short, "--output", "a run") == 0
    out = capsys.readouterr().out
    for name in ("alike", "hardest"):
        assert f"{name}: cannot tell whether it converged: " in out
    again = pasted(out)
    starts = [f"{name}.start=a run/{name}" for name in ("alike", "hardest")]
    more = ["--set", starts[0], "--set", starts[1], "--output", "a run-2"]
    assert again == [*words, *short, *more]
    assert recipes_cases.run(*again) == 0
    assert Path("a run-2/hardest/model").is_dir()
    capsys.readouterr()
    assert recipes_cases.run(*words, "--smoke", "--output", "smoke") == 0
    assert "converged" not in capsys.readouterr().out  # a smoke run is cut short on purpose


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
    settings = ("--lr", "1e-9", "--epochs", 30, "--output", tmp_path / "run")
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
    assert pasted(shown.out)[-2:] == ["--output", str(tmp_path / "run-2")]


def test_a_plan_tells_the_length_on_these_data(models, capsys):
    def told(data: str, *words: object) -> str:
        ask = ("train", "contrastive", "--model", models / "clip", "--data", data, "--plan")
        assert recipes_cases.run(*ask, *words) == 0
        return " ".join(capsys.readouterr().out.replace("│", " ").split())

    few = told("scenes:images=60")  # batches of 64 captions, and at least 100 steps
    assert "epochs=5" in few
    assert "length: 25 epochs of 4 steps, 100 steps in all; measured on 10 images of dev" in few
    assert "of dev every 7 epochs; the last epoch is kept" in few
    more = told("scenes:images=110,dev=50,test=10")
    assert "on 50 images of dev every 7 epochs; ended by 6 evaluations that are no better" in more
    assert "length: 2 epochs of 4 steps, 8 steps in all" in told("scenes:images=60", "--epochs", 2)
    short = told("scenes:images=60", "--set", "*.steps=1")
    assert "length: 1 epoch of 4 steps, 1 step in all" in short
