from __future__ import annotations

import json
import re
import shutil

import pytest
import torch

import hub_cases
import recipes_cases
from counterfoil.negatives.store import NegativeStore
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages import compare
from counterfoil.recipes.catalogue import SMOKE_STEPS, all_recipes, find_recipe, smoke_recipe
from recipes_cases import FEW_CHANNELS, SMALL, aoq, numbers, run, snapshot

DATA = "scenes:images=36"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert aoq(folder) == 0
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def check(folder, data=DATA) -> None:
    """Everything that a finished run of both rounds holds."""
    for stage in recipes_cases.FILES:
        note = json.loads((folder / f"{stage}.json").read_text())
        assert note["state"] == "done"
    for stage in ("online", "adaptive"):
        assert (folder / stage / "model" / "model.safetensors").is_file()
        lines = (folder / stage / "metrics.jsonl").read_text().splitlines()
        assert max(json.loads(line)["step"] for line in lines) <= SMOKE_STEPS
        assert not (folder / stage / "checkpoints").exists()
    train = DataSource(data).split("train")
    store = NegativeStore.open(folder / "lists", fingerprint=train.fingerprint)
    wrong = train.text_to_image[store.lists.texts.long()] != torch.arange(len(train)).unsqueeze(1)
    assert wrong.all()
    for found in numbers(folder).values():
        assert 0 <= found["i2t"]["r1"] <= found["i2t"]["r5"] <= found["i2t"]["r10"] <= 100
    assert "<html" in (folder / "report" / "report.html").read_text()
    assert not list(folder.rglob(".*"))


def test_both_rounds_end_to_end(whole, tmp_path, monkeypatch, capsys):
    check(whole)
    monkeypatch.setattr(compare, "_galleries", recipes_cases.galleries)
    assert aoq(tmp_path / "run", host="scan-i2t") == 0
    check(tmp_path / "run")
    assert "data:image/" in (tmp_path / "run" / "report" / "report.html").read_text()
    shown = " ".join(capsys.readouterr().out.split())
    assert "whole split" in shown
    assert "online adaptive difference" in shown


def test_a_cascade_as_a_stage(whole, copy, capsys):
    first = "test-adaptive.first=['online']"
    assert aoq(copy, "scenes:images=36", "--set", first, "--set", "test-adaptive.depth=2") == 2
    assert "test-adaptive" in capsys.readouterr().err
    for stage in ("test-adaptive", "report"):
        shutil.rmtree(copy / stage)
        (copy / f"{stage}.json").unlink()
    assert aoq(copy, "scenes:images=36", "--set", first, "--set", "test-adaptive.depth=2") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "top-2 of online re-ranked, all behind them in its order" in shown
    before, after = numbers(whole)["test-adaptive"], numbers(copy)["test-adaptive"]
    assert after["shortlists"]["full"]["rsum"] == before["rsum"]
    assert after["shortlists"]["first"]["rsum"] == numbers(whole)["test-online"]["rsum"]
    assert "adaptive on top-2 of online" in (copy / "report" / "report.html").read_text()


@pytest.mark.parametrize("host", ["vsepp", "scan-t2i"])
def test_one_round_on_regions(host, tmp_path):
    data = f"{DATA},features=regions"
    args = ("train", host, "--data", data, "--output", tmp_path / "run", *SMALL)
    assert run(*args, "--set", "online.epochs=1", "--set", "online.processor.min_count=1") == 0
    card = json.loads((tmp_path / "run" / "online" / "model" / "model.json").read_text())
    assert "Regions" in card["model"]["image"]["call"]
    assert (tmp_path / "run" / "test" / "evaluation.json").is_file()


MORE = {"vsrn": "*.model.captioner.width=16", "hrem": "*.model.graph.width=16"}
VILT = ("*.model.patch=32",)
UNITER = ("*.model.layers=1", "*.model.width=16", "*.model.heads=2", "*.batch=8")
DOT = ("*.model.image.layers=1", "*.model.text.layers=1", "*.batch=8")
DIVE = ("*.model.image.tower.width=16", "*.model.text.gru.width=16", "*.batch=4")


# Every model and kind of stage once. Other recipes are parts of these, run in a test of their own,
# or differ in the model alone.
QUICK = (  # by the names of their runs
    "bfan-scenes",
    "aoq/vsrn-single-scenes",
    "aoq/scan-t2i-scenes-vsrn-lists",
    "batches/vsepp-scenes",
    *(f"ndgl/{model}-scenes" for model in ("gpo", "chan", "esa", "hrem", "dive")),
    "tags/uniter-scenes",
    "tags-dc/uniter-scenes",
    "tags-dc/vilt-scenes",
    "tags/ablations/static-tuned/uniter-scenes",
    "tags/with-aoq/vsepp-scenes",
    "tags/with-ndgl/vsepp-scenes",
)


