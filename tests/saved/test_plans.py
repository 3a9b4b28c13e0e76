"""Every built-in recipe plans what it planned in version 0.1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.recipes import catalogue
from counterfoil.recipes.catalogue import known_recipes
from saved_cases import PLANS, plan_differences, read, renamed


@pytest.fixture(scope="module")
def stored():
    return read(PLANS)


def test_all_recipes_are_there(stored):
    names = renamed("recipes")
    wanted = {names.get(name, name) for name in stored["recipes"]}
    assert sorted(wanted - set(known_recipes())) == []


def test_plans_are_those_of_0_1(stored):
    names = renamed("recipes")
    found = []
    for name, recipe in stored["recipes"].items():
        today = catalogue.find_recipe(names.get(name, name))
        found += plan_differences(stored, name, today)
        assert today.data == recipe["data"], name
    assert found == []


def test_a_changed_setting_is_a_difference(stored):
    recipe = catalogue.find_recipe("aoq/vsepp-scenes")
    assert plan_differences(stored, recipe.name, recipe) == []
    for setting in ("online.seed=77", "lists.texts=7", "adaptive.model.image.width=3"):
        (found,) = plan_differences(stored, recipe.name, apply_overrides(recipe, [setting]))
        assert found.split(":")[0].rsplit(".", 1)[1] == setting.split("=")[0].rsplit(".", 1)[1]
    short = replace(recipe, stages=recipe.stages[:-1])
    assert len(plan_differences(stored, recipe.name, short)) == 1
