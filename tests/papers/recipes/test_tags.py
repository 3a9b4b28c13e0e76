"""Recipes of UNITER, TAGS and TAGS-DC."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from counterfoil.core.config import from_stage
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.papers.models.vilt import ViLT
from counterfoil.papers.pretraining.pretrain import REGION_TASKS
from counterfoil.papers.pretraining.stage import Pretrain
from counterfoil.papers.systems import DATASETS, LARGE, TAGS, TAGS_RELEASED
from counterfoil.papers.tags.generation import TagsGenerator
from counterfoil.papers.tags.recipe import CAPTIONS, tags_train_config
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Train, stage_digests
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe

TINY = ("*.model.layers=1", "*.model.width=16", "*.model.heads=2", "*.batch=8")


def training(stage: str, recipe: str, **arguments: Any) -> Train:
    found = find_recipe(recipe, **arguments).stage(stage)
    assert isinstance(found, Train)
    return found


def writer(stage: Train) -> dict[str, Any]:
    """Arguments of a training's generator."""
    screens, generates = stage.sources
    assert (screens.make, generates.make) == (TopScoringMiner, TagsGenerator)
    assert screens.arguments["keep"] == generates.arguments["keep"]
    return dict(generates.arguments)


def weights(stage: Train) -> dict[str, float]:
    return {name: weight for name, (weight, _) in stage.objective.arguments["terms"].items()}


@pytest.mark.parametrize("dataset", LARGE)
def test_the_second_step_continues_the_first_and_doubts_words(dataset: str) -> None:
    first, second = (training(stage, "tags-dc", like=dataset) for stage in ("tags", "tags-dc"))
    assert set(weights(second)) == {*weights(first), "doubt", "correct"}
    assert not writer(first)["specials"]
    assert second.start == "tags"
    assert second.objective.arguments["terms"]["doubt"][1].arguments["weights"] == (1.0, 0.11)


def test_the_released_code_has_its_own_rules() -> None:
    for name, choice in (("tags", "lowered logits"), ("tags-dc", "lowered scores")):
        made = writer(training(f"{name}-released", "tags-dc", like="flickr30k", released=True))
        assert made["specials"]
        assert made["candidate_filter"].arguments == {"rules": (), "choice": choice}


@pytest.mark.parametrize("dataset", DATASETS)
def test_ablations_differ_in_one_thing(dataset: str) -> None:
    usual = training("tags", "tags", like=dataset)
    for way, changed in (
        ("wm", {"singles": "only"}),
        ("static", {"filler": from_stage("pretrained")}),
    ):
        assert training("tags", "tags", like=dataset, way=way) == usual
        other = training(way, "tags", like=dataset, way=way)
        assert writer(other) == writer(usual) | changed
        assert other.plan == usual.plan


@pytest.mark.parametrize("dataset", DATASETS)
def test_all_begin_with_the_same_pre_training(dataset: str) -> None:
    recipes = [find_recipe("online", model="uniter", like=dataset)]
    ways = ("tags", "wm", "static", "static-tuned")
    recipes += [find_recipe("tags", like=dataset, way=way) for way in ways]
    recipes += [find_recipe("tags-dc", like=dataset, released=one) for one in (False, True)]
    found = [stage_digests(recipe, "d") for recipe in recipes]
    for stage in ("pretrained", "hard", "tags"):
        assert len({one[stage] for one in found if stage in one}) == 1


@pytest.mark.parametrize("dataset", DATASETS)
def test_epochs_hold_all_steps_and_no_batch_is_cut(dataset: str) -> None:
    for numbers in (*TAGS[dataset], *TAGS_RELEASED[dataset]):
        written = tags_train_config(numbers, dataset)
        batches = -(-CAPTIONS[dataset] // written.batch)
        assert written.total(batches) == numbers.steps
        assert written.batch * written.accumulate == numbers.batch


@pytest.mark.parametrize(
    ("model", "data", "settings"),
    [
        ("uniter", "scenes:images=30,features=regions", ()),
        ("vilt", "scenes:images=30", ("*.model.patch=32",)),
    ],
)
def test_heads_of_the_second_step_start_from_the_pre_trained(
    model: str, data: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    still = [*TINY, *settings, "tags.rate=1e-12", "tags-dc.rate=1e-12"]
    recipe = smoke_recipe(apply_overrides(find_recipe("tags-dc", model=model), still))
    recipe = apply_overrides(replace(recipe, stages=recipe.stages[:4]), ["*.steps=2"])
    assert run_pipeline(recipe, DataSource(data), tmp_path)
    before, after = (
        load_file(tmp_path / stage / "model" / "model.safetensors")
        for stage in ("pretrained", "tags-dc")
    )
    for new, old in (("doubt.weight", "match.weight"), ("correct.bias", "fill.bias")):
        assert (after[f"says.{new}"] - before[f"says.{old}"]).abs().max() < 1e-9
    assert "says.match.weight" not in after


def test_large_sets_read_wordpieces_with_uniter_base() -> None:
    for dataset in DATASETS:
        stage = training("hard", "online", model="uniter", like=dataset)
        large = dataset in LARGE
        assert (stage.processor.texts == "bert-base-cased") == large
        assert (stage.model.arguments["layers"] == 12) == large


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("dataset", LARGE)
def test_the_large_setting(dataset: str, released: bool) -> None:
    large, base = (
        find_recipe("tags-dc", model=model, like=dataset, released=released)
        for model in ("uniter-large", "uniter")
    )
    assert [stage.name for stage in large.stages] == [stage.name for stage in base.stages]
    for stage, small in zip(large.stages, base.stages, strict=True):
        if isinstance(stage, Train | Pretrain):
            assert isinstance(small, Train | Pretrain)
            sizes = stage.model.arguments
            assert (sizes["layers"], sizes["width"], sizes["heads"]) == (24, 1024, 16)
            assert sizes["inner"] == 4096
            assert (stage.start, stage.processor) == (small.start, small.processor)


def test_hard_negatives_of_the_large_model() -> None:
    stage = training("hard", "tags", model="uniter-large", like="flickr30k")
    (screens,) = stage.sources
    assert screens.arguments["keep"] == 23
    other = training("hard", "online", model="uniter-large", like="coco")
    assert other.model == stage.model
    assert find_recipe("tags", model="uniter-large", like="coco").about.startswith("UNITER-large;")


def test_recipes_of_vilt_differ_in_model_processor_and_tasks() -> None:
    for name in ("online", "tags", "tags-dc"):
        uniter, vilt = (find_recipe(name, model=model) for model in ("uniter", "vilt"))
        assert "features" not in vilt.data
        for one, other in zip(uniter.stages, vilt.stages, strict=True):
            if isinstance(one, Train | Pretrain):
                assert other.model.make is ViLT
                wanted = {*one.model.arguments["outputs"]} - {"regress", "classify"}
                assert {*other.model.arguments["outputs"]} == wanted
                assert other.processor.images == "pixels"
                other = replace(other, model=one.model, processor=one.processor)
            if isinstance(one, Pretrain):
                assert not other.tasks.used(REGION_TASKS)
                other = replace(other, tasks=one.tasks)
            assert one == other
    with pytest.raises(ValueError, match="vilt has no numbers for coco; it is trained like scenes"):
        find_recipe("tags", model="vilt", like="coco")
