"""Recipes of models that train on captions of TAGS."""

from __future__ import annotations

import pytest

from counterfoil.core.config import config_from_dict, from_stage
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.negatives.generated import GeneratedCaptions
from counterfoil.papers.systems import DATASETS
from counterfoil.pipelines.pipeline import Evaluate, Recipe, Train, recipe_to_dict, stage_digests
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe
from papers.test_docs import ran

PAIRS = [(model, method) for model in ("vsepp", "gpo") for method in ("own", "aoq", "ndgl")]
RECIPES = [
    find_recipe("tags-foils", model=model, method=method, like=dataset)
    for model, method in [*PAIRS, ("scan-t2i", "own")]
    for dataset in DATASETS
]
each = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


def pair(recipe: Recipe) -> tuple[Train, Train]:
    """The training without written captions, and the one with them."""
    (taught,) = (s for s in recipe.stages if isinstance(s, Train) and s.source(GeneratedCaptions))
    alone = recipe.stage(taught.name.removesuffix("-written"))
    assert isinstance(alone, Train)
    return alone, taught


@each
def test_only_the_foils_differ(recipe: Recipe) -> None:
    alone, taught = pair(recipe)
    changed = {"name", "objective", "sources"}
    before, after = (
        {key: value for key, value in recipe_to_dict(stage).items() if key not in changed}
        for stage in (alone, taught)
    )
    assert before == after
    terms, more = (stage.objective.arguments["terms"] for stage in (alone, taught))
    assert {key: term for key, term in more.items() if key != "written"} == terms
    *others, foils = taught.sources
    assert tuple(others) == alone.sources
    assert foils.make is GeneratedCaptions
    assert foils.arguments["folder"] == from_stage("written")
    assert config_from_dict(taught.objective.to_dict()) == taught.objective
    assert taught.objective.build().needs.roles > alone.objective.build().needs.roles


@each
def test_foils_begin_after_the_warm_up_and_both_trainings_are_compared(recipe: Recipe) -> None:
    alone, taught = pair(recipe)
    terms = taught.objective.arguments["terms"]
    _, written = terms["written"]
    warm = [term.arguments["steps"] for _, term in terms.values() if term.make is SwitchAfter]
    assert (written.make is StartAt) == bool(warm)
    if warm:
        assert [written.arguments["steps"]] == warm
    used = [s.using for s in recipe.stages if isinstance(s, Evaluate)]
    assert {(alone.name,), (taught.name,)} == set(used)
    assert recipe.stages[-1].kind == "compare"


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_generator_is_that_of_tags(dataset: str) -> None:
    own = stage_digests(find_recipe("tags", like=dataset), "d")
    first = stage_digests(find_recipe("tags-foils", like=dataset), "d")
    for recipe in (recipe for recipe in RECIPES if recipe.name.endswith(dataset)):
        found = stage_digests(recipe, "d")
        assert found["pretrained"] == own["pretrained"]
        assert found["tags"] == own["tags"]
        assert found["written"] == first["written"]


def test_models_are_those_of_their_own_recipes() -> None:
    for model in ("vsepp", "scan-t2i", "gpo"):
        alone, _ = pair(find_recipe("tags-foils", model=model))
        there = find_recipe("online", model=model).stage("online")
        assert isinstance(there, Train)
        assert (alone.model, alone.objective, alone.plan) == (
            there.model,
            there.objective,
            there.plan,
        )


def test_smoke_reaches_the_foils() -> None:
    recipe = smoke_recipe(find_recipe("tags-foils", model="gpo"))
    (taught,) = (s for s in recipe.stages if isinstance(s, Train) and s.source(GeneratedCaptions))
    written = taught.objective.arguments["terms"]["written"][1]
    assert written.arguments["steps"] < taught.plan.steps


def test_the_recipe_of_the_page() -> None:
    recipe = ran("docs/recipes.md", 2)["recipe"]
    assert isinstance(recipe, Recipe)
    assert {"pretrained", "written", "student"} <= set(stage_digests(recipe, "data"))
    student = recipe.stage("student")
    assert isinstance(student, Train)
    assert student.source(GeneratedCaptions).arguments["folder"] == from_stage("written")