# Those that differ from another one in a loss or the model alone.
ALIKE = re.compile(
    r"aoq/ablations/(.+/|(?!vsepp-s))|aoq/.+-vsrn-lists|aoq/(scan|bfan)-(i2t|prob|equal|t2i-avg)-s"
    r"|vse-c/.+/|ndgl/(parts|readings|teachers|batches|mining)/(?!gpo-s)|tags/(hosts|with-.+)/gpo"
    r"|(graph|batches)/scan|queue/gpo|cascade/gpo"
)


def of_scenes():
    """Each but those like another one, and trainings that are a whole recipe's first stages."""
    made = {made.name: made for made in all_recipes(like="scenes")}
    found = {
        name: recipe
        for name, recipe in made.items()
        if name in QUICK or not (ALIKE.match(name) or {f"aoq/{name}", f"ndgl/{name}"} & set(made))
    }
    assert set(QUICK) <= set(found)
    for name, made in found.items():
        marks = [] if name in QUICK else [pytest.mark.slow]
        yield pytest.param(made, marks=marks, id=name)


@pytest.mark.parametrize("whole_recipe", list(of_scenes()))
def test_every_recipe_of_scenes(whole_recipe, tmp_path):
    name = whole_recipe.name
    mines = "aoq" in name or "mining" in name
    small = list(DIVE if "dive" in name else UNITER if "uniter" in name else SMALL[1::2])
    small = [*UNITER, *VILT] if "vilt" in name else small
    small = [*DOT] if "lightningdot" in name else small
    channels = [("*.model.image.tower." if "dive" in name else "*.model.image.") + "channels=4"]
    reads_uniter = "uniter" in name or name.startswith(("cascade", "tags/hosts", "tags/with-"))
    reads = reads_uniter or "lightningdot" in name
    small += UNITER if reads_uniter else []
    small += ["*.mined.sampling.texts=10", "*.mined.sampling.images=5"] if mines else []
    small += [] if reads or {"vilt", "mobilenet"} & set(re.split("[/-]", name)) else channels
    small += [more for host, more in MORE.items() if host in name]
    if "mobilenet" in name:
        public = hub_cases.mobilenet(tmp_path / "public")
        small += [f"*.model.image.name={public}", "*.processor.size=48"]
    recipe = smoke_recipe(apply_overrides(whole_recipe, small))
    data = "scenes:images=30,features=regions" if reads else "scenes:images=30"
    assert run_pipeline(recipe, DataSource(data), tmp_path / "run")
    for stage in recipe.stages:
        assert json.loads((tmp_path / "run" / f"{stage.name}.json").read_text())["state"] == "done"


def test_a_second_run_keeps_everything(copy, whole, capsys):
    before = snapshot(copy)
    assert aoq(copy) == 0
    assert snapshot(copy) == before
    assert capsys.readouterr().err.count("kept") == len(recipes_cases.FILES)


def test_a_missing_stage_is_made_again(copy, whole):
    for stage in ("test-adaptive", "report"):
        shutil.rmtree(copy / stage)
        (copy / f"{stage}.json").unlink()
    assert aoq(copy) == 0
    assert numbers(copy) == numbers(whole)
    check(copy)


def test_a_longer_recipe_builds_on_a_shorter_one(tmp_path, capsys):
    both = ("--data", DATA, "--output", tmp_path / "run", "--smoke", *SMALL, *FEW_CHANNELS)
    assert run("run", "online", *both) == 0
    capsys.readouterr()
    assert aoq(tmp_path / "run") == 0
    assert "online: kept" in capsys.readouterr().err


SETTINGS, CONTENTS = "was made with other settings: ", "was made from other contents of the data"


@pytest.mark.parametrize(
    "more, words",
    [
        (("--set", "online.seed=5"), SETTINGS + "online.plan.seed is 0 there and 5 here"),
        (
            ("--set", "adaptive.mined.sampling.count=2"),
            "adaptive.sources[0].sampling.count is 1 there and 2 here",
        ),
        (("--set", "lists.texts=7"), "lists.texts is 20 there and 7 here"),
        (("--set", "lists.positives=text"), "lists.positives is id there and text here"),
        (("--set", "test-online.split=dev"), "test-online.split is test there and dev here"),
        (("scenes:images=36,seed=1",), "was made from other data: fingerprint is"),
        (("scenes:images=36,size=32",), CONTENTS),
        (("scenes:images=36,features=regions",), CONTENTS),
    ],
)
def test_other_settings_are_refused(more, words, copy, capsys):
    before = snapshot(copy)
    data, options = (more[0], ()) if len(more) == 1 else (DATA, more)
    assert aoq(copy, data, *options) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert snapshot(copy) == before


def test_settings_that_change_no_number_are_no_other_settings(copy):
    before = snapshot(copy)
    assert aoq(copy, DATA, "--set", "*.ahead=1", "--set", "*.save_minutes=1") == 0
    assert snapshot(copy) == before


