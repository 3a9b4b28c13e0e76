"""Which points a sweep consists of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.papers.grid_search import (
    GridAxis,
    GridSearch,
    _axis_labels,
    dependencies,
    find_grid,
    grid_jobs,
    named_grids,
)
from counterfoil.papers.systems import LARGE
from counterfoil.papers.tags.recipe import PAPER
from counterfoil.pipelines.pipeline import Recipe, Train
from counterfoil.recipes.catalogue import find_recipe

parsed = GridAxis.parse
DEMO = find_recipe("aoq/vsepp-scenes")
RATES = GridAxis(keys=("online.rate",), values=("1e-4", "2e-4"))


def sweep(*axes: GridAxis, **changes) -> GridSearch:
    return GridSearch(name="toy", recipe=DEMO, axes=axes, **changes)


@pytest.mark.parametrize(
    ("text", "keys", "values"),
    [
        ("online.rate=1e-4,2e-4", ("online.rate",), ("1e-4", "2e-4")),
        ("online.betas=(0.9, 0.98),[0.9,0.999]", ("online.betas",), ("(0.9, 0.98)", "[0.9,0.999]")),
        (" a.b + c.d = 1 , none ", ("a.b", "c.d"), ("1", "none")),
        ("a.b={'c': (1, 2)},true", ("a.b",), ("{'c': (1, 2)}", "true")),
    ],
)
def test_axes_as_users_write_them(text: str, keys: tuple[str, ...], values: tuple[str, ...]):
    assert parsed(text) == GridAxis(keys=keys, values=values)


@pytest.mark.parametrize("text", ["online.rate", "=1,2", "online.rate=", "online.rate=1,,2"])
def test_bad_axes(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no axis of a sweep; write stage\.key=value,value"):
        parsed(text)


def test_every_combination_is_a_point() -> None:
    found = sweep(RATES, parsed("online.batch+adaptive.batch=8,16"), parsed("online.seed=1,2"))
    assert found.points() == [
        (rate, batch, seed)
        for rate in ("1e-4", "2e-4")
        for batch in ("8", "16")
        for seed in ("1", "2")
    ]
    for rate, batch, seed in found.points():
        (recipe,) = found.recipes((rate, batch, seed))
        online, adaptive = recipe.stage("online"), recipe.stage("adaptive")
        assert isinstance(online, Train)
        assert isinstance(adaptive, Train)
        assert (online.plan.optimiser.rate, online.plan.seed) == (float(rate), int(seed))
        assert adaptive.plan.optimiser == DEMO.stage("adaptive").plan.optimiser
        assert (online.plan.batch, adaptive.plan.batch) == (int(batch),) * 2


def test_seeds_are_added_to_those_of_trainings_alone() -> None:
    recipe = find_recipe("tags-dc/uniter-scenes")
    axes = (parsed("tags.rate=1e-4,2e-4"),)
    one = GridSearch(name="toy", recipe=recipe, axes=axes, seeds=(0, 4)).recipes(("1e-4",))
    seeds = [[r.stage(s).plan.seed for s in ("pretrained", "tags", "tags-dc")] for r in one]
    assert seeds == [[0, 0, 0], [0, 4, 4]]


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(0, 50))
def test_a_draw_is_of_the_grid_and_part_of_a_longer_one(many: int, seed: int) -> None:
    axes = (parsed("online.rate=1e-4,2e-4,3e-4"), parsed("online.batch=1,2,3,4"))
    whole = sweep(*axes).points()
    drawn = sweep(*axes, draw=many, seed=seed).points()
    assert len(set(drawn)) == many
    assert drawn == [values for values in whole if values in drawn]
    shorter = list(sweep(*axes, draw=max(1, many - 3), seed=seed).points())
    assert set(shorter) <= set(drawn)


def test_another_seed_draws_other_points() -> None:
    axes = (parsed("online.rate=1e-4,2e-4,3e-4"), parsed("online.batch=1,2,3,4"))
    draws = {tuple(sweep(*axes, draw=4, seed=s).points()) for s in range(8)}
    assert len(draws) > 4


def test_dependencies_of_a_stage() -> None:
    assert [s.name for s in dependencies(DEMO, "online")] == ["online"]
    assert [s.name for s in dependencies(DEMO, "adaptive")] == ["online", "lists", "adaptive"]
    ndgl = find_recipe("ndgl/gpo-scenes")
    assert [s.name for s in dependencies(ndgl, "student")][-1] == "student"
    assert all(s.kind != "evaluate" for s in dependencies(ndgl, "student"))


def test_the_last_training_is_compared_unless_another_is_named() -> None:
    assert sweep(RATES).compared == "adaptive"
    assert sweep(RATES, stage="online").compared == "online"


def test_labels_of_axes_are_short_where_they_differ() -> None:
    keys = ("*.objective.a.weight", "x.rate", "x.p+y.p", "x.plan.seed", "y.plan.seed")
    assert _axis_labels([parsed(f"{key}=1") for key in keys]) == (
        "a.weight",
        "x.rate",
        "x.p+y.p",
        "x.plan.seed",
        "y.plan.seed",
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sweep(), "toy varies nothing; add --over"),
        (lambda: sweep(RATES, RATES), "online.rate is varied twice"),
        (lambda: sweep(parsed("online.seed=1,1")), "has the value 1 twice"),
        (lambda: sweep(RATES, draw=3), "3 points cannot be drawn, the grid has 2"),
        (lambda: sweep(RATES, seeds=(1, 1)), "--seeds 1,1"),
        (lambda: sweep(RATES, seeds=(-1,)), "--seeds -1"),
        (lambda: sweep(RATES, stage="onlin"), "did you mean 'online'"),
        (lambda: grid_jobs(sweep(parsed("online.rte=1,2")), ""), "did you mean 'rate'"),
                (
            lambda: grid_jobs(sweep(parsed("online.rate=1e-4,fast"), draw=1, seed=1), ""),
            "'fast' is text",
        ),
        (
            lambda: sweep(*(parsed(f"online.k{n}=0,1,2,3,4,5,6,7,8") for n in range(5))),
            "the grid has 59,049 points",
        ),
    ],
)  # fmt: skip
def test_bad_grids(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# The grid of TAGS's appendix.


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
        grid = find_grid(name)
        found = [recipe for values in grid.points() for recipe in grid.recipes(values)]
        assert sum(numbers(recipe, step) == wanted[step] for recipe in found) == (1, 3)[step]
        assert any(
            all(numbers(recipe, s) == wanted[s] for s in range(step + 1)) for recipe in found
        )


@pytest.mark.parametrize("kind", ["tags", "tags-dc"])
@pytest.mark.parametrize("dataset", ["scenes", "flickr30k"])
def test_points_differ_and_share_what_comes_before(kind: str, dataset: str) -> None:
    sweep = named_grids()[f"sweeps/{kind}-{dataset}"]
    todo = grid_jobs(sweep, "data")
    large = sweep.name.endswith(LARGE)
    both = sweep.compared == "tags-dc"
    assert sweep.size == (216 if both else 36) if large else sweep.size == (24 if both else 12)
    assert len(todo) == (sweep.size if large else 6)
    assert len({job.digests["pretrained"] for job in todo}) == 1
    if both and large:
        assert len({digest for job in todo for digest in job.needed}) == 1 + 36 + 216
    if not both:
        assert sweep.recipe == find_recipe(f"tags/uniter-{dataset}")
        rates = {numbers(job.recipe, 0)[0] for job in todo}
        assert large or rates == {PAPER[dataset][0].rate}
