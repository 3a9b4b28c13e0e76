"""Recipes for a user's own data."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from PIL import Image

import recipes_cases
from counterfoil.cli import main
from counterfoil.core.config import config
from counterfoil.model import load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.papers import photos
from counterfoil.papers.models.vilt import ViLT
from counterfoil.papers.ndgl import recipe as ndgl
from counterfoil.papers.pretraining.stage import Pretrain
from counterfoil.papers.systems import NEWER, SINGLES
from counterfoil.papers.tags import recipe as tags
from counterfoil.papers.training import online_stage
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import ComputeTargets, Evaluate, Recipe, Train
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.recipes import clip
from counterfoil.training.logging import read_metrics
from counterfoil.training.mined import Mined, MinedNeighbours

SMALL = ("*.model.image.width=16", "*.model.text.width=16", "*.epochs=1", "*.steps=3", "*.batch=16")


@pytest.mark.parametrize("pixels,sees", [(True, "pixels"), (False, "features")])
def test_every_model_reads_pixels_or_features(pixels, sees):
    for name in photos.known_models("scenes" if pixels else "flickr8k"):
        recipe = photos.own_data_recipe(name, pixels=pixels)
        trained = [stage for stage in recipe.stages if isinstance(stage, Train)]
        assert {stage.processor.images for stage in trained} == {sees}
        tests = [stage for stage in recipe.stages if isinstance(stage, Evaluate)]
        assert {stage.protocol for stage in tests} == {"whole"}
        several = {"ndgl": ndgl.K + 1, "tags-dc": 2, "aoq": 2}
        assert len(trained) == several.get(name.split("/")[0], 1)


def test_models_that_need_no_download_are_known():
    known = photos.known_models("scenes")
    assert set(SINGLES) < set(known)
    assert {"gpo", "chan", "esa", "hrem", "dive", "ndgl/gpo", "ndgl/vsrn"} < set(known)
    assert not any("bert" in name for name in known)
    assert len(known) == len(set(known))


def test_unknown_models_get_the_nearest_name():
    for name, near in (("vseep", "vsepp"), ("chna", "chan"), ("ndgl/gpoo", "ndgl/gpo")):
        with pytest.raises(ValueError, match=f"did you mean '{near}'"):
            photos.own_data_recipe(name, pixels=True)
    assert any("bert" in host for host in NEWER)
    with pytest.raises(ValueError, match="'gpo-bert' is not a model to train"):
        photos.own_data_recipe("gpo-bert", pixels=True)


def test_saved_models_replace_teachers():
    recipe = photos.own_data_recipe("ndgl/chan", pixels=True, teachers=["runs/a", "runs/b"])
    taught = recipe.stage("targets")
    assert isinstance(taught, ComputeTargets)
    assert (taught.using, taught.models) == ((), ("runs/a", "runs/b"))
    assert [stage.name for stage in recipe.stages] == ["targets", "student", "test-student"]
    usual = photos.own_data_recipe("ndgl/chan", pixels=True)
    assert recipe.stage("student") == usual.stage("student")
    with pytest.raises(ValueError, match="'chan' learns from no teachers; name 'ndgl/chan'"):
        photos.own_data_recipe("chan", pixels=True, teachers=["runs/a"])


def test_a_model_teaches_another_kind_by_the_command_line(tmp_path, capsys):
    first = apply_overrides(photos.own_data_recipe("vsepp", pixels=True), SMALL)
    assert run_pipeline(first, DataSource("scenes:images=36"), tmp_path / "a")
    capsys.readouterr()
    settings = [word for setting in SMALL for word in ("--set", setting)]
    command = ["train", "ndgl/gpo", "--data", "scenes:images=36", "--output", str(tmp_path / "b")]
    assert main([*command, "--teacher", str(tmp_path / "a" / "online"), *settings]) == 0
    assert "targets: 1 teacher, stored for" in capsys.readouterr().err
    assert (tmp_path / "b" / "student" / "model" / "model.json").is_file()
    assert main([*command, *settings]) == 2
    assert "was made with other settings" in capsys.readouterr().err


def test_a_guide_leaves_negatives_out_by_the_command_line(tmp_path, capsys):
    first = apply_overrides(photos.own_data_recipe("vsepp", pixels=True), SMALL)
    assert run_pipeline(first, DataSource("scenes:images=36"), tmp_path / "a")
    settings = [word for setting in SMALL for word in ("--set", setting)]
    guide = ("--guide", str(tmp_path / "a" / "online"))
    losses = []
    for folder, more in (("b", ()), ("c", (*guide, "--set", "*.mask.margin=0.1"))):
        command = ["train", "gpo", "--data", "scenes:images=36", "--output", str(tmp_path / folder)]
        assert main([*command, *more, *settings]) == 0
        losses.append(read_metrics(tmp_path / folder / "online" / "metrics.jsonl")[0]["loss"])
    assert losses[1] < losses[0]
    capsys.readouterr()
    command = ["train", "ndgl/gpo", "--data", "scenes:images=36", "--output", str(tmp_path / "d")]
    assert main([*command, *guide, *settings]) == 2
    assert "pass --set student.mask.guide=targets for these" in capsys.readouterr().err


def test_lists_in_a_folder_are_trained_on_by_the_command_line(tmp_path, capsys):
    """Ours and AOQ's files give the same second round; lists of other data are refused."""
    data, settings = ("--data", "scenes:images=36"), [w for one in SMALL for w in ("--set", one)]
    assert main(["train", "vsepp", *data, "--output", str(tmp_path / "a"), *settings]) == 0
    model, short = (
        str(tmp_path / "a" / "online"),
        ("--texts-per-image", "20", "--images-per-text", "4"),
    )
    assert main(["mine", model, *data, "--output", str(tmp_path / "lists"), *short]) == 0
    cold = ("--set", "adaptive.objective.terms.quintuplet.term.steps=0")
    aoq = ("--output", str(tmp_path / "aoq"), "--name", "own")
    assert main(["papers", "export-lists", str(tmp_path / "lists"), *data, *aoq]) == 0
    for name in ("lists", "aoq"):
        command = ["train", "vsepp", *data, "--output", str(tmp_path / f"run-{name}")]
        assert main([*command, "--negatives", str(tmp_path / name), *settings, *cold]) == 0
    printed = capsys.readouterr().out
    assert "Use online: on dev" in printed or "Use adaptive: on dev" in printed
    first, second = (tmp_path / f"run-{name}" for name in ("lists", "aoq"))
    losses = [
        read_metrics(run / "adaptive" / "metrics.jsonl")[0]["loss"] for run in (first, second)
    ]
    assert losses[0] == losses[1] != read_metrics(first / "online" / "metrics.jsonl")[0]["loss"]
    assert (first / "best" / "model" / "model.json").is_file()
    for folder, message in (("run-lists", "holds no mined negatives"), ("no", "holds no mined")):
        command = ["train", "vsepp", *data, "--output", str(tmp_path / "x")]
        assert main([*command, "--negatives", str(tmp_path / folder)]) == 2
        assert message in capsys.readouterr().err
    other = ["train", "vsepp", "--data", "scenes:images=40", "--output", str(tmp_path / "x")]
    assert main([*other, "--negatives", str(tmp_path / "lists")]) == 2
    assert "was mined from corpus" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_lists_replace_the_mining_of_a_recipe_and_give_others_a_second_round(tmp_path):
    public = recipes_cases.clip_like(tmp_path / "public")
    lists, pair = tmp_path / "lists", clip.FineTunedModel(name=str(public))
    mined = clip.with_lists(photos.own_data_recipe("aoq/mobilenet", pixels=True), lists)
    assert mined.stage("adaptive").source(Mined).arguments["negatives"] == str(lists)
    assert "lists" not in {stage.name for stage in mined.stages}
    own = clip.with_lists(photos.own_data_recipe("gpo", pixels=True), lists)
    adaptive = own.stage("adaptive")
    assert adaptive.source(Mined).arguments["negatives"] == str(lists)
    assert adaptive.start is None
    joined = clip.with_lists(clip.fine_tune_recipe("contrastive", pair), lists)
    assert joined.stage("neighbours").sources == (config(MinedNeighbours, negatives=str(lists)),)
    assert joined.stage("report").selection == "best"
    negclip = clip.with_lists(clip.fine_tune_recipe("negclip", pair), lists)
    assert config(MinedNeighbours, negatives=str(lists)) in negclip.stage("tuned").sources
    with pytest.raises(ValueError, match="'ndgl-full-own' has no training on mined lists"):
        clip.with_lists(clip.fine_tune_recipe("ndgl", pair), lists)


