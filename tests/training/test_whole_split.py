"""The whole training split as one batch: tiled losses equal a dense step with all captions."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import processes
import train_cases
from counterfoil.core.config import config
from counterfoil.core.types import INFERENCE, Pairs
from counterfoil.data.batching import BatchSampler, collate
from counterfoil.data.dataset import ImageTextDataset, Positives
from counterfoil.data.features import FeatureArray
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.losses import tiled, triplet
from counterfoil.losses.aoq import AdaptiveQuintuplet
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.model import Model
from counterfoil.models.frozen import FrozenAdapters
from counterfoil.negatives.mining import mine_lists
from counterfoil.training.callbacks import Callback
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.mined import Mined, MinedBatches
from counterfoil.training.step import TrainingStep
from counterfoil.training.trainer import Trainer, TrainingLoop, train_network
from tensor_sizes import Largest

WIDTH, IMAGES = 8, 20
# the captions of image n are 3n to 3n + 2; some are near other images, which people confirmed
BESIDES = Pairs(torch.tensor([0, 0, 7, 19]), torch.tensor([5, 59, 0, 30]))


@cache
def dataset(images: int = IMAGES, *, judged: bool = True) -> ImageTextDataset:
    """Vectors of images with three captions each."""
    rng = np.random.default_rng(0)
    looks = rng.normal(size=(images, 1, WIDTH))
    words = np.repeat(looks, 3, 0) + 0.8 * rng.normal(size=(3 * images, 1, WIDTH))
    if judged:
        words[BESIDES.text] = looks[BESIDES.image]  # the hardest of all, were they negatives
    return ImageTextDataset(
        name="vectors",
        image_ids=[f"i{n}" for n in range(images)],
        text_ids=[f"t{n}" for n in range(3 * images)],
        texts=[""] * (3 * images),
        text_to_image=torch.arange(images).repeat_interleave(3),
        splits=["train"] * images,
        features=FeatureArray.of(looks.astype(np.float32)),
        text_features=FeatureArray.of(words.astype(np.float32)),
        extra_positives=BESIDES if judged else None,
    )


def processed(data: ImageTextDataset) -> ProcessedDataset:
    return ProcessorConfig(texts="vectors").fit(data).process(data)


def adapters(dropout: float = 0.0) -> FrozenAdapters:
    torch.manual_seed(3)
    model = FrozenAdapters(width=WIDTH, hidden=6, dropout=dropout)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


OBJECTIVES: dict[str, dict[str, tuple[float, Loss]]] = {
    "triplet": {"loss": (1.0, HardestTripletLoss(margin=0.4))},
    "mean": {"loss": (0.5, HardestTripletLoss(margin=0.2, reduction="mean"))},
    "infonce": {"loss": (1.0, InfoNCELoss(temperature=0.1, reduction="mean"))},
    "both": {
        "triplet": (0.3, HardestTripletLoss()),
        "learnt": (2.0, InfoNCELoss(temperature=0.05, learnable=True, margin=0.1)),
    },
}


def judged(
    whole: bool,
    name: str,
    *,
    data: ImageTextDataset | None = None,
    positives: Positives = "id",
    chunk: int = 0,
    dropout: float = 0.0,
    **how: Any,
) -> dict[str, Any]:
    """Losses, gradients and level of one step with all captions in one batch."""
    processor = processed((data or dataset()).with_positives(positives))
    texts = torch.randperm(len(processor.dataset.texts), generator=torch.Generator().manual_seed(1))
    batch = collate(processor, texts, step=2)
    objective = WeightedSum(terms=OBJECTIVES[name])
    objective.zero_grad()
    step = TrainingStep(adapters(dropout), objective, tiled=whole, **how)
    torch.manual_seed(5)
    found = train_cases.stepped(step, batch, chunk)
    level = step.level(batch)
    assert level is not None
    return found | {"level": level.item()}


def same(one: Mapping[str, Any], other: Mapping[str, Any], within: float = 1e-5) -> None:
    assert one["losses"] == pytest.approx(other["losses"], rel=within)
    assert one["level"] == pytest.approx(other["level"], rel=within)
    assert one["gradients"].keys() == other["gradients"].keys()
    for name, value in other["gradients"].items():
        assert abs(value).max() > 0, f"{name} is not tested"
        assert abs(one["gradients"][name] - value).max() < within * (1 + abs(value).max()), name


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"data": dataset(judged=False)},
        {"positives": "diagonal"},
        {"dropout": 0.5},
        {"chunk": 7},
    ],
    ids=lambda how: next(iter(how), "plain"),
)
def test_a_step_equals_the_dense_one(name: str, how: Any) -> None:
    same(judged(True, name, **how), judged(False, name, **how))


def test_half_precision_encodes_alike() -> None:
    same(judged(True, "both", precision="bf16"), judged(False, "both", precision="bf16"), 1e-2)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["triplet", "infonce"])
def test_true_pairs_are_no_negatives(whole: bool, name: str) -> None:
    """By the loss of plain tensors; InfoNCE learns from them too."""
    processor, model = processed(dataset()), adapters()
    batch = collate(processor, torch.arange(3 * IMAGES))
    scores = model.score_matrix(
        model.encode_images(batch.images), model.encode_texts(batch.texts)
    ).detach()
    own = batch.positive
    out = torch.zeros_like(own)
    for image, text in zip(BESIDES.image.tolist(), BESIDES.text.tolist(), strict=True):
        out[image, text] = True
    loss = OBJECTIVES[name]["loss"][1]
    wanted = loss(scores.masked_fill(out, -torch.inf), own).item()
    assert wanted < 0.99 * loss(scores, own).item(), "they would be the hardest"
    if name == "infonce":
        wanted = loss(scores, own, extra_positives=out.float()).item()
    found = TrainingStep(model, WeightedSum(terms=OBJECTIVES[name]), tiled=whole)(batch)
    assert found["loss"].item() == pytest.approx(wanted, rel=1e-5)


def two_processes(name: str) -> dict[str, Any]:
    return judged(True, name)


def test_two_processes_equal_one() -> None:
    one = judged(True, "both")
    for result in processes.run(two_processes, 2, "both"):
        same(result, one)


def test_neither_the_batch_nor_the_step_holds_a_score_of_every_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = partial(tiled.tiled_hardest_triplet, tile=16)
    monkeypatch.setattr(triplet, "tiled_hardest_triplet", small)
    data = dataset(200)
    every = torch.arange(len(data.texts))
    step = TrainingStep(adapters(), WeightedSum(terms=OBJECTIVES["triplet"]), tiled=True)
    with Largest() as seen:
        batch = collate(processed(data), every)
        step(batch)["loss"].backward()
    assert seen.elements <= 600 * WIDTH


# Trainings.


def trained(folder: Path, **changes: Any) -> tuple[Mapping[str, Tensor], list[dict[str, Any]]]:
    """Weights and metrics of a training."""
    callbacks = changes.pop("callbacks", ())
    resume = changes.pop("resume", False)
    plan = TrainConfig(
        epochs=5, batch=0, optimiser=OptimizerConfig(rate=0.02), save_minutes=0, keep_last=True
    )
    model = adapters(dropout=0.3)
    spec = config(FrozenAdapters, width=WIDTH, hidden=6, dropout=0.3)
    data = dataset()
    processor = ProcessorConfig(texts="vectors").fit(data)
    trainer = Trainer(
        Model(model, processor, "small", spec),
        loss=HardestTripletLoss(reduction="mean"),
        train=data,
        dev=data,
        output=folder,
        config=replace(plan, **changes),
        callbacks=callbacks,
        resume=resume,
    )
    trainer.train()
    return model.state_dict(), train_cases.metrics_of(folder)


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_training_is_that_of_one_dense_batch(tmp_path: Path) -> None:
    whole, lines = trained(tmp_path / "whole")
    dense, others = trained(tmp_path / "dense", batch=3 * IMAGES)
    for name, value in dense.items():
        torch.testing.assert_close(whole[name], value, atol=1e-4, rtol=1e-3)
    steps = [line for line in lines if "loss" in line]
    assert [line["epoch"] for line in steps] == [1, 2, 3, 4, 5]
    assert [line["loss"] for line in steps] == pytest.approx(
        [line["loss"] for line in others if "loss" in line], rel=1e-4
    )
    assert all(-1 <= line["hardest_score"] <= line["true_score"] + 1 <= 2 for line in steps)


def test_the_log_has_the_mean_of_the_hardest(tmp_path: Path) -> None:
    step = TrainingStep(adapters(), WeightedSum(terms=OBJECTIVES["triplet"]), tiled=True)
    batch = collate(processed(dataset()), torch.arange(3 * IMAGES))
    step.watch.wanted = True
    step(batch)
    grids: dict[str, Any] = {}
    dense = TrainingStep(step.model, WeightedSum(terms=OBJECTIVES["triplet"]))
    dense.watch.record = lambda given, *_: grids.update(given)  # type: ignore[method-assign]
    dense(batch)
    grid = grids[INFERENCE]
    wrong = grid.scores.masked_fill(grid.positive, -torch.inf).amax(0)
    wanted = {"true_score": grid.anchor.mean().item(), "hardest_score": wrong.mean().item()}
    assert step.watch.take() == pytest.approx(wanted, abs=1e-5)


class KillAfter(Callback):
    """Kills the process after two epochs and a step, before that step is saved."""

    def on_step_end(self, loop: TrainingLoop[Any], group: Any, losses: Any) -> None:
        if loop.progress.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("mode", [{}, {"one_caption": True}, {"all_captions": True}], ids=str)
def test_a_killed_training_goes_on_to_the_same_numbers(tmp_path: Path, mode: Any) -> None:
    whole, lines = trained(tmp_path / "whole", **mode)
    cut = {"callbacks": [KillAfter()], **mode}
    job = multiprocessing.get_context("fork").Process(
        target=trained, args=(tmp_path / "cut",), kwargs=cut
    )
    job.start()
    job.join(60)
    assert job.exitcode == -signal.SIGKILL
    assert list((tmp_path / "cut" / "checkpoints").iterdir()), "it goes on from a step"
    again, others = trained(tmp_path / "cut", resume=True, **mode)
    assert equal(again, whole)
    assert others == lines


def test_a_batch_of_all_is_not_reordered_and_never_dropped() -> None:
    relation = dataset().relation
    plain = BatchSampler(replace(dataset(), extra_positives=None).relation, batch=60, seed=1)
    judged = BatchSampler(relation, batch=60, seed=1)
    assert torch.equal(next(plain.epoch(0)), next(judged.epoch(0)))


def test_a_short_batch_is_dropped_only_where_there_are_others(tmp_path: Path) -> None:
    weights, _ = trained(tmp_path / "a")
    others, _ = trained(tmp_path / "b", drop_last=True)
    assert equal(weights, others)


# Bad inputs.


def started(folder: Path, **changes: Any) -> None:
    data = dataset()
    processor = ProcessorConfig(texts="vectors").fit(data)
    model = Model(adapters(), processor, "small", config(FrozenAdapters, width=WIDTH, hidden=6))
    lists = mine_lists(
        [model.embed(data)], data.text_to_image, texts_per_image=6, images_per_text=3
    )
    sources = [source(lists) for source in changes.pop("sources", ())]
    Trainer(model, train=data, output=folder, batch_size=0, sources=sources, **changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": SumTripletLoss()}, "but the loss SumTripletLoss would need it"),
        (
            {"loss": AdaptiveQuintuplet(), "sources": [Mined]},
            "but the loss AdaptiveQuintuplet, Mined would need it",
        ),
        (
            {"loss": HardestTripletLoss(), "sources": [MinedBatches]},
            "but MinedBatches would need it",
        ),
        (
            {"loss": SwitchAfter(first=SumTripletLoss(), second=HardestTripletLoss(), steps=2)},
            "but the loss SwitchAfter would need it; allowed are HardestTripletLoss and InfoNCE",
        ),
        (
            {"loss": HardestTripletLoss(view="plain")},
            "the loss HardestTripletLoss reads the scores of",
        ),
    ],
)
def test_what_needs_the_score_matrix(tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        started(tmp_path / "a", **change)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", ["bag", "scan", "hrem"])
def test_a_model_of_several_vectors_or_of_a_graph(tmp_path: Path, kind: str) -> None:
    processor = train_cases.processor()
    objective = WeightedSum(terms=OBJECTIVES["triplet"])
    model = train_cases.host(kind, processor)
    with pytest.raises(ValueError, match=f"but the model {type(model).__name__} would need it"):
        train_network(TrainConfig(batch=0), model, objective, processor, folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()
