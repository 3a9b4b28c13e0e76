from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import recipes_cases
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.model import load_model
from counterfoil.pipelines.pipeline import Train
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.stages.fitting import dev_measure, selection_dataset
from counterfoil.pipelines.state import RunContext
from counterfoil.recipes.catalogue import find_recipe
from counterfoil.training.logging import read_metrics

DATA = "scenes:images=72,dev=12"
ONLINE = find_recipe("aoq").stages[0]
assert isinstance(ONLINE, Train)


def stage(many: int) -> Train:
    return replace(ONLINE, plan=replace(ONLINE.plan, dev_images=many))


@pytest.fixture
def context(tmp_path):
    return RunContext(find_recipe("aoq"), DataSource(DATA).open(), tmp_path, {})


def test_a_sample_of_dev_has_all_captions_and_is_always_the_same(context, capsys):
    dev = context.dev
    seven, four = selection_dataset(context, stage(7)), selection_dataset(context, stage(4))
    assert "measured on 7 of the 12 images of dev, drawn by seed 0" in capsys.readouterr().err
    assert (len(seven), len(four)) == (7, 4)
    assert set(four.image_ids) < set(seven.image_ids) < set(dev.image_ids)
    reseeded = replace(stage(7), plan=replace(stage(7).plan, seed=9))
    assert selection_dataset(context, reseeded).fingerprint == seven.fingerprint
    for row, name in enumerate(seven.image_ids):
        theirs = dev.text_to_image == dev.image_ids.index(name)
        wanted = [text for text, true in zip(dev.texts, theirs.tolist()) if true]
        owned = seven.text_to_image == row
        assert [text for text, true in zip(seven.texts, owned.tolist()) if true] == wanted


def test_the_first_images_of_dev_as_the_papers_have_it(context, capsys):
    plan = replace(ONLINE.plan, dev_images=5, dev_first=True)
    first = selection_dataset(context, replace(ONLINE, plan=plan))
    assert "measured on 5 of the 12 images of dev, the first ones" in capsys.readouterr().err
    assert first.image_ids == context.dev.image_ids[:5]
    assert len(first.texts) == len(context.dev.subset(torch.arange(5)).texts)
    assert first.fingerprint != selection_dataset(context, stage(5)).fingerprint


@pytest.mark.parametrize("many", [0, 12, 99])
def test_all_of_dev(many, context, capsys):
    assert selection_dataset(context, stage(many)) is context.dev
    assert not capsys.readouterr().err


def test_figures_are_those_of_the_sample(context, tmp_path):
    model = load_model(recipes_cases.pixel_model(tmp_path / "m"))
    sample = selection_dataset(context, stage(7))
    figures = dev_measure(context, stage(7), model)
    assert figures is not None
    found = figures(model.model)
    wanted = evaluate_protocol([model.embed(sample)], sample)
    assert found["rsum"] == wanted.rsum
    assert found["t2i_r1"] == wanted.t2i.r1
    assert found["images"] == 7
    whole = dev_measure(context, stage(0), model)
    assert whole is not None
    assert "images" not in whole(model.model)


def test_a_training_says_on_how_many(tmp_path, capsys):
    few = ("--set", "online.dev_images=5")
    assert recipes_cases.aoq(tmp_path / "run", DATA, *few) == 0
    shown = capsys.readouterr()
    assert "online: measured on 5 of the 12 images of dev" in shown.err
    assert "on 5 images" in shown.err
    assert any(
        "online: last epoch" in line and "on 5 images" in line for line in shown.err.splitlines()
    )
    lines = read_metrics(tmp_path / "run" / "online" / "metrics.jsonl")
    assert {line["dev_images"] for line in lines if "dev_rsum" in line} == {5}
    card = json.loads((tmp_path / "run" / "online" / "model" / "model.json").read_text())
    assert card["metrics"]["images"] == 5
    lines = read_metrics(tmp_path / "run" / "adaptive" / "metrics.jsonl")
    assert all("dev_images" not in line for line in lines)
