from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from counterfoil.cli import main
from counterfoil.core.config import Config, config, config_from_dict
from counterfoil.models.layers.pretrained import (
    BertTextTower,
    FrozenPatches,
    HFVisionTower,
    TimmGridTower,
)
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers import catalogue
from counterfoil.papers import systems as models
from counterfoil.papers.aoq import recipe as aoq
from counterfoil.papers.models.hrem import HREM, BatchGraph
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.ndgl import recipe as ndgl
from counterfoil.papers.ndgl.systems import MODELS
from counterfoil.papers.pretraining.stage import Pretrain
from counterfoil.papers.systems import DATASETS
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Compare, Evaluate, Mine, Train, stage_digests
from counterfoil.recipes.catalogue import SMOKE_STEPS, find_recipe, known_recipes, smoke_recipe

RECIPES = catalogue.all_recipes()
ALL = {recipe.name: recipe for recipe in RECIPES}
FAMILIES = [name for name in ALL if "-scenes" in name or name.endswith(("bert-coco", "grid-coco"))]


def test_names_are_unique_and_found():
    assert len(ALL) == len(RECIPES)
    for name, recipe in ALL.items():
        assert find_recipe(name) == recipe
        assert recipe.about
        assert recipe.data


@pytest.mark.parametrize("name", FAMILIES)
def test_recipes_plan(name, capsys):
    assert main(["plan", name]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert name in shown
    for stage in ALL[name].stages:
        assert stage.name in shown
        assert all(read in shown for read in stage.reads)


def test_the_list_names_all(capsys, monkeypatch):
    """A line for each family: MODEL is one of those beside it, DATA one of those below."""
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if "│" in line]
    sets = {
        what: line.removeprefix(f"{what}: ").split()
        for line in lines
        for what in ("DATA", "LARGE")
        if line.startswith(f"{what}: ")
    }
    shown = {
        family.replace(f"MODEL-{what}", f"{host}-{to}")
        for family, hosts in cells
        for host in hosts.split() or [""]
        for what in sets
        for to in sets[what]
        if f"MODEL-{what}" in family or "MODEL-" not in family
    }
    assert shown == set(ALL)
    assert all(loss in " ".join(lines) for loss in aoq.LOSSES)


def test_the_list_covers_every_known_recipe(capsys, monkeypatch):
    """By its family and host, or by its kind and host."""
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["plan"]) == 0
    shown = set(re.split(r"[\s,()]+", capsys.readouterr().out))
    assert len(known_recipes()) > len(ALL)
    for name in known_recipes():
        begins, slash, last = name.rpartition("/")
        host = last.removesuffix("-vsrn-lists").rpartition("-")[0]
        families = {
            f"{begins}{slash}{one}" for one in (f"{host}-LARGE", "MODEL-DATA", "MODEL-LARGE")
        }
        kinds = {begins, begins.rpartition("/")[2]} - {""}
        assert name in shown or (families | kinds) & shown, name
        assert name in shown or {host, f"{begins}{slash}{host}-LARGE"} & shown, name


def test_the_list_is_readable_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plan"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert len(shown.splitlines()) < 90


def distinct(*fields: str) -> list[Config]:
    """The different configurations in these fields of all stages."""
    found = {}
    for recipe in RECIPES:
        for stage in recipe.stages:
            for field in fields:
                spec = getattr(stage, field, None)
                if spec is not None:
                    found.setdefault(spec.digest(), spec)
    return list(found.values())


def test_configurations_survive_json():
    for spec in distinct("model", "objective"):
        back = config_from_dict(json.loads(json.dumps(spec.to_dict())))
        assert back == spec
        assert back.digest() == spec.digest()
        assert repr(back) == repr(spec)


def test_models_and_objectives_build():
    known = {"words": 7, "features": 5, "size": 64, "classes": 3, "mask": None}
    for spec in distinct("model"):
        small = _narrow(_offline(spec.fill(known)))
        assert sum(p.numel() for p in small.build().parameters()) > 0
    for spec in distinct("objective"):
        spec.build()


def _offline(spec: Config) -> Config:
    """The same without what a pretrained tower would have to be downloaded for."""
    inner = {k: _offline(v) if isinstance(v, Config) else v for k, v in spec.arguments.items()}
    if spec.make is BertTextTower:
        return config(GRU, words=7, width=8)
    seeing = spec.make in (TimmGridTower, HFVisionTower, FrozenPatches)
    return config(Regions, features=5, width=8) if seeing else Config(spec.make, inner)


def _narrow(spec: Config) -> Config:
    """The same at a width that builds at once."""
    inner = {k: _narrow(v) if isinstance(v, Config) else v for k, v in spec.arguments.items()}
    inner |= {"heads": 2} if spec.make in (HREM, BatchGraph, UNITER) else {}
    return Config(spec.make, inner | ({"width": 8} if "width" in inner else {}))


