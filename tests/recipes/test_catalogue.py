from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from counterfoil.cli import main
from counterfoil.recipes import catalogue
from counterfoil.recipes.recipe import Evaluate, Train, digests
from counterfoil.spec import Spec, from_plain

ALL = {recipe.name: recipe for recipe in catalogue.all_recipes()}


def test_names_are_unique_and_found():
    assert len(ALL) == len(catalogue.all_recipes())
    for name, recipe in ALL.items():
        assert catalogue.find(name) == recipe
        assert recipe.about
        assert recipe.data


@pytest.mark.parametrize("name", ALL)
def test_every_recipe_plans(name, capsys):
    assert main(["plan", name]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert name in shown
    for stage in ALL[name].stages:
        assert stage.name in shown
        assert all(read in shown for read in stage.reads)


def test_the_list_names_all(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plan"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ALL)


@pytest.mark.parametrize("name", ALL)
def test_written_calls_survive_json(name):
    for stage in ALL[name].stages:
        if isinstance(stage, Train):
            for spec in (stage.model, stage.objective):
                back = from_plain(json.loads(json.dumps(spec.plain())))
                assert back == spec
                assert back.digest() == spec.digest()
                assert repr(back) == repr(spec)


@pytest.mark.parametrize("name", ALL)
def test_models_and_objectives_build(name):
    known = {"words": 7, "features": 5, "size": 64}
    for stage in ALL[name].stages:
        if isinstance(stage, Train):
            small = _narrow(stage.model.resolve(known))
            assert sum(p.numel() for p in small.build().parameters()) > 0
            stage.objective.build()


def _narrow(spec: Spec) -> Spec:
    """The same at a width that builds at once."""
    inner = {k: _narrow(v) if isinstance(v, Spec) else v for k, v in spec.arguments.items()}
    return Spec(spec.make, inner | ({"width": 8} if "width" in inner else {}))


def test_recipes_of_the_same_thing_share_digests():
    """Both rounds of AOQ begin as the baseline does."""
    for name, recipe in ALL.items():
        if name.startswith("aoq/"):
            base = ALL[name.removeprefix("aoq/")]
            assert digests(recipe, "d")["online"] == digests(base, "d")["online"]


@pytest.mark.parametrize("name", ALL)
def test_smoke_is_short_and_else_the_same(name):
    short = catalogue.smoke(ALL[name])
    for stage, was in zip(short.stages, ALL[name].stages):
        if isinstance(stage, Train):
            assert stage.plan.steps <= 20
            assert replace(stage, plan=was.plan, objective=was.objective) == was
            assert _without_steps(stage.objective) == _without_steps(was.objective)
        else:
            assert stage == was


def _without_steps(spec: Spec) -> str:
    return re.sub(r"steps=\d+", "", repr(spec))


def test_smoke_meets_the_loss_after_the_warm_up():
    objective = catalogue.smoke(ALL["aoq/vsepp-scenes"]).stage("adaptive").objective
    steps = [int(found) for found in re.findall(r"steps=(\d+)", repr(objective))]
    assert all(found < catalogue.SMOKE_STEPS for found in steps)


def test_published_numbers_have_their_source():
    from counterfoil.recipes import aoq, online

    for row in (*online.PUBLISHED, *aoq.PUBLISHED):
        assert "Table" in row.source
        assert row.rsum == round(sum(row.i2t) + sum(row.t2i), 1)
        for found in (row.i2t, row.t2i):
            assert 0 < found[0] < found[1] < found[2] < 100


def test_single_reads_what_there_is():
    for host in ("vsepp", "scan-t2i", "scan-i2t"):
        for pixels, sees in ((True, "pixels"), (False, "features")):
            recipe = catalogue.single(host, pixels=pixels)
            train, test = recipe.stages
            assert train.lens.images == sees
            assert isinstance(test, Evaluate)
            assert test.protocol == "whole"
    with pytest.raises(ValueError, match="did you mean 'vsepp'"):
        catalogue.single("vseep", pixels=True)


def test_a_recipe_of_ones_own(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from counterfoil import Recipe, Train\n"
        "from counterfoil.recipes.hosts import vsepp\n"
        "from counterfoil.recipes.online import hardest\n"
        "recipe = Recipe(name='mine', stages=(\n"
        "    Train(name='only', model=vsepp(width=8), objective=hardest(0)),\n"
        "))\n"
    )
    assert catalogue.find(str(path)).name == "mine"
    assert main(["plan", str(path), "--set", "only.seed=3"]) == 0
    assert "seed=3" in capsys.readouterr().out
