"""Recipes of models that train on captions of TAGS."""

from __future__ import annotations

import pytest

from counterfoil.core.config import config_from_dict, from_data
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.negatives.generated import GeneratedCaptions
from counterfoil.papers.systems import DATASETS
from counterfoil.papers.tags import recipe as tags
from counterfoil.pipelines.pipeline import Evaluate, Recipe, Train, recipe_to_dict, stage_digests
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe
from papers.test_docs import ran

NAMES = [
    f"{kind}/{host}-{dataset}"
    for kind, (_, hosts) in tags.OTHER_VARIANTS.items()
    for host in hosts
    for dataset in DATASETS
]


def pair(name: str) -> tuple[Train, Train]:
    """The training without written captions, and the one with them."""
    recipe = find_recipe(name)
    (taught,) = (s for s in recipe.stages if isinstance(s, Train) and s.written)
    alone = recipe.stage(taught.name.removesuffix("-written"))
    assert isinstance(alone, Train)
    return alone, taught


@pytest.mark.parametrize("name", NAMES)
def test_only_the_foils_differ(name: str) -> None:
    alone, taught = pair(name)
    changed = {"name", "objective", "proposer", "written"}
    before, after = (
        {key: value for key, value in recipe_to_dict(stage).items() if key not in changed}
        for stage in (alone, taught)
    )
    assert before == after
    terms, more = (stage.objective.arguments["terms"] for stage in (alone, taught))
    assert {key: term for key, term in more.items() if key != "written"} == terms
    assert taught.proposer is not None
    assert taught.proposer.make is GeneratedCaptions
    assert taught.proposer.arguments["folder"] == from_data("written")
    assert config_from_dict(taught.objective.to_dict()) == taught.objective
    assert taught.objective.build().needs > alone.objective.build().needs


@pytest.mark.parametrize("name", NAMES)
def test_foils_begin_after_the_warm_up_and_both_trainings_are_compared(name: str) -> None:
    recipe, (alone, taught) = find_recipe(name), pair(name)
    terms = taught.objective.arguments["terms"]
    _, written = terms["written"]
    warm = [term.arguments["steps"] for _, term in terms.values() if term.make is SwitchAfter]
    assert (written.make is StartAt) == bool(warm)
    if warm:
        assert [written.arguments["steps"]] == warm
    used = [s.using for s in recipe.stages if isinstance(s, Evaluate)]
    assert {(alone.name,), (taught.name,)} == set(used)
    assert recipe.stages[-1].kind == "compare"
    assert recipe.name == name


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_generator_is_that_of_tags(dataset: str) -> None:
    own = stage_digests(find_recipe(f"tags/uniter-{dataset}"), "d")
    for name in (name for name in NAMES if name.endswith(dataset)):
        found = stage_digests(find_recipe(name), "d")
        assert found["pretrained"] == own["pretrained"]
        assert found["tags"] == own["tags"]
        first = stage_digests(find_recipe(f"tags/hosts/vsepp-{dataset}"), "d")
        assert found["written"] == first["written"]


def test_models_are_those_of_their_own_recipes() -> None:
    for host, own, stage in (
        ("vsepp", "vsepp-scenes", "online"),
        ("scan", "scan-t2i-scenes", "online"),
        ("gpo", "gpo-scenes", "online"),
    ):
        alone, _ = pair(f"tags/hosts/{host}-scenes")
        there = find_recipe(own).stage(stage)
        assert isinstance(there, Train)
        assert (alone.model, alone.objective, alone.plan) == (
            there.model,
            there.objective,
            there.plan,
        )


def test_smoke_reaches_the_foils() -> None:
    recipe = smoke_recipe(find_recipe("tags/hosts/gpo-scenes"))
    (taught,) = (s for s in recipe.stages if isinstance(s, Train) and s.written)
    written = taught.objective.arguments["terms"]["written"][1]
    assert written.arguments["steps"] < taught.plan.steps


def test_the_recipe_of_the_page() -> None:
    recipe = ran("docs/recipes.md", 2)["recipe"]
    assert isinstance(recipe, Recipe)
    assert {"pretrained", "written", "student"} <= set(stage_digests(recipe, "data"))
    student = recipe.stage("student")
    assert isinstance(student, Train)
    assert student.written == "written"