def test_recipes_with_the_same_stages_share_digests():
    """Both rounds of AOQ begin as the baseline does; plain training on photos is longer."""
    for name, recipe in ALL.items():
        start = next((s for s in ("aoq/ablations/", "aoq/") if name.startswith(s)), "")
        if start and not name.endswith("vsrn-lists") and "mobilenet" not in name:
            base, found = (stage_digests(r, "d") for r in (ALL[name.removeprefix(start)], recipe))
            for stage in (s for s in base if s.startswith("online")):
                assert found[stage] == base[stage]


def test_a_smoke_recipe_differs_in_steps_alone():
    for recipe in RECIPES:
        for stage, was in zip(smoke_recipe(recipe).stages, recipe.stages):
            if isinstance(stage, Train):
                assert stage.plan.steps <= 20
                assert replace(stage, plan=was.plan, objective=was.objective) == was, recipe.name
                assert _without_steps(stage.objective) == _without_steps(was.objective)
            elif isinstance(stage, Pretrain):
                assert stage.plan.steps <= 20
                assert replace(stage, plan=was.plan) == was, recipe.name
            else:
                assert stage == was, recipe.name


def _without_steps(spec: Config) -> str:
    return re.sub(r"steps=\d+", "", repr(spec))


def test_smoke_reaches_the_loss_after_the_warm_up():
    objective = smoke_recipe(ALL["aoq/vsepp-scenes"]).stage("adaptive").objective
    steps = [int(found) for found in re.findall(r"steps=(\d+)", repr(objective))]
    assert steps
    assert all(found < SMOKE_STEPS for found in steps)


def test_smoke_keeps_a_warm_up_that_waits_for_lists():
    settings = ("refresh.every=1", "negatives=none", "objective.quintuplet.steps=400")
    recipe = apply_overrides(
        ALL["aoq/vsepp-scenes"], [f"adaptive.{setting}" for setting in settings]
    )
    short = smoke_recipe(recipe)
    assert short.stage("adaptive").objective == recipe.stage("adaptive").objective
    assert short.stage("online").objective != recipe.stage("online").objective


def test_released_code_of_vsrn_normalises_negatives_separately():
    recipe = aoq.ablation_variant("released-code", "vsrn", "flickr30k")
    for stage in (s for s in recipe.stages if isinstance(s, Train)):
        apart = stage.model.arguments.get("bn_passes") == "separate"
        assert apart == (stage.negatives is not None)


def test_single_models_and_ensembles_are_not_mixed():
    """Ensembles are compared with ensembles, and their members are measured alone too."""
    for name, recipe in ALL.items():
        if name.startswith("ndgl/"):  # there a student is compared with the ensemble that taught it
            continue
        sizes = {s.name: len(s.using) for s in recipe.stages if isinstance(s, Evaluate)}
        reports = [stage for stage in recipe.stages if isinstance(stage, Compare)]
        results = [one for report in reports for one in report.results if one != "test-teacher"]
        size = 2 if "ensemble of 2" in recipe.about else 1
        assert max(sizes.values()) == size, name
        assert all(sizes[one] == size for one in results), name
        for stage in recipe.stages:
            if (
                isinstance(stage, Evaluate)
                and len(stage.using) == 2
                and stage.protocol != "coco-5k"
            ):
                assert all(sizes[f"{stage.name}-{one.rsplit('-')[-1]}"] == 1 for one in stage.using)


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("ndgl/")])
def test_a_student_is_compared_with_its_teachers(name):
    recipe = ALL[name]
    taught = recipe.stage("targets").using
    assert len(taught) == 2
    seeds = [recipe.stage(one).plan.seed for one in (*taught, "student")]
    assert len(set(seeds)) == 3
    assert recipe.stage("test-ensemble-of-2").using == taught
    assert recipe.stage("report").results == (
        "test-teacher-1",
        "test-ensemble-of-2",
        "test-student",
    )
    student = recipe.stage("student")
    assert student.guide == "targets"
    own = recipe.stage(taught[0])
    assert (student.model, student.processor) == (own.model, own.processor)
    terms = dict(student.objective.arguments["terms"])
    (mr, distribution), (hnr, rectified) = terms.pop("mr"), terms.pop("hnr")
    assert terms == own.objective.arguments["terms"]
    assert (mr, hnr, rectified.arguments["gamma"]) == (100.0, 0.5, 0.01)  # Eq. 6
    host = name.removeprefix("ndgl/").rsplit("-", 1)[0]
    summed = {term.arguments["reduction"] for term in (distribution, rectified)}
    assert summed == {"mean" if host == "dive" else "sum"}


