"""Training from end to end on a tiny corpus."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import train_cases as cases
from counterfoil.core.types import Scores
from counterfoil.evaluation.metrics import ranks_of
from counterfoil.losses.aoq import OfflineTriplet
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.pipelines.stages.fitting import best_epoch_note
from counterfoil.training.config import LinearLR, OptimizerConfig, ParameterGroup, TrainConfig
from counterfoil.training.logging import read_metrics
from counterfoil.training.trainer import TrainResult, train_network
from sources_cases import drawn
from train_cases import CLOCK, metrics_of, same_weights

PLAN = TrainConfig(epochs=3, batch=8, optimiser=OptimizerConfig(rate=0.02), log_every=2)


class Broken(Loss):
    def forward(self, scores: Scores) -> torch.Tensor:
        grid = self.matrix(scores)
        return grid.scores.sum() * (math.nan if scores.step == 5 else 0.0)


def measure(model: RetrievalModel) -> Mapping[str, float]:
    assert not model.training
    processor = cases.processor()
    rows = torch.arange(len(processor.dataset)), torch.arange(len(processor.dataset.texts))
    images, texts = (
        model.encode_images(processor.images(rows[0])),
        model.encode_texts(processor.texts(rows[1])),
    )
    ranks = ranks_of(model.score_matrix(images, texts), processor.dataset.text_to_image)[1]
    return {"rsum": 100 * (ranks < 1).float().mean().item(), "mean": ranks.float().mean().item()}


def train(
    folder: Path, plan: TrainConfig = PLAN, **more: Any
) -> tuple[TrainResult, RetrievalModel]:
    processor = cases.processor()
    model = cases.host(more.pop("kind", "global"), processor, dropout=0.3)
    objective = more.pop("objective", None) or WeightedSum(terms={"t": (1.0, SumTripletLoss())})
    more.setdefault("evaluate", measure)
    fitted = train_network(plan, model, objective, processor, folder=folder, **more)
    return fitted, model


def test_it_learns(tmp_path: Path) -> None:
    fitted, model = train(tmp_path, replace(PLAN, epochs=12))
    loss = [line["loss"] for line in metrics_of(tmp_path) if "loss" in line]
    assert loss[-1] < 0.3 * loss[0]
    assert fitted.finished
    assert fitted.best is not None
    assert fitted.best.value > 60
    assert not model.training


def test_activations_that_cannot_be_computed_again_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Global holds no model of transformers"):
        train(tmp_path, replace(PLAN, gradient_checkpointing=True))


def test_the_best_epoch_is_kept(tmp_path: Path) -> None:
    figures, states = iter([1.0, 3.0, 3.0, 2.0]), []

    def planned(model: RetrievalModel) -> dict[str, float]:
        states.append({n: v.clone() for n, v in model.state_dict().items()})
        return {"rsum": next(figures)}

    fitted, model = train(tmp_path, replace(PLAN, epochs=4), evaluate=planned)
    assert fitted.best is not None
    assert (fitted.best.epoch, fitted.best.value, fitted.best.step) == (2, 3.0, 10)
    assert fitted.kept == "epoch 2, the best on dev"
    assert replace(fitted, best=None).kept == "epoch 4, the last"
    assert all(torch.equal(v, states[1][n]) for n, v in model.state_dict().items())
    assert not torch.equal(states[1]["image.weight"], states[3]["image.weight"])
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["best-10.safetensors", "last.safetensors"]


def test_metrics_say_what_was_done(tmp_path: Path) -> None:
    plan = replace(PLAN, epochs=2, schedule=LinearLR(warmup=2))
    terms = {"far": (0.5, SumTripletLoss()), "near": (1.0, HardestTripletLoss())}
    train(tmp_path, plan, objective=WeightedSum(terms=terms))
    found = read_metrics(tmp_path / "metrics.jsonl")
    steps = [line["step"] for line in found if "loss" in line]
    assert steps == [2, 4, 5, 6, 8, 10]  # five batches an epoch, every second step, ends of epochs
    first = found[0]
    assert first["loss"] == pytest.approx(first["loss_far"] + first["loss_near"], rel=1e-5)
    assert first["lr"] == pytest.approx(0.02)
    assert CLOCK - {"dev_seconds", "mined_seconds"} | {"grad_norm", "epoch"} <= first.keys()
    assert [line["dev_rsum"] for line in found if "dev_rsum" in line]
    assert found[-1]["epoch"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"accumulate": 2},
        {"grad_cache": 3},
        {"average": 0.9},
        {"precision": "bf16", "grad_cache": 3},
        {"one_caption": True, "batch": 5, "drop_last": True},
        {
            "optimiser": OptimizerConfig(
                rate=0.02, groups=(ParameterGroup(match="image.*", begins=1),)
            )
        },
    ],
    ids=lambda change: "optimiser" if "optimiser" in change else str(change),
)
def test_a_stopped_training_goes_on_as_if_it_had_not(tmp_path: Path, change: Any) -> None:
    plan = replace(PLAN, epochs=2, **change)
    more = {
        "kind": "bag",
        "sources": [drawn(cases.Offline(cases.processor().dataset.text_to_image))],
    }
    terms = {"offline": (1.0, OfflineTriplet()), "nce": (0.1, InfoNCELoss(learnable=True))}

    def objective() -> WeightedSum:
        torch.manual_seed(0)
        return WeightedSum(terms={**terms, "nce": (0.1, InfoNCELoss(learnable=True))})

    whole, expected = train(tmp_path / "whole", plan, objective=objective(), **more)
    hasty = replace(plan, minutes=1e-9)
    sessions, fitted = 0, None
    while fitted is None or not fitted.finished:
        fitted, model = train(tmp_path / "cut", hasty, objective=objective(), resume=True, **more)
        sessions += 1
        assert sessions <= whole.steps
    assert sessions > 2, "every session makes one step"
    assert metrics_of(tmp_path / "cut") == metrics_of(tmp_path / "whole")
    assert same_weights(model, expected)
    assert fitted.best == whole.best


def test_a_signal_stops_it_with_a_checkpoint(tmp_path: Path) -> None:
    calls = []

    def interrupt(model: RetrievalModel) -> dict[str, float]:
        calls.append(model)
        os.kill(os.getpid(), signal.SIGTERM)
        return {"rsum": 1.0}

    before = signal.getsignal(signal.SIGTERM)
    fitted, _ = train(tmp_path, evaluate=interrupt)
    assert fitted.stop_reason == "signal"
    assert (fitted.steps, len(calls)) == (5, 1)
    assert (tmp_path / "checkpoints" / "last.safetensors").exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_finished_training_is_not_trained_again(tmp_path: Path) -> None:
    first, expected = train(tmp_path)
    again, model = train(tmp_path, resume=True)
    assert again.finished
    assert again.steps == first.steps
    assert same_weights(model, expected)


def test_without_resume_it_starts_again(tmp_path: Path) -> None:
    train(tmp_path, replace(PLAN, epochs=2))
    fitted, _ = train(tmp_path)
    assert fitted.steps == 15
    assert metrics_of(tmp_path)[0]["step"] == 2
    assert len(metrics_of(tmp_path)) == 12


def test_without_evaluation_the_last_weights_stay(tmp_path: Path) -> None:
    fitted, _ = train(tmp_path, evaluate=None)
    assert fitted.best is None
    assert fitted.finished


def test_a_limit_of_steps(tmp_path: Path) -> None:
    fitted, _ = train(tmp_path, replace(PLAN, steps=3))
    assert fitted.finished
    assert fitted.steps == 3
    assert fitted.best is not None


@pytest.mark.parametrize(
    ("steps", "keep_last", "epoch"),
    [
        *((0, False, 1), (4, False, 1), (5, False, 2), (6, False, 2), (10, False, 3)),
        *((15, False, 2), (99, False, 2), (0, True, 3)),  # cut to 9 steps
    ],  # an epoch has 5 steps
)
def test_no_epoch_inside_a_warm_up_is_kept(
    tmp_path: Path, steps: int, keep_last: bool, epoch: int
) -> None:
    """Dev falls from epoch to epoch: without the rule the first one would always be kept."""
    figures = iter((3.0, 2.0, 1.0))
    warm = SwitchAfter(first=SumTripletLoss(), second=HardestTripletLoss(), steps=steps)
    fitted, _ = train(
        tmp_path,
        replace(PLAN, keep_last=keep_last),
        objective=WeightedSum(terms={"t": (1.0, warm)}),
        evaluate=lambda model: {"rsum": next(figures)},
    )
    assert fitted.best is not None
    assert (fitted.best.epoch, fitted.best.value) == (epoch, 4.0 - epoch)


@pytest.mark.parametrize(
    ("accumulate", "settled", "warm_up", "said"),
    [
        (1, 13, 13, ""),  # of 15 batches
        (1, 14, 9, "would warm up for 14 of 15 batches, so its warm-up is cut to 9"),
        (1, 235, 9, "would warm up for 235 of 15 batches, so its warm-up is cut to 9"),
        (2, 235, 4, "would warm up for 235 of 15 batches, so its warm-up is cut to 9"),
        (2, 13, 6, ""),
    ],
)
def test_a_warm_up_longer_than_the_training_is_cut(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    accumulate: int,
    settled: int,
    warm_up: int,
    said: str,
) -> None:
    """A training of few steps reaches its loss, and that of more has the numbers it was given."""
    seen = []

    class Second(Loss):
        def forward(self, scores: Scores) -> torch.Tensor:
            seen.append(scores.step)
            return self.matrix(scores).scores.square().mean()

    warm = SwitchAfter(first=SumTripletLoss(), second=Second(), steps=settled)
    plan = replace(PLAN, accumulate=accumulate)
    fitted, _ = train(tmp_path, plan, objective=WeightedSum(terms={"t": (1.0, warm)}))
    assert fitted.warm_up == warm_up
    assert len(set(seen)) == (6 if said else 2)
    err = capsys.readouterr().err
    assert (said in err) if said else ("warm-up is cut" not in err)
    assert warm.steps == settled  # the same loss may train on other data


def test_a_training_inside_its_warm_up_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warm = SwitchAfter(first=SumTripletLoss(), second=HardestTripletLoss(), steps=9)
    objective = WeightedSum(terms={"t": (1.0, warm)})
    fitted, _ = train(tmp_path, replace(PLAN, steps=1), objective=objective)
    assert fitted.best is not None
    assert (fitted.best.step, fitted.warm_up) == (1, 0)
    assert "warms up for 9 batches and 1 are planned" in capsys.readouterr().err


def test_a_broken_loss_is_said(tmp_path: Path) -> None:
    terms = {"t": (1.0, SumTripletLoss()), "broken": (1.0, Broken())}
    with pytest.raises(ValueError, match=r"broke down by step 6: .*loss_broken is nan.* lower"):
        train(tmp_path, objective=WeightedSum(terms=terms))
    fitted, _ = train(tmp_path, replace(PLAN, seed=1))
    assert fitted.finished


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plan": replace(PLAN, select="rsu")}, "'rsu' is not a dev figure.*did you mean 'rsum'"),
        ({"evaluate": lambda model: {"rsum": math.nan}}, "the dev figure 'rsum' is not a number"),
        ({"plan": replace(PLAN, track=("wandb",))}, "needs wandb"),
        (
            {"objective": WeightedSum(terms={"o": (1.0, OfflineTriplet())})},
            "needs pairs in the role of 'hard image'.*no source",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # it is not installed
    with pytest.raises(ValueError, match=words):
        train(tmp_path / "run", **change)
    if "evaluate" not in change and "rsu" not in words:
        assert not (tmp_path / "run").exists(), "before anything is written"


def test_another_training_in_the_folder(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(
        ValueError, match=r"another training: plan.seed is 0 there and 1 here; .*another folder"
    ):
        train(tmp_path, replace(PLAN, seed=1), resume=True)
    with pytest.raises(ValueError, match=r"another training: run is .* there and other here"):
        train(tmp_path, resume=True, run="other")


def test_collapse_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    frozen = OptimizerConfig(rate=1e-9)
    processor = cases.processor()
    model = cases.host("global", processor)
    for parameter in model.parameters():
        parameter.data.zero_()
    model.image.bias.data.fill_(1.0)  # every image the same
    model.word.weight.data.fill_(1.0)
    plan = replace(PLAN, epochs=42, optimiser=frozen)  # 210 steps; it is due after 200
    train_network(
        plan,
        model,
        WeightedSum(terms={"h": (1.0, HardestTripletLoss())}),
        processor,
        folder=tmp_path,
    )
    said = [line["warning"] for line in metrics_of(tmp_path) if "warning" in line]
    assert len(said) == 1
    assert "all scores are equal" in said[0]
    assert "warning" in capfd.readouterr().err


FEW = replace(PLAN, epochs=1, least_steps=43, evaluate_every=8)  # five batches make an epoch


def dev_steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_metrics(folder / "metrics.jsonl") if "dev_rsum" in line]


def figures(*values: float) -> Any:
    left = iter(values)
    return lambda model: {"rsum": next(left)}


def test_the_epoch_that_is_kept_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, replace(FEW, evaluate_every=5), evaluate=figures(*range(6), 9.5, 2, 1))
    said = capsys.readouterr().err.splitlines()
    assert not any(line.startswith("epoch 7 of 9:") for line in said)
    assert said[-1] == "epoch 7 of 9 is kept: dev rsum 9.50"
    train(tmp_path / "last", replace(FEW, evaluate_every=5), evaluate=figures(*range(9)))
    assert capsys.readouterr().err.splitlines()[-1] == "epoch 9 of 9: dev rsum 8.00 (best)"


def test_few_captions_make_the_least_steps_and_are_measured_some_steps_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted, _ = train(tmp_path, FEW)
    assert (fitted.steps, fitted.epochs, fitted.planned) == (45, 9, 45)
    assert dev_steps(tmp_path) == [10, 20, 30, 40, 45]
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"epoch {epoch} of 9" for epoch in (2, 4, 8, 9)
    ]
    plain = replace(FEW, least_steps=5, evaluate_every=5)
    assert train(tmp_path / "enough", plain)[0].steps == 5
    assert FEW.of_epochs(2) == replace(PLAN, epochs=2)
    (tmp_path / "short").mkdir()
    train(tmp_path / "short", replace(FEW, steps=12))
    assert dev_steps(tmp_path / "short") == [10, 12]


@pytest.mark.parametrize(
    ("dev", "change", "steps", "best"),
    [
        ((1, 3, 2, 3), {}, 40, 20),
        ((1, 2, 3, 4, 5), {}, 45, 45),
        ((5, 1), {"patience": 1}, 20, 10),
        ((5, 1, 1, 1, 1), {"patience": 0}, 45, 10),
        ((5, 1, 1, 1, 1), {"keep_last": True}, 45, 45),
        ((5, 4, 3), {"evaluate_every": 0, "epochs": 9}, 15, 5),
    ],
)
def test_patience_ends_a_training_that_dev_does_not_reward(
    dev: Any, change: Any, steps: int, best: int, tmp_path: Path
) -> None:
    plan = replace(FEW, **({"patience": 2} | change))
    fitted, model = train(tmp_path, plan, evaluate=figures(*dev))
    assert fitted.finished
    assert fitted.best is not None
    assert (fitted.steps, fitted.best.step, fitted.planned) == (steps, best, 45)
    assert fitted.improving == (dev[-1] == max(dev) and steps == 45)
    # a training that was killed right after its last checkpoint is over, too
    again, resumed = train(tmp_path, plan, evaluate=figures(), resume=True)
    assert (again.steps, again.best) == (fitted.steps, fitted.best)
    assert same_weights(model, resumed)


@pytest.mark.parametrize(("keep_last", "kept"), [(True, "last epoch 9"), (False, "best epoch 2")])
def test_the_last_epoch_is_not_called_the_best(
    keep_last: bool, kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = replace(FEW, keep_last=keep_last)
    fitted, _ = train(tmp_path, plan, evaluate=figures(5, 1, 1, 1, 1))
    assert ("(best)" in capsys.readouterr().err) != keep_last
    dev = 1 if keep_last else 5
    assert best_epoch_note(fitted, "RSum") == f"{kept} of 9, dev RSum {dev}.0"


def test_a_small_dev_split_chooses_nothing() -> None:
    plan = replace(FEW, patience=2, least_dev=50)
    assert plan.on_dev(49) == replace(plan, keep_last=True, patience=0)
    assert plan.on_dev(50) == plan.on_dev(0) == plan
    asked = replace(PLAN, epochs=2, least_dev=50)
    assert plan.of_epochs(2).on_dev(3) == replace(asked, keep_last=True)
    assert plan.of_epochs(2).on_dev(50) == asked
    assert PLAN.of_epochs(2).on_dev(3) == replace(PLAN, epochs=2)  # as papers choose


def test_a_single_evaluation_is_not_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted, _ = train(tmp_path, PLAN.of_epochs(1), evaluate=figures(7))
    assert capsys.readouterr().err.splitlines()[-1] == "epoch 1 of 1: dev rsum 7.00"
    assert best_epoch_note(fitted, "RSum") == "last epoch 1 of 1, dev RSum 7.0"
    assert fitted.kept == "epoch 1, the last"
    assert fitted.convergence is not None
    assert fitted.convergence.why == (
        "a single evaluation on dev tells nothing, and 5 steps are too few to tell by the loss"
    )


def test_without_dev_patience_ends_nothing(tmp_path: Path) -> None:
    fitted, _ = train(tmp_path, replace(FEW, patience=1), evaluate=None)
    assert (fitted.steps, fitted.best) == (45, None)
    assert fitted.convergence is not None
    assert fitted.convergence.why.startswith("there is no dev split to tell by; the training loss ")


def test_a_warm_up_of_the_loss_is_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best of the first 30 steps is no measure of the loss that follows."""
    warm = SwitchAfter(first=SumTripletLoss(), second=HardestTripletLoss(), steps=30)
    objective = WeightedSum(terms={"t": (1.0, warm)})
    plan = replace(FEW, patience=1)
    fitted, _ = train(tmp_path, plan, evaluate=figures(9, 8, 7, 2, 3), objective=objective)
    assert fitted.best is not None
    assert (fitted.steps, fitted.best.step) == (45, 45)
    assert best_epoch_note(fitted, "RSum") == (
        "best epoch 9 of 9, dev RSum 3.0; epochs 8 to 9 competed: the loss warmed up until step 30"
    )
    said = capsys.readouterr().err.splitlines()
    assert (
        said[0] == "epoch 2 of 9: dev rsum 9.00, not kept: the loss still warms up, until step 30"
    )
    assert said[-1] == "epoch 9 of 9: dev rsum 3.00 (best)"