TINY = ("layers=2", "width=16", "heads=2", "inner=16", "size=16", "patch=8", "positions=12")
VILT = (
    "*.processor.size=16",
    "*.processor.divisor=8",
    "*.processor.longest=12",
    "*.epochs=1",
    "*.steps=2",
)
VILT += ("*.topscoringminer.candidates.texts=9", "*.topscoringminer.candidates.images=9")


@pytest.mark.parametrize("name", ["vilt", "tags-dc/vilt"])
def test_photos_train_a_vilt_from_public_weights(name, tmp_path):
    """A folder in the place of the hub; the saved model does not ask for it again."""
    public = recipes_cases.vilt_like(tmp_path / "public")
    sizes = [f"*.model.{size}" for size in TINY]
    where = [f"*.model.weights={public}", f"*.processor.texts={public}"]
    words = [word for setting in (*sizes, *VILT, *where) for word in ("--set", setting)]
    command = ["train", name, "--data", "scenes:images=24", "--output", str(tmp_path / "run")]
    assert main([*command, *words]) == 0
    last = photos.own_data_recipe(name, pixels=True).stages[
        -2 if name.startswith("tags-dc") else -1
    ]
    stage = last.using[0]
    shutil.rmtree(public)
    model = load_model(tmp_path / "run" / stage)
    assert isinstance(model.model, ViLT)
    picture = Image.new("RGB", (40, 20), "red")
    assert model.score(picture, ["a dog", "a red circle"]).shape == (2,)
    saved = json.loads((tmp_path / "run" / stage / "model" / "processor.json").read_text())
    assert saved["image_processor"]["divisor"] == 8


def test_vilt_needs_pixels():
    assert not set(tags.OWN_RECIPES) & set(photos.known_models("flickr8k"))
    for name in tags.OWN_RECIPES:
        first, *rest = [
            s for s in photos.own_data_recipe(name, pixels=True).stages if isinstance(s, Train)
        ]
        assert first.start is None
        assert [stage.start for stage in rest] == ["tags"] * len(rest)
        assert first.model.arguments["weights"] == first.processor.texts == "dandelin/vilt-b32-mlm"
        assert first.plan.batch * first.plan.accumulate == 16


class OwnModel(RetrievalModel):
    """A model of a user's module, which files may not name."""


@pytest.mark.parametrize("kind", [Train, Pretrain])
def test_a_model_that_could_not_be_opened_again_is_refused_first(kind, tmp_path):
    online = online_stage("vsepp", "scenes")
    named = {"name": "mine", "model": replace(online.model, make=OwnModel), "plan": online.plan}
    more = {"objective": online.objective} if kind is Train else {}
    recipe = Recipe(name="own", stages=(online, kind(**named, **more)))
    with pytest.raises(ValueError, match="the model of 'mine' could not be opened again"):
        run_pipeline(recipe, DataSource("scenes:images=24,features=regions"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
