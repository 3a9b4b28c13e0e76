"""A recipe that pre-trains a model and then trains it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from corpus_cases import write_features
from counterfoil.core.config import from_data, lazy
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.papers.pretraining.pretrain import PretrainTasks
from counterfoil.papers.pretraining.stage import Pretrain, pretrain_config
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import (
    Evaluate,
    Mine,
    Recipe,
    Train,
    data_contents,
    recipe_to_dict,
    stage_digests,
)
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.recipes.base import mined
from counterfoil.recipes.catalogue import smoke_recipe
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.logging import read_metrics
from recipes_cases import uniter

DATA = "scenes:images=24,features=regions"


def recipe(**changes: Any) -> Recipe:
    """Few steps of each."""
    pretrained = Pretrain(
        name="pretrained",
        model=uniter("match", "fill", "regress"),
        plan=replace(pretrain_config(epochs=2, batch=16, rate=1e-3), log_every=1),
    )
    online = Train(
        name="online",
        model=uniter("rank", "fill"),
        objective=weighted_sum(triplet=lazy(HardestTripletLoss, margin=0.2)),
        plan=TrainConfig(epochs=1, batch=8, steps=2, optimiser=OptimizerConfig(rate=1e-4)),
        start="pretrained",
    )
    tests = [Evaluate(name=f"test-{name}", using=(name,)) for name in ("pretrained", "online")]
    return Recipe(name="tiny", stages=(replace(pretrained, **changes), online, *tests))


def weights(folder: Path, stage: str) -> dict[str, torch.Tensor]:
    return load_file(folder / stage / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    assert run_pipeline(recipe(), DataSource(DATA), folder)
    return folder


def test_it_runs_to_the_end(done: Path) -> None:
    for stage in ("test-pretrained", "test-online"):
        assert (done / stage / "evaluation.json").is_file()
    card = json.loads((done / "pretrained" / "model" / "model.json").read_text())
    assert set(card["metrics"]) == {"accuracy", "mlm", "itm"}
    assert not (done / "pretrained" / "checkpoints").exists()
    told = set().union(*read_metrics(done / "pretrained" / "metrics.jsonl"))
    assert {"loss_mlm", "loss_itm", "loss_wra", "loss_mrfr"} <= told
    assert "loss_mrckl" not in told


def test_a_training_starts_from_its_weights(done: Path, tmp_path: Path) -> None:
    """With a rate of nearly nothing, all parts are as they were, the rank as the yes of match."""
    folder = tmp_path / "run"
    still = apply_overrides(recipe(), ["online.rate=1e-12"])
    assert run_pipeline(still, DataSource(DATA), folder)
    before, after = weights(folder, "pretrained"), weights(folder, "online")
    assert torch.allclose(after["says.rank.weight"], before["says.match.weight"][1:], atol=1e-9)
    shared = set(before) & set(after)
    assert {"says.fill.bias", "pooler.weight", "image.fc.weight"} <= shared
    for name in shared:
        assert torch.allclose(before[name], after[name], atol=1e-9), name
    assert all(torch.equal(t, before[n]) for n, t in weights(done, "pretrained").items())


def test_stopped_it_goes_on_to_the_same_weights(done: Path, tmp_path: Path) -> None:
    folder, stops = tmp_path / "run", 0
    slow = recipe(plan=replace(recipe().stages[0].plan, minutes=1e-9))  # type: ignore[union-attr]
    while not run_pipeline(slow, DataSource(DATA), folder, resume=True):
        stops += 1
    assert stops > 3
    cut = weights(folder, "pretrained")
    assert all(torch.equal(value, cut[name]) for name, value in weights(done, "pretrained").items())


def test_it_says_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = smoke_recipe(recipe())
    alone = Recipe(name="tiny", stages=small.stages[:1])
    assert run_pipeline(alone, DataSource(DATA), tmp_path / "run")
    out = " ".join(capsys.readouterr().err.split())
    assert "the regions of scenes come without class probabilities, so mrckl left out" in out
    assert "last epoch 1 of 1, dev accuracy" in out


def test_classes_beside_the_features_are_asked(tmp_path: Path) -> None:
    found = load_dataset(DATA)
    assert found.features is not None
    shape = (len(found), found.features.regions, 5)
    said = np.random.default_rng(0).dirichlet(np.ones(5), shape[:2]).astype(np.float32)
    with_classes = replace(found.features, classes=said)
    write_features(tmp_path / "features", found.image_ids, with_classes)
    heads = uniter("match", "fill", "regress", "classify").replace(classes=from_data("classes"))
    stage = recipe(model=heads, tasks=PretrainTasks(mlm=0, mrfr=0, mrc=1, mrckl=1, itm=0)).stages[0]
    alone = smoke_recipe(Recipe(name="tiny", stages=(stage,)))
    source = DataSource("scenes:images=24", features=tmp_path / "features")
    assert data_contents(source.open()) != data_contents(replace(found, features=found.features))
    assert run_pipeline(alone, source, tmp_path / "run")
    told = set().union(*read_metrics(tmp_path / "run" / "pretrained" / "metrics.jsonl"))
    assert {"loss_mrc", "loss_mrckl"} <= told
    assert weights(tmp_path / "run", "pretrained")["says.classify.out.bias"].shape == (5,)
    some = torch.tensor([4, 1])
    kept = source.open().subset(some).features
    assert kept is not None
    assert torch.equal(kept.likely(torch.tensor([0, 1])), torch.from_numpy(said[some.numpy()]))
    with pytest.raises(ValueError, match="so the classes need"):
        replace(found.features, classes=said[:, :2])


def test_its_keys_can_be_set() -> None:
    changed = apply_overrides(recipe(), ["pretrained.mlm=4", "pretrained.tasks.itm=1", "*.seed=3"])
    stage = changed.stage("pretrained")
    assert isinstance(stage, Pretrain)
    assert stage.tasks == PretrainTasks(mlm=4.0, itm=1.0)
    assert stage.plan.seed == 3
    assert recipe_to_dict(stage)["tasks"]["mlm"] == 4.0


def test_what_starts_from_it_depends_on_it() -> None:
    one, other = (
        stage_digests(recipe(tasks=tasks), "data")
        for tasks in (PretrainTasks(), PretrainTasks(mlm=3))
    )
    assert not {*one.values()} & {*other.values()}
    quiet = replace(recipe().stages[0].plan, minutes=5.0)  # type: ignore[union-attr]
    assert stage_digests(recipe(plan=quiet), "data") == stage_digests(recipe(), "data")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"processor": ProcessorConfig(images="pixels")}, "its processor gives pixels and words"),
        (
            {"processor": ProcessorConfig(texts="vectors")},
            "its processor gives features and vectors",
        ),
    ],
)
def test_a_lens_that_hides_nothing(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        recipe(**change)


def test_a_task_without_its_head(tmp_path: Path) -> None:
    wrong = recipe(model=uniter("match", "fill"))
    with pytest.raises(ValueError, match="draws the task 'mrfr', for which its model has no head"):
        run_pipeline(wrong, DataSource(DATA), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_pretraining_is_a_model_and_no_list() -> None:
    first, *_ = recipe().stages
    Recipe(name="mined", stages=(first, Mine(name="lists", using=("pretrained",))))
    assert isinstance(first, Pretrain)
    again = replace(first, name="again", start="pretrained")
    assert Recipe(name="twice", stages=(first, again)).stages[1].reads == ("pretrained",)
    train = recipe().stages[1]
    assert isinstance(train, Train)
    with pytest.raises(ValueError, match="needs a mine stage where it names 'pretrained'"):
        Recipe(name="wrong", stages=(first, train.with_sources(mined("pretrained"))))
