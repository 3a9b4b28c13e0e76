from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Literal

import pytest

from counterfoil.cli import main
from counterfoil.core import registry
from counterfoil.core.config import Config, config, config_from_dict, from_stage
from counterfoil.models.layers.pretrained import (
    BertTextTower,
    FrozenPatches,
    HFVisionTower,
    TimmGridTower,
)
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.aoq import recipe as aoq
from counterfoil.papers.models.ernievil import ErnieViL
from counterfoil.papers.models.hrem import HREM, BatchGraph
from counterfoil.papers.models.lightningdot import FirstTokenTower
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.ndgl import recipe as ndgl
from counterfoil.papers.pretraining.stage import Pretrain
from counterfoil.papers.systems import DATASETS, OF_NDGL, ensemble_members, find_system
from counterfoil.papers.systems import NAMES as OF_AOQ
from counterfoil.papers.tags.stage import Generate
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Compare, Evaluate, Mine, Recipe, Train, stage_digests
from counterfoil.recipes.catalogue import (
    SMOKE_STEPS,
    all_recipes,
    find_recipe,
    recipe_arguments,
    recipe_function,
    smoke_recipe,
)
from counterfoil.recipes.run import run
from counterfoil.saved import check_reopens
from counterfoil.training.mined import Mined
from recipes_cases import recipe_of

NAMES = (  # what `counterfoil run` takes
    *("demo", "online", "aoq", "ndgl", "tags", "tags-dc", "tags-foils", "vse-c", "negclip"),
    *("graph", "batches", "queue", "cascade", "patches", "photos"),
)


@pytest.fixture(scope="module")
def recipes() -> list[Recipe]:
    """Every recipe with every combination of its arguments."""
    return list(all_recipes())


@pytest.fixture(scope="module")
def known(recipes) -> dict[str, Recipe]:
    """The same by the names of their runs."""
    return {recipe.name: recipe for recipe in recipes}


def test_every_recipe_has_arguments_that_its_docstring_tells():
    assert set(NAMES) <= set(registry.names("recipe"))
    for name in NAMES:
        for argument in recipe_arguments(recipe_function(name)):
            assert argument.about, f"{argument.name} of {name}"
            assert not argument.required


def test_every_combination_of_arguments_is_a_recipe_of_its_own(recipes, known):
    assert len(recipes) == len(known) == 970
    assert all(recipe.about and recipe.data for recipe in recipes)
    stages = {json.dumps(stage_digests(recipe, "d"), sort_keys=True) for recipe in recipes}
    assert len(stages) > 900  # members of an ensemble are trained as single models, too


