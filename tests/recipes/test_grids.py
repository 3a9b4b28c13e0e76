"""The grid of TAGS's appendix."""

from __future__ import annotations

import pytest

from counterfoil.pipelines.pipeline import Recipe, Train
from counterfoil.recipes import catalogue
from counterfoil.recipes.grid_search import GridSearch, grid_from_options, grid_jobs, named_grids
from counterfoil.recipes.models import DATASETS, LARGE
from counterfoil.recipes.tags import PAPER


def numbers(recipe: Recipe, step: int) -> tuple[float, ...]:
    """Rate, temperature and weights of a step."""
    stage = recipe.stage(("tags", "tags-dc")[step])
    assert isinstance(stage, Train)
    assert stage.proposer is not None
    _, writer = stage.proposer.arguments["proposers"]
    weights = {name: weight for name, (weight, _) in stage.objective.arguments["terms"].items()}
    assert (weights["texts"], weights["images"]) == (1, 1)
    assert weights.get("doubt") == weights.get("correct")
    found = stage.plan.optimiser.rate, writer.arguments["temperature"]
    return (*found, weights["masked"], weights["written"], weights.get("doubt", 0.0))


@pytest.mark.parametrize("dataset", LARGE)
def test_what_the_paper_chose_is_one_of_the_points(dataset: str) -> None:
    wanted = [(n.rate, n.temperature, n.masked, n.written, n.words) for n in PAPER[dataset]]
    for step, name in enumerate((f"sweeps/tags-{dataset}", f"sweeps/tags-dc-{dataset}")):
        found = [recipe for (recipe,) in named_grids()[name].points().values()]
        assert sum(numbers(recipe, step) == wanted[step] for recipe in found) == (1, 3)[step]
        assert any(
            all(numbers(recipe, s) == wanted[s] for s in range(step + 1)) for recipe in found
        )


@pytest.mark.parametrize("sweep", named_grids().values(), ids=lambda sweep: sweep.name)
def test_points_differ_and_share_what_comes_before(sweep: GridSearch) -> None:
    todo = grid_jobs(sweep, "data")
    large = sweep.name.endswith(LARGE)
    both = sweep.compared == "tags-dc"
    assert sweep.size == (216 if both else 36) if large else sweep.size == (24 if both else 12)
    assert len(todo) == (sweep.size if large else 6)
    assert len({job.digests["pretrained"] for job in todo}) == 1
    if both and large:
        assert len({digest for job in todo for digest in job.needed}) == 1 + 36 + 216


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_first_step_is_searched_as_it_runs_in_the_recipe(dataset: str) -> None:
    recipe = named_grids()[f"sweeps/tags-{dataset}"].recipe
    assert recipe == catalogue.find_recipe(f"tags/uniter-{dataset}")
    if dataset not in LARGE:
        rates = {
            numbers(r, 0)[0] for (r,) in named_grids()[f"sweeps/tags-{dataset}"].points().values()
        }
        assert rates == {PAPER[dataset][0].rate}


def test_a_sweep_with_a_name_is_asked_for_with_other_draws_and_settings() -> None:
    assert len(grid_from_options("sweeps/tags-dc-scenes", draw=0).points()) == 24
    one = grid_from_options(
        "sweeps/tags-scenes", draw=2, seed=5, seeds="1,2", settings=["tags.steps=3"]
    )
    assert (one.draw, one.seed, one.seeds) == (2, 5, (1, 2))
    assert all(r.stage("tags").plan.steps == 3 for own in one.points().values() for r in own)
    with pytest.raises(ValueError, match="--over and --stage go with a recipe"):
        grid_from_options("sweeps/tags-scenes", ["tags.rate=1,2"])
