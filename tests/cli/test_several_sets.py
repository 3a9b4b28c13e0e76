"""Several data sets on the command line: trained on as one, evaluated one by one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import counterfoil as cf
import recipes_cases
import several_cases
from counterfoil.cli import main
from counterfoil.pipelines.run import DataSource
from counterfoil.recipes.catalogue import own_data_recipe
from counterfoil.training.logging import read_metrics

BOTH = ("--data", "coco", "--data", "my/mine.csv:weight=2")
TRAIN = ("train", "contrastive", "--model", "clip", "--epochs", "1", "--batch-size", "16")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("several")
    several_cases.write_coco(folder / "coco", test=8)
    several_cases.write_table(folder / "my")
    recipes_cases.clip_like(folder / "clip")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        homogeneous = ("--set", "*.homogeneous_batches=true")
        assert main([*TRAIN, *BOTH, *homogeneous, "--output", "run"]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(world, monkeypatch):
    monkeypatch.chdir(world)


def test_a_training_of_several(world, capsys):
    lines = read_metrics(world / "run" / "tuned" / "metrics.jsonl")
    dev = [line for line in lines if "dev_rsum" in line]
    assert [set(line) & {"dev_rsum_coco", "dev_rsum_my"} for line in dev] == [{"dev_rsum_coco"}]
    assert main([*TRAIN, *BOTH, "--set", "*.homogeneous_batches=true", "--output", "run"]) == 0
    assert "tuned: kept" in capsys.readouterr().err
    other = ("--data", "coco", "--data", "my/mine.csv:weight=3")
    assert main([*TRAIN, *other, "--set", "*.homogeneous_batches=true", "--output", "run"]) == 2
    assert "weights.my is 2.0 there and 3.0 here" in capsys.readouterr().err


def test_an_evaluation_of_each(world, capsys):
    assert main(["evaluate", "run", *BOTH, "--json", "both.json", "--output", "both"]) == 0
    both = json.loads((world / "both.json").read_text())
    for name, data in (("coco", "coco"), ("my", "my/mine.csv")):
        assert main(["evaluate", "run", "--data", data, "--json", f"{name}.json"]) == 0
        assert both[name] == json.loads((world / f"{name}.json").read_text())
        assert (world / "both" / name / "evaluation.json").is_file()
    assert list(both) == ["coco", "my"]
    capsys.readouterr()
    assert main(["evaluate", "run", "clip", "--data", "coco::my/mine.csv", "--output", "two"]) == 0
    assert (world / "two" / "my" / "clip" / "evaluation.json").is_file()
    shown = capsys.readouterr().out
    assert "next: counterfoil report two/coco, or counterfoil report two/my" in shown
    assert main(["report", "two/my"]) == 0


def test_sets_of_one_name_are_told_apart(world, capsys):
    data = ("--data", "scenes:seed=1,images=30", "--data", "scenes:seed=2,images=30")
    assert main(["evaluate", "clip", *data, "--split", "all"]) == 0
    shown = capsys.readouterr().out
    assert "scenes all; whole split" in shown
    assert "scenes-2 all; whole split" in shown


def test_an_evaluation_is_refused_before_the_first_set(world, capsys):
    (world / "bare").mkdir()
    shutil.copy(world / "my" / "0.png", world / "bare")
    assert main(["evaluate", "clip", "--data", "coco", "--data", "bare", "--split", "all"]) == 2
    answer = capsys.readouterr()
    assert "bare holds no captions to rank" in " ".join(answer.err.split())
    assert not answer.out


def test_pictures_that_no_table_names_are_indexed(world, capsys):
    shutil.copytree(world / "my", world / "more")
    shutil.copy(world / "my" / "0.png", world / "more" / "unnamed.png")
    assert main(["index", "clip", "more::coco", "--output", "index"]) == 0
    images = 1 + sum(several_cases.MINE.values()) + sum(several_cases.COCO.values()) + 8
    assert f"index: {images} images" in capsys.readouterr().out


def test_features_are_not_left_out_in_silence(capsys):
    regions = "scenes:images=30,features=regions"
    assert DataSource.of(f"{regions}::scenes:images=30,seed=2").open().features is None
    warning = "features of scenes are not read beside other data sets, pictures are"
    assert warning in " ".join(capsys.readouterr().err.split())


def test_a_set_that_is_not_trained_on_is_named(world, capsys):
    table = several_cases.write_table(world / "tests")
    table.write_text(table.read_text().replace(",train,", ",test,").replace("A ", "Some "))
    assert main([*TRAIN, "--data", "coco", "--data", "tests", "--output", "named"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "tests has no train split, so nothing is trained on it" in shown


def test_lists_and_a_second_training(world, capsys):
    assert main(["mine", "clip", *BOTH, "--output", "lists"]) == 0
    assert "coco + my train: lists" in capsys.readouterr().out
    judge = ("judge", "clip", "--negatives", "lists", "--data", "coco::my/mine.csv:weight=2")
    assert main([*judge, "--scores", "scored"]) == 0
    assert "pairs scored by clip: scored" in capsys.readouterr().out
    train = (*TRAIN, "--negatives", "lists")
    assert main([*train, *BOTH, "--set", "*.steps=2", "--output", "again"]) == 0


@pytest.mark.papers
def test_a_recipe_in_python(world):
    recipe = own_data_recipe("vsepp", pixels=True)
    run = cf.run(recipe, data="coco::my/mine.csv", output=world / "vsepp", smoke=True)
    assert run.finished
    (result,) = run.evaluations.values()
    assert result.report.setting.place == "coco + my test"


def test_equal_names_are_numbered():
    data = "scenes:seed=1,images=30::scenes:seed=2,images=30"
    source = DataSource.of(data)
    assert source.typed == data
    assert list(source.open().datasets) == ["scenes", "scenes-2"]


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["mine", "mine-2", "x/mine"], ["mine", "mine-2", "mine-3"]),
        (["mine", "x/mine", "mine-2"], ["mine", "mine-3", "mine-2"]),
    ],
)
def test_no_set_takes_the_place_of_another(tmp_path, monkeypatch, folders, names):
    monkeypatch.chdir(tmp_path)
    for folder in folders:
        Path(folder).mkdir(parents=True)
        table = several_cases.write_table(tmp_path / folder / "files")
        for file in (*table.parent.glob("*.png"), table):
            file.rename(Path(folder, file.name))
        Path(folder, "mine.csv").rename(Path(folder, "captions.csv"))
        text = Path(folder, "captions.csv").read_text()
        Path(folder, "captions.csv").write_text(text.replace("A ", f"{folder} "))
    data = DataSource.of("::".join(folders)).open()
    assert list(data.datasets) == names
    assert len(data) == 3 * sum(several_cases.MINE.values())


REFUSALS = [
    ("evaluate run --data coco --data coco", "coco is given twice; name each data set once"),
    ("train vsepp --data coco --data ./coco", "coco and coco-2 are the same data"),
    ("train vsepp --data coco --data my/mine.csv:weight=0", "weight=0 is no number above 0"),
    ("train vsepp --data coco --data my/mine.csv:weight=-2", "weight=-2 is no number above 0"),
    ("train vsepp --data coco --data my/mine.csv:weight=nan", "weight=nan is no number above"),
    ("train vsepp --data coco --data my/mine.csv:weight=inf", "weight=inf is no number above"),
    ("train vsepp --data coco --data my/mine.csv:weight=two", "weight=two is no number above"),
    ("train vsepp --data my/mine.csv:weight=2", "is one data set, and weights are of several"),
    ("train vsepp --data coco --data nothing", "nothing does not exist"),
    (
        "train contrastive --model clip --data coco --set *.homogeneous_batches=true",
        "homogeneous_batches fills each batch from one of several data sets, and coco is one",
    ),
    ("train vsepp --data coco --data my/mine.csv:features=f.npy", "f.npy"),
    ("judge run --negatives lists --data coco::my/mine.csv --output c", "are of one data set"),
    (
        "judge run --negatives l --data coco --data my/ --output c",
        "takes one data set",
    ),
    (
        "train vsepp --data coco --data my:features=coco",
        "features are not read of several data",
    ),
    (
        "train contrastive --model clip --data coco --data my/mine.csv --epochs 1 "
        "--set *.select=rsum_my --output selected",
        "'rsum_my' is not a dev figure to select by; did you mean 'rsum'?",
    ),
    ("data check coco::", "'coco::' names an empty data set"),
    ("data check ::coco", "'::coco' names an empty data set"),
    ("data check a::b --caption-column x", "a does not exist"),
    ("train vsepp --data odd::name --data coco", "odd::name: :: stands between data sets"),
    ("search run dog --data my --data coco", "counterfoil search takes one data set"),
    ("train vsepp --data coco:weight=1.2.3", "weight=1.2.3 is no number above 0"),
]


# a name with "::" would be a scope of its own to xdist, in another world
@pytest.mark.parametrize(
    ("words", "refusal"), REFUSALS, ids=[words.replace("::", " and ") for words, _ in REFUSALS]
)
def test_refusals(words, refusal, capsys):
    Path("odd::name").mkdir(exist_ok=True)
    assert main(words.split()) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert refusal in shown
    assert "epoch 1" not in shown, "refused before the training"
