"""Which points a sweep consists of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.pipelines.pipeline import Train
from counterfoil.recipes import catalogue
from counterfoil.recipes.grid_search import GridAxis, GridSearch, axis_labels, dependencies

parsed = GridAxis.parse
DEMO = catalogue.find_recipe("aoq/vsepp-scenes")
RATES = GridAxis(keys=("online.rate",), values=("1e-4", "2e-4"))


def sweep(*axes: GridAxis, **changes) -> GridSearch:
    return GridSearch(name="toy", recipe=DEMO, axes=axes, **changes)


@pytest.mark.parametrize(
    ("text", "keys", "values"),
    [
        ("online.rate=1e-4,2e-4", ("online.rate",), ("1e-4", "2e-4")),
        ("online.betas=(0.9, 0.98),[0.9,0.999]", ("online.betas",), ("(0.9, 0.98)", "[0.9,0.999]")),
        (" a.b + c.d = 1 , none ", ("a.b", "c.d"), ("1", "none")),
        ("a.b='x,y',\"it's\",z", ("a.b",), ("'x,y'", '"it\'s"', "z")),
        ("a.b={'c': (1, 2)},true", ("a.b",), ("{'c': (1, 2)}", "true")),
    ],
)
def test_axes_as_users_write_them(text: str, keys: tuple[str, ...], values: tuple[str, ...]):
    assert parsed(text) == GridAxis(keys=keys, values=values)


@pytest.mark.parametrize("text", ["online.rate", "=1,2", "online.rate=", "online.rate=1,,2"])
def test_bad_axes(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no axis of a sweep; write stage\.key=value,value"):
        parsed(text)


plain = st.one_of(
    st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False),
    st.text("ab,([{)]}'\"", min_size=1),
)  # fmt: skip
value = st.one_of(plain, st.lists(plain, max_size=3).map(tuple), st.lists(plain, max_size=3))


@given(st.lists(value, min_size=1, max_size=5, unique_by=repr))
def test_values_survive_parsing(values: list[object]) -> None:
    written = tuple(map(repr, values))
    if not any("\\" in text for text in written):  # a quote inside its own kind of quotes
        assert parsed(f"a.b={','.join(written)}").values == written


def test_every_combination_is_a_point() -> None:
    found = sweep(RATES, parsed("*.batch=8,16,32")).points()
    assert list(found) == [
        (rate, batch) for rate in ("1e-4", "2e-4") for batch in ("8", "16", "32")
    ]
    for (rate, batch), (recipe,) in found.items():
        online, adaptive = recipe.stage("online"), recipe.stage("adaptive")
        assert isinstance(online, Train)
        assert isinstance(adaptive, Train)
        assert online.plan.optimiser.rate == float(rate)
        assert adaptive.plan.optimiser == DEMO.stage("adaptive").plan.optimiser
        assert (online.plan.batch, adaptive.plan.batch) == (int(batch),) * 2


def test_keys_are_kept_equal_and_values_are_of_any_kind() -> None:
    tied = parsed("online.seed+adaptive.seed=3,5")
    kinds = parsed("online.betas=(0.9, 0.98),(0.9, 0.999)")
    points = sweep(tied, kinds, parsed("online.drop_last=true,false")).points()
    for (seed, betas, drop), (recipe,) in points.items():
        online, adaptive = recipe.stage("online"), recipe.stage("adaptive")
        assert online.plan.seed == adaptive.plan.seed == int(seed)
        assert online.plan.optimiser.betas == (0.9, float(betas.strip("()").split()[1]))
        assert online.plan.drop_last is (drop == "true")


def test_seeds_are_added_to_those_of_trainings_alone() -> None:
    recipe = catalogue.find_recipe("tags-dc/uniter-scenes")
    axes = (parsed("tags.rate=1e-4,2e-4"),)
    one, _ = GridSearch(name="toy", recipe=recipe, axes=axes, seeds=(0, 4)).points().values()
    seeds = [[r.stage(s).plan.seed for s in ("pretrained", "tags", "tags-dc")] for r in one]
    assert seeds == [[0, 0, 0], [0, 4, 4]]


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(0, 50))
def test_a_draw_is_of_the_grid_and_part_of_a_longer_one(many: int, seed: int) -> None:
    axes = (parsed("online.rate=1e-4,2e-4,3e-4"), parsed("online.batch=1,2,3,4"))
    whole = list(sweep(*axes).points())
    drawn = list(sweep(*axes, draw=many, seed=seed).points())
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
    ndgl = catalogue.find_recipe("ndgl/gpo-scenes")
    assert [s.name for s in dependencies(ndgl, "student")][-1] == "student"
    assert all(s.kind != "evaluate" for s in dependencies(ndgl, "student"))


def test_the_last_training_is_compared_unless_another_is_named() -> None:
    assert sweep(RATES).compared == "adaptive"
    assert sweep(RATES, stage="online").compared == "online"


def test_labels_of_axes_are_short() -> None:
    axes = [
        parsed(f"{key}=1") for key in ("*.objective.a.weight", "x.objective.b.weight", "x.rate")
    ]
    assert axis_labels(axes) == ("a.weight", "b.weight", "rate")
    assert axis_labels([parsed("x.rate=1"), parsed("y.rate=1"), parsed("x.p+y.p=1")]) == (
        "x.rate", "y.rate", "x.p+y.p",
    )  # fmt: skip
    tied = parsed("a.objective.doubt.weight+a.objective.correct.weight=1")
    assert axis_labels([tied]) == ("doubt.weight+correct.weight",)


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
        (lambda: sweep(parsed("online.rte=1,2")).points(), "did you mean 'rate'"),
        (lambda: sweep(parsed("online.rate=1e-4,fast")).points(), "'fast' is text"),
        (
            lambda: sweep(parsed("online.rate=1e-4,fast"), draw=1, seed=1).points(),
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
