"""Losses of the models that tables compare with, and short runs."""

from __future__ import annotations

import pytest

from counterfoil.core.config import config, lazy
from counterfoil.losses.queue import MomentumQueueLoss, UTOLoss
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.models.layers.towers import GRU
from counterfoil.negatives.momentum import MomentumQueue
from counterfoil.papers.models.gpo import GPO
from counterfoil.papers.models.naaf import NAAF
from counterfoil.papers.models.sgraf import SGRAF
from counterfoil.papers.models.user import EnhancedRegions
from counterfoil.papers.models.xdim import XDim
from counterfoil.papers.systems import LARGE
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Evaluate, Train
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe

EPOCH = {"flickr30k": 1132, "coco": 4425}


def training(name: str, dataset: str, stage: str = "online") -> Train:
    found = find_recipe("online", model=name, like=dataset).stage(stage)
    assert isinstance(found, Train)
    return found


@pytest.mark.parametrize("dataset", LARGE)
def test_losses(dataset):
    hardest = lazy(HardestTripletLoss, margin=0.2)
    for name in ("naaf-single", "sgraf-sgr", "sgraf-saf"):
        assert training(name, dataset).objective.arguments["terms"]["triplet"][1] == hardest
    _, switched = training("xdim-bert", dataset).objective.arguments["terms"]["triplet"]
    assert switched.arguments["second"] == hardest
    assert switched.arguments["steps"] == EPOCH[dataset]
    stage = training("user-bert", dataset)
    weight, size = {"flickr30k": (20.0, 2048), "coco": (1.0, 4096)}[dataset]
    terms = {"batch": (weight, lazy(UTOLoss)), "queue": (1.0, lazy(MomentumQueueLoss))}
    assert stage.objective.arguments["terms"] == terms
    assert stage.sources == (config(MomentumQueue, size=size),)
    built = stage.sources[0].build()
    assert (len(built.rows), built.momentum) == (size, 0.999)
    assert (UTOLoss().sharpness, UTOLoss().bar) == (90, 0.5)


def test_models():
    given = {"words": 9, "features": 6}
    naaf = training("naaf-single", "coco").model.fill(given).build()
    assert isinstance(naaf, NAAF)
    assert (naaf.lambda_softmax, naaf.alpha, naaf.image.width) == (20, 2, 1024)
    for module in ("sgr", "saf"):
        sgraf = training(f"sgraf-{module}", "flickr30k").model.fill(given).build()
        assert isinstance(sgraf, SGRAF)
        assert (sgraf.filtration is None, len(sgraf.reasoning)) == (
            (True, 3) if module == "sgr" else (False, 0)
        )
        assert (sgraf.local.out_features, sgraf.image_pool.dropout.p) == (256, 0.4)
        assert isinstance(sgraf.text, GRU)
        assert sgraf.text.dropout.p == 0.4
    xdim, user = (training(f"{name}-bert", "coco").model for name in ("xdim", "user"))
    assert (xdim.make, user.make) == (XDim, GPO)
    assert xdim.arguments["image"].arguments["region_drop"] == 0.2
    enhanced = user.arguments["image"]
    assert enhanced.make is EnhancedRegions
    assert enhanced.arguments["tower"].arguments["region_drop"] == 0
    assert training("user", "scenes").model.arguments["image"].make is not EnhancedRegions


@pytest.mark.parametrize(("name", "parts"), [("sgraf", ("sgr", "saf")), ("naaf", (0, 1))])
def test_published_results_are_ensembles_of_two(name, parts):
    recipe = find_recipe("online", model=name, like="coco")
    trained = [stage for stage in recipe.stages if isinstance(stage, Train)]
    if name == "sgraf":
        assert [training(f"sgraf-{part}", "coco").model for part in parts] == [
            stage.model for stage in trained
        ]
    else:
        assert [stage.plan.seed for stage in trained] == list(parts)
    tests = {s.name: len(s.using) for s in recipe.stages if isinstance(s, Evaluate)}
    assert tests["test"] == tests["test-5k"] == 2
    assert sorted(tests.values()) == [1, 1, 2, 2]


SMALL = ("*.plan.steps=2", "*.plan.batch=8", "*.model.text.width=16")


@pytest.mark.parametrize(
    ("name", "sees"),
    [
        *((f"online {one}", "regions") for one in ("naaf", "sgraf", "cgmn", "xdim", "user")),
        ("queue gpo", "regions"),
        *((one, "pixels") for one in ("online user", "queue vsepp", "graph vsepp")),
    ],
)
def test_short_runs(name, sees, tmp_path):
    data = "scenes:images=24" + (",features=regions" if sees == "regions" else "")
    function, model = name.split()
    like = "scenes" if sees == "pixels" else "flickr8k"
    recipe = smoke_recipe(find_recipe(function, model=model, like=like))
    tower = "image.tower" if (model, sees) == ("user", "regions") else "image"
    recipe = apply_overrides(
        recipe,
        (*SMALL, f"*.model.{tower}.width=16", "*.processor.min_count=1", "*.protocol=whole"),
    )
    assert run_pipeline(recipe, DataSource(data), tmp_path)
    for stage in recipe.stages:
        if isinstance(stage, Evaluate):
            assert RetrievalEvaluation.open(tmp_path / stage.name).report.rsum > 0


SIZES = ("heads=2", "inner=8", "image_width=12", "image_heads=3", "image_inner=8", "shared=8")
SMALL_STREAMS = ("width=16", *SIZES, "shared_heads=2")


@pytest.mark.parametrize(
    ("name", "like", "changes"),
    [
        ("lightningdot", "scenes", ()),
        ("lightningdot", "flickr8k", ("*.processor.min_count=1",)),
        (
            "ernievil",
            "flickr30k",
            (
                *(f"online.model.{size}" for size in SMALL_STREAMS),
                "*.processor.texts=words",
                "*.plan.accumulate=1",
            ),
        ),
    ],
)
def test_short_runs_on_regions_with_boxes(name, like, changes, tmp_path):
    recipe = smoke_recipe(find_recipe("online", model=name, like=like))
    settings = ("*.plan.steps=2", "*.plan.batch=8", "*.protocol=whole", *changes)
    recipe = apply_overrides(recipe, settings)
    assert run_pipeline(recipe, DataSource("scenes:images=24,features=regions"), tmp_path)
    assert RetrievalEvaluation.open(tmp_path / "test").report.rsum > 0