@pytest.mark.parametrize(
    ("dev", "settled", "state", "why"),
    [
        ((1, 2, 3, 4, 5), 0, "still improving", "the last evaluation on dev was the best"),
        ((1, 2, 3, 4, 5), 30, "still improving", "the last evaluation on dev was the best"),
        ((1, 2, 9, 4, 5), 0, "converged", "dev was no better after epoch 6"),
        ((1, 2, 9, 5, 4), 30, "converged", "dev was no better after epoch 8"),
        ((1, 2, 9, 4, 5), 30, "cannot tell", "best behind the warm-up of the loss, but one inside"),
        ((1, 2, 3, 4, 5), 40, "cannot tell", "a single evaluation on dev behind the warm-up"),
    ],
)
def test_the_end_says_whether_dev_still_rises(
    dev: Any, settled: int, state: str, why: str, tmp_path: Path
) -> None:
    """Steps of evaluations: 10, 20, 30, 40 and 45."""
    warm = SwitchAfter(first=SumTripletLoss(), second=SumTripletLoss(margin=0.1), steps=settled)
    objective = WeightedSum(terms={"t": (1.0, warm)})
    fitted, _ = train(tmp_path, FEW, evaluate=figures(*dev), objective=objective)
    assert fitted.convergence is not None
    assert fitted.convergence.state.startswith(state)
    assert why in fitted.convergence.why
    assert fitted.improving == (state == "still improving")


def test_a_flat_figure_of_few_steps_does_not_tell(tmp_path: Path) -> None:
    plan = replace(FEW, epochs=3, evaluate_every=1, least_steps=0)
    fitted, _ = train(tmp_path, plan, evaluate=figures(9, 3, 2))
    assert fitted.convergence is not None
    assert fitted.convergence.state == "cannot tell whether it converged"
    assert fitted.convergence.why == "dev was no better after epoch 1, of so few steps (15 in all)"


def test_few_photos_of_dev_leave_it_to_the_loss(tmp_path: Path) -> None:
    plan = replace(FEW, least_dev=50).on_dev(9)
    fitted, _ = train(tmp_path, plan, evaluate=figures(1, 2, 3, 4, 5))
    assert fitted.convergence is not None
    assert fitted.convergence.why.startswith(
        "dev has fewer than 50 images, too few to tell by; the"
    )
    stopped, _ = train(tmp_path / "stopped", replace(plan, minutes=1e-9), evaluate=figures())
    assert stopped.convergence is None
    assert not stopped.improving