@pytest.mark.parametrize("line", [
    *NAMES,
    "online --model gpo-grid --like coco",
    "aoq --model scan --like flickr30k --loss all",
    "aoq --model bfan --lists vsrn",
    "ndgl --model vsrn --compare mining",
    "tags --way static-tuned",
    "tags-dc --model uniter-large --like coco --released",
    "tags-foils --model gpo --method aoq",
    "vse-c --kinds noun",
    "photos --mined",
])  # fmt: skip
def test_recipes_plan(line, capsys):
    assert main(["plan", *line.split()]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    recipe = recipe_of(line)
    assert recipe.name in shown
    for stage in recipe.stages:
        assert stage.name in shown
        assert all(read in shown for read in stage.reads)


def test_the_list_has_every_recipe_and_its_options(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plan"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert len(shown.splitlines()) < 90
    for name in NAMES:
        assert f"│ {name} " in shown
        for argument in recipe_arguments(recipe_function(name)):
            assert argument.option in shown


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_the_help_of_a_recipe_has_the_values_of_its_options(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([verb, "aoq", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--set" in shown
    for argument in recipe_arguments(recipe_function("aoq")):
        assert argument.option in shown
        assert all(value in shown for value in argument.values)


def test_options_stand_in_any_order(capsys):
    assert main(["plan", "--set", "online.seed=3", "aoq", "--model=scan-t2i"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("aoq/scan-t2i-scenes")
    assert "seed=3" in shown


def test_python_takes_the_same_arguments(known):
    assert find_recipe("aoq", model="scan-t2i", like="coco") == known["aoq/scan-t2i-coco"]
    assert find_recipe("photos", mined=True) == known["aoq/mobilenet-scenes"]
    with pytest.raises(ValueError, match="'modle' is not an argument of aoq; did you mean 'model'"):
        find_recipe("aoq", modle="vsepp")
    with pytest.raises(ValueError, match="'mined' of photos is 'yes'; give True or False"):
        find_recipe("photos", mined="yes")
    with pytest.raises(ValueError, match="aoq/vsepp-scenes is a recipe already; leave model out"):
        run(known["aoq/vsepp-scenes"], model="vsepp")


def test_a_recipe_of_ones_own_has_arguments(recipes, capsys):
    @registry.register.recipe("of-a-test")
    def own(*, epochs: int, rate: float = 0.1, kind: Literal[1, 2] = 1) -> Recipe:
        """Nothing.

        Args:
            epochs: how
                many.
        """
        return Recipe(name=f"{epochs}-{rate}-{kind}", stages=recipes[0].stages)

    @registry.register.recipe("of-another-test")
    def taken(*, set: str = "") -> Recipe: ...

    try:
        assert find_recipe("of-a-test", epochs=3).name == "3-0.1-1"
        assert main(["plan", "of-a-test", "--epochs", "3", "--rate", "1e-3", "--kind", "2"]) == 0
        assert capsys.readouterr().out.startswith("3-0.001-2")
        for words, told in (
            ("", "of-a-test needs epochs: how many."),
            ("--epochs few", "'epochs' of of-a-test is 'few'; give a whole number"),
            ("--epochs 1 --kind 3", "'3' is not a value of 'kind' of of-a-test; known: 1, 2"),
        ):
            assert main(["plan", "of-a-test", *words.split()]) == 2
            assert told in " ".join(capsys.readouterr().err.split())
        assert main(["plan", "of-another-test"]) == 2
        assert "rename the argument" in " ".join(capsys.readouterr().err.split())
    finally:
        for name in ("of-a-test", "of-another-test"):
            del registry._added["recipe", name]


def distinct(recipes: list[Recipe], *fields: str) -> list[Config]:
    """The different configurations in these fields of all stages."""
    found = {}
    for recipe in recipes:
        for stage in recipe.stages:
            for field in fields:
                spec = getattr(stage, field, None)
                if spec is not None:
                    found.setdefault(spec.digest(), spec)
    return list(found.values())


def test_configurations_survive_json(recipes):
    for spec in distinct(recipes, "model", "objective"):
        back = config_from_dict(json.loads(json.dumps(spec.to_dict())))
        assert back == spec
        assert back.digest() == spec.digest()
        assert repr(back) == repr(spec)


def test_models_and_objectives_build(recipes):
    given = {"words": 120, "features": 5, "size": 64, "classes": 3, "mask": None}
    for spec in distinct(recipes, "model"):
        small = _narrow(_offline(spec.fill(given)))
        assert sum(p.numel() for p in small.build().parameters()) > 0
    for spec in distinct(recipes, "objective"):
        spec.build()


def test_what_a_training_saves_of_a_model_brings_its_own_configuration(recipes):
    """A folder may not ask for weights or a configuration from elsewhere; BERT's once did."""
    written = {"pretrained": False, "config": "{}", "text config": "{}"}
    specs = distinct(recipes, "model")
    assert sum("BertTextTower" in repr(spec) for spec in specs) > 5
    for spec in specs:
        check_reopens(spec.fill(written), "the model", without_others=True)
        if "BertTextTower" in repr(spec):
            with pytest.raises(ValueError, match="configuration from elsewhere for its Bert"):
                check_reopens(spec.fill(written | {"text config": None}), "it", without_others=True)


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
    inner |= (
        {"heads": 2} if spec.make in (HREM, BatchGraph, UNITER, FirstTokenTower, ErnieViL) else {}
    )
    return Config(spec.make, inner | ({"width": 8} if "width" in inner else {}))


def test_recipes_with_the_same_stages_share_digests(known):
    """Both rounds of AOQ begin as the baseline does; plain training on photos is longer."""
    for name, recipe in known.items():
        if name.startswith("aoq/") and not re.search("vsrn-lists|mobilenet", name):
            base, found = (stage_digests(r, "d") for r in (known[name.split("/")[-1]], recipe))
            for stage in (s for s in base if s.startswith("online")):
                assert found[stage] == base[stage]


def test_a_smoke_recipe_differs_in_steps_alone(recipes):
    for recipe in recipes:
        for stage, was in zip(smoke_recipe(recipe).stages, recipe.stages):
            if isinstance(stage, Train):
                assert stage.plan.steps <= 20
                assert replace(stage, plan=was.plan, objective=was.objective) == was, recipe.name
                assert _without_steps(stage.objective) == _without_steps(was.objective)
            elif isinstance(stage, Pretrain):
                assert stage.plan.steps <= 20
                assert replace(stage, plan=was.plan) == was, recipe.name
            elif isinstance(stage, Generate):
                found = {"masks": was.masks, "refills": was.refills, "keep": was.keep}
                assert replace(stage, **found) == was, recipe.name
            else:
                assert stage == was, recipe.name


def _without_steps(spec: Config) -> str:
    return re.sub(r"steps=\d+", "", repr(spec))


def test_smoke_reaches_the_loss_after_the_warm_up(known):
    objective = smoke_recipe(known["aoq/vsepp-scenes"]).stage("adaptive").objective
    steps = [int(found) for found in re.findall(r"steps=(\d+)", repr(objective))]
    assert steps
    assert all(found < SMOKE_STEPS for found in steps)


def test_smoke_keeps_a_warm_up_that_waits_for_lists(known):
    settings = ("mined.remine.every=1", "mined.negatives=none", "objective.quintuplet.steps=400")
    recipe = apply_overrides(
        known["aoq/vsepp-scenes"], [f"adaptive.{setting}" for setting in settings]
    )
    short = smoke_recipe(recipe)
    assert short.stage("adaptive").objective == recipe.stage("adaptive").objective
    assert short.stage("online").objective != recipe.stage("online").objective


def test_released_code_of_vsrn_normalises_negatives_separately():
    recipe = find_recipe("aoq", model="vsrn", like="flickr30k", loss="released-code")
    for stage in (s for s in recipe.stages if isinstance(s, Train)):
        apart = stage.model.arguments.get("bn_passes") == "separate"
        assert apart == (stage.source(Mined) is not None)


def test_single_models_and_ensembles_are_not_mixed(known):
    """Ensembles are compared with ensembles, and their members are measured alone too."""
    for name, recipe in known.items():
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


@pytest.mark.parametrize(
    ("model", "like"), [(m, one) for m in OF_NDGL for one in find_system(m).datasets]
)
def test_a_student_is_compared_with_its_teachers(model, like):
    recipe = find_recipe("ndgl", model=model, like=like)
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
    assert student.sources == (from_stage("targets"),)
    own = recipe.stage(taught[0])
    assert (student.model, student.processor) == (own.model, own.processor)
    terms = dict(student.objective.arguments["terms"])
    (mr, distribution), (hnr, rectified) = terms.pop("mr"), terms.pop("hnr")
    assert terms == own.objective.arguments["terms"]
    assert (mr, hnr, rectified.arguments["gamma"]) == (100.0, 0.5, 0.01)  # Eq. 6
    summed = {term.arguments["reduction"] for term in (distribution, rectified)}
    assert summed == {"mean" if model == "dive" else "sum"}


@pytest.mark.parametrize("kind", ndgl.COMPARISONS)
def test_comparisons_of_ndgl_share_their_teachers(kind):
    for model in ndgl.COMPARISONS[kind][1]:
        for like in find_system(model).datasets:
            recipe = find_recipe("ndgl", model=model, like=like, compare=kind)
            first = stage_digests(find_recipe("ndgl", model=model, like=like), "d")
            found = stage_digests(recipe, "d")
            assert all(found[f"teacher-{k}"] == first[f"teacher-{k}"] for k in (1, 2))
            assert recipe.stages[-1].name == "report"


def test_coco_has_both_protocols(known):
    for name, recipe in known.items():
        found = [s for s in recipe.stages if isinstance(s, Evaluate)]
        both = {s.protocol for s in found} == {"coco-1k", "coco-5k"}
        assert both == ("-coco" in name)
        for stage in (s for s in found if s.protocol == "coco-5k"):
            assert stage.using == recipe.stage(stage.name.removesuffix("-5k")).using


def test_members_of_an_ensemble_differ():
    for name in OF_AOQ:
        found = ensemble_members(name)
        assert len({(one.model, one.seed) for one in found}) == len(found)
        assert len({one.part for one in found}) == len(found)


@pytest.mark.parametrize("loss", aoq.VARIANTS)
def test_ablations_differ_in_their_name_alone(loss):
    usual = find_recipe("aoq", like="flickr30k", loss="adapoffquin")
    recipe = find_recipe("aoq", like="flickr30k", loss=loss)
    assert recipe.stage(f"test-{loss}").using == (loss,)
    found, base = recipe.stage(loss), usual.stage("adapoffquin")
    assert (found == replace(base, name=loss)) == (loss in ("adapoffquin", "h300"))
    lists = recipe.stage("lists")
    assert isinstance(lists, Mine)
    sampling = found.source(Mined).arguments["sampling"]
    assert (sampling.texts, sampling.images) == (lists.texts, lists.images)
    assert lists.texts == 5 * lists.images


def test_ablations_share_one_list():
    for to in DATASETS:
        recipe = find_recipe("aoq", like=to, loss="all")
        (lists,) = [stage for stage in recipe.stages if isinstance(stage, Mine)]
        mined = [s.source(Mined) for s in recipe.stages if isinstance(s, Train)]
        drawn = [source.arguments["sampling"].texts for source in mined if source]
        assert lists.texts == max(drawn) == 1000
        assert len(drawn) == len(aoq.VARIANTS)


def test_a_recipe_in_a_file(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from counterfoil import Recipe, Train\n"
        "from counterfoil.papers.models.configs import vsepp_config\n"
        "from counterfoil.papers.training import hardest_triplet\n"
        "recipe = Recipe(name='mine', stages=(\n"
        "    Train(name='only', model=vsepp_config(width=8), objective=hardest_triplet(0)),\n"
        "))\n"
    )
    assert find_recipe(str(path)).name == "mine"
    assert main(["plan", str(path), "--set", "only.seed=3"]) == 0
    assert "seed=3" in capsys.readouterr().out
