"""VSE-C as a recipe: the plan has the authors' numbers, and the pool's hardest foils are learnt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterfoil.core.config import Config
from counterfoil.papers.tags.stage import RewriteByRule
from counterfoil.pipelines.pipeline import Train
from counterfoil.recipes.catalogue import find_recipe
from recipes_cases import SMALL, run


@pytest.mark.parametrize(("dataset", "epoch"), [("flickr30k", 1132), ("coco", 4425)])
def test_numbers_of_the_authors(dataset: str, epoch: int) -> None:
    written, training = find_recipe("vse-c", like=dataset).stages[:2]
    assert isinstance(written, RewriteByRule)
    assert isinstance(training, Train)
    assert written.plan.kinds == ("noun", "numeral", "relation")
    plan, model = training.plan, training.model.arguments
    assert (plan.epochs, plan.batch, plan.optimiser.rate, plan.optimiser.clip) == (30, 128, 1e-3, 2)
    assert plan.schedule.at == (15,)
    text = model["text"].arguments
    assert (text["word_width"], text["width"], text["bidirectional"]) == (400, 1024, False)
    terms = training.objective.arguments["terms"]
    assert terms["triplet"][1].arguments == {"margin": 0.2}
    weight, later = terms["written"]
    assert (weight, later.arguments["steps"]) == (1.0, epoch)  # silent in the first epoch
    assert later.arguments["term"].arguments == {"role": "written", "margin": 0.2}
    (pool,) = training.sources
    assert isinstance(pool, Config)
    drawn = {name: pool.arguments[name] for name in ("count", "shared", "hardest")}
    assert drawn == {"count": 5, "shared": True, "hardest": True}


@pytest.mark.parametrize("kind", ["noun", "numeral", "relation"])
def test_one_kind_alone(kind: str) -> None:
    recipe = find_recipe("vse-c", like="coco", kinds=kind)
    assert recipe.name == f"vse-c/{kind}/vsepp-coco"
    assert isinstance(recipe.stages[0], RewriteByRule)
    assert recipe.stages[0].plan.kinds == (kind,)


def test_on_scenes(tmp_path: Path) -> None:
    words = ("--data", "scenes:images=36", "--output", tmp_path / "run", "--smoke", *SMALL)
    words = (*words, "--set", "written.most=2")
    assert run("run", "vse-c", *words) == 0
    lines = (tmp_path / "run/online/metrics.jsonl").read_text().splitlines()
    losses = [line["loss_written"] for line in map(json.loads, lines) if "loss_written" in line]
    assert losses[0] == 0, "silent at first"
    assert losses[-1] > 0