def test_stopped_by_the_clock_and_gone_on_with(tmp_path, capsys):
    """Steps that take longer than the time there is; each session does a few."""
    folder = tmp_path / "run"
    slow = ("--set", "*.save_minutes=0")
    codes = [aoq(folder, DATA, *slow, "--minutes", "0.01")]
    while codes[-1] == 3:
        assert "add --resume to continue" in capsys.readouterr().err
        codes.append(aoq(folder, DATA, *slow, "--minutes", "0.01", "--resume"))
        assert len(codes) < 40
    assert codes[-1] == 0
    check(folder)


def test_out_of_time_in_the_middle_gives_the_same_numbers(tmp_path, whole, monkeypatch):
    """The clock jumps after three steps of the first training."""
    folder = tmp_path / "run"
    jump_after(monkeypatch, steps=3)
    assert aoq(folder, DATA, "--minutes", "600") == 3
    assert json.loads((folder / "online.json").read_text())["state"] == "running"
    assert (folder / "online" / "checkpoints" / "last.safetensors").is_file()
    monkeypatch.undo()
    assert aoq(folder) == 2  # without --resume
    assert aoq(folder, DATA, "--resume") == 0
    assert numbers(folder) == numbers(whole)
    check(folder)


def jump_after(monkeypatch, *, steps: int) -> None:
    from counterfoil.training.stopping import StopMonitor

    calls = iter(range(10**6))
    monkeypatch.setattr(
        StopMonitor,
        "decide",
        lambda self: ("minutes", True) if next(calls) >= steps else (None, False),
    )


def test_no_time_at_all(tmp_path, capsys, monkeypatch):
    recipe = smoke_recipe(
        apply_overrides(find_recipe("online"), [*SMALL[1::2], *FEW_CHANNELS[1::2]])
    )
    assert not run_pipeline(recipe, DataSource(DATA), tmp_path / "run", minutes=0.0)
    assert "online: stopped, the time is up; add --resume" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_training_that_was_saved_but_not_noted_is_not_repeated(copy, whole, capsys):
    """What a kill between the last act of a stage and its note leaves behind."""
    note = json.loads((copy / "adaptive.json").read_text())
    (copy / "adaptive.json").write_text(json.dumps(note | {"state": "running"}))
    (copy / "adaptive" / "checkpoints").mkdir()
    (copy / "adaptive" / "checkpoints" / "best-3.safetensors").write_bytes(b"x")
    before = (copy / "adaptive" / "metrics.jsonl").stat().st_mtime_ns
    assert aoq(copy, DATA, "--resume") == 0
    assert (copy / "adaptive" / "metrics.jsonl").stat().st_mtime_ns == before
    check(copy)


def test_leftovers_of_a_kill_are_swept_up(copy):
    for stage in ("lists", "test-adaptive"):
        note = json.loads((copy / f"{stage}.json").read_text())
        (copy / f"{stage}.json").write_text(json.dumps(note | {"state": "running"}))
    (copy / ".lists.abcd.part").mkdir()
    (copy / ".lists.abcd.part" / "texts.npy").write_bytes(b"half")
    (copy / ".lists.efgh.old").mkdir()
    (copy / "test-adaptive" / ".evaluation.json.xyz.part").write_bytes(b"half")
    assert aoq(copy, DATA, "--resume") == 0
    check(copy)


def test_start_from_another_stage(tmp_path):
    small = [
        *SMALL[1::2],
        *FEW_CHANNELS[1::2],
        "*.mined.sampling.texts=10",
        "*.mined.sampling.images=5",
        "adaptive.start=online",
    ]
    recipe = smoke_recipe(apply_overrides(find_recipe("aoq"), small))
    assert run_pipeline(recipe, DataSource("scenes:images=30"), tmp_path / "run")
    words = [
        json.loads((tmp_path / "run" / s / "model" / "tokenizer.json").read_text())["words"]
        for s in ("online", "adaptive")
    ]
    assert words[0] == words[1]


def test_a_corpus_without_dev_keeps_the_last_epoch(tmp_path, capsys):
    recipe = smoke_recipe(
        apply_overrides(find_recipe("online"), [*SMALL[1::2], *FEW_CHANNELS[1::2]])
    )
    assert run_pipeline(recipe, DataSource("scenes:images=30,dev=0"), tmp_path / "run")
    assert "has no dev split" in capsys.readouterr().err


def test_lists_shorter_than_the_draws_are_refused_before_anything_is_done(tmp_path, capsys):
    words = ("aoq", "--loss", "h1000", "--data", "scenes:images=36", "--smoke")
    assert run("run", *words, "--output", tmp_path / "run") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "'h1000': Mined draws from the 1,000 hardest texts of an image" in told
    assert not (tmp_path / "run").exists()