@pytest.mark.parametrize("kind", ndgl.VARIANTS)
def test_comparisons_of_ndgl_share_their_teachers(kind, capsys):
    hosts = ndgl.VARIANTS[kind][1]
    for host in hosts:
        for to in MODELS[host].datasets:
            recipe = find_recipe(f"ndgl/{kind}/{host}-{to}")
            first = stage_digests(ALL[f"ndgl/{host}-{to}"], "d")
            found = stage_digests(recipe, "d")
            assert all(found[f"teacher-{k}"] == first[f"teacher-{k}"] for k in (1, 2))
    assert main(["plan", f"ndgl/{kind}/{hosts[0]}-scenes"]) == 0
    assert "report" in capsys.readouterr().out


def test_coco_has_both_protocols():
    for name, recipe in ALL.items():
        found = [s for s in recipe.stages if isinstance(s, Evaluate)]
        both = {s.protocol for s in found} == {"coco-1k", "coco-5k"}
        assert both == ("-coco" in name)
        for stage in (s for s in found if s.protocol == "coco-5k"):
            assert stage.using == recipe.stage(stage.name.removesuffix("-5k")).using


def test_members_of_an_ensemble_differ():
    for name in models.NAMES:
        found = models.ensemble_members(name)
        assert len({(one.model, one.seed) for one in found}) == len(found)
        assert len({one.part for one in found}) == len(found)


@pytest.mark.parametrize("loss", aoq.LOSSES)
def test_ablations_differ_in_their_name_alone(loss):
    usual = find_recipe("aoq/ablations/adapoffquin/vsepp-flickr30k")
    recipe = find_recipe(f"aoq/ablations/{loss}/vsepp-flickr30k")
    assert recipe.stage(f"test-{loss}").using == (loss,)
    found, base = recipe.stage(loss), usual.stage("adapoffquin")
    assert (found == replace(base, name=loss)) == (loss in ("adapoffquin", "h300"))
    lists = recipe.stage("lists")
    assert isinstance(lists, Mine)
    assert (found.draw.texts, found.draw.images) == (lists.texts, lists.images)
    assert lists.texts == 5 * lists.images
    for to in DATASETS:
        for name in models.NAMES:
            assert find_recipe(f"aoq/ablations/{loss}/{name}-{to}").stages


def test_ablations_share_one_list():
    for to in DATASETS:
        recipe = aoq.ablation_recipe("vsepp", to)
        (lists,) = [stage for stage in recipe.stages if isinstance(stage, Mine)]
        drawn = [s.draw.texts for s in recipe.stages if isinstance(s, Train) and s.negatives]
        assert lists.texts == max(drawn) == 1000
        assert len(drawn) == len(aoq.LOSSES)


def test_rates_are_those_of_the_papers():
    def numbers(plan):
        return plan.optimiser.rate, getattr(plan.schedule, "at", ()), plan.epochs

    for to in ("flickr30k", "coco"):
        assert numbers(models.round_plan("scan-i2t", to, "second")) == (5e-4, (10,), 15)
        assert numbers(models.round_plan("bfan-prob", to, "second")) == (5e-4, (10,), 15)
        assert numbers(models.round_plan("vsrn-single", to, "second")) == (2e-4, (10,), 20)
        assert numbers(models.round_plan("vsepp", to)) == (2e-4, (15,), 30)
    assert numbers(models.round_plan("scan-t2i", "flickr30k")) == (2e-4, (15,), 30)
    assert numbers(models.round_plan("scan-t2i", "coco")) == (5e-4, (10,), 20)
    assert numbers(models.round_plan("bfan-equal", "flickr30k")) == (2e-4, (), 15)
    assert numbers(models.round_plan("bfan-equal", "coco")) == (5e-4, (15,), 20)
    assert numbers(models.round_plan("vsrn-single", "flickr30k")) == (2e-4, (10,), 20)
    assert numbers(models.round_plan("vsrn-single", "coco")) == (2e-4, (15,), 30)
    assert models.round_plan("bfan-prob", "coco", "released").optimiser.rate == 2e-4


def test_a_recipe_in_a_file(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from counterfoil import Recipe, Train\n"
        "from counterfoil.papers.systems import vsepp_config\n"
        "from counterfoil.papers.systems import hardest_triplet\n"
        "recipe = Recipe(name='mine', stages=(\n"
        "    Train(name='only', model=vsepp_config(width=8), objective=hardest_triplet(0)),\n"
        "))\n"
    )
    assert find_recipe(str(path)).name == "mine"
    assert main(["plan", str(path), "--set", "only.seed=3"]) == 0
    assert "seed=3" in capsys.readouterr().out
