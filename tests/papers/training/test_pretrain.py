"""Pre-training: its losses against loops, its resumption, and what it refuses."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import pretrain_cases as cases
import processes
import train_cases
from counterfoil.data.batching import BatchSampler
from counterfoil.papers.pretraining.losses import optimal_transport
from counterfoil.papers.pretraining.pretrain import (
    TASKS,
    PretrainBatch,
    PretrainStep,
    PretrainStream,
    PretrainTasks,
    Task,
    dev_accuracy,
    mask_word,
    pretrain,
    vocabulary_of,
)
from counterfoil.training.config import LinearLR, OptimizerConfig, TrainConfig
from counterfoil.training.trainer import TrainResult

LENS = cases.processor()
RATES = OptimizerConfig(
    rule="adamw", rate=5e-3, betas=(0.9, 0.98), epsilon=1e-6, decay=0.01, clip=5.0
)
PLAN = TrainConfig(
    epochs=2,
    batch=6,
    optimiser=RATES,
    schedule=LinearLR(warmup=2),
    log_every=2,
    select="accuracy",
)


def stream(tasks: PretrainTasks) -> PretrainStream:
    return PretrainStream(
        processor=LENS,
        sampler=BatchSampler(LENS.dataset.relation, batch=8, seed=0),
        epochs=1,
        seed=3,
        tasks=tasks,
        mask=mask_word(cases.model(LENS)),
        words=vocabulary_of(LENS),
        classes=cases.Detector().likely,
    )


def batch(task: Task) -> PretrainBatch:
    return next(stream(PretrainTasks().only(task)).batches())


def run(folder: Path, plan: TrainConfig = PLAN, **more: Any) -> tuple[TrainResult, dict[str, Any]]:
    model = cases.model(LENS, dropout=more.pop("dropout", 0.0))
    fitted = pretrain(
        plan,
        model,
        more.pop("tasks", PretrainTasks()),
        LENS,
        folder=folder,
        classes=more.pop("classes", cases.Detector().likely),
        dev=LENS,
        **more,
    )
    return fitted, model.state_dict()


@pytest.mark.parametrize("task", TASKS)
def test_losses_are_those_of_pair_after_pair(task: Task) -> None:
    """Each pair alone, unpadded: the loss is the mean over what is hidden in all of them."""
    model, whole = cases.model(LENS).double().eval(), batch(task)
    whole = replace(whole, images=replace(whole.images, values=whole.images.values.double()))
    if whole.classes is not None:
        whole = replace(whole, classes=whole.classes.double())
    rows: list[torch.Tensor] = []
    moved: list[torch.Tensor] = []
    for p in range(len(whole.texts)):
        text, image = (items.rows(slice(p, p + 1)) for items in (whole.texts, whole.images))
        veiled = whole.hidden_regions[p : p + 1] if task in ("mrfr", "mrc", "mrckl") else None
        joint = model.joint(model.embed_images(image, veiled), model.encode_texts(text))
        if task == "mlm":
            here = whole.slots.pair == p
            states = joint.texts.tokens[0, whole.slots.place[here]]
            rows += cross_entropy(model.filled(states), whole.labels[here], reduction="none")
        elif task == "itm":
            match = int(whole.matching[p])
            rows += [-model.matched(joint.pooled)[0].log_softmax(0)[match]]
            cost = optimal_transport(
                joint.texts.tokens, joint.images.tokens, text.mask, image.mask
            ).squeeze()
            moved.append(cost if match else -cost)
        else:
            for r in whole.hidden_regions[p].nonzero().flatten().tolist():
                state = joint.images.tokens[0, r : r + 1]
                if task == "mrfr":
                    rows += (model.regressed(state)[0] - image.values[0, r]).square()
                    continue
                assert whole.classes is not None
                says, truth = model.classified(state)[0].log_softmax(0), whole.classes[p, r]
                if task == "mrc":
                    rows.append(-says[1 + truth[1:].argmax()])
                else:
                    rows += truth * (truth.log() - says)
    found = PretrainStep(model, PretrainTasks())(whole)
    torch.testing.assert_close(found[task].double(), torch.stack(rows).mean(), rtol=1e-5, atol=1e-6)
    if task == "itm":
        expected = 0.1 * torch.stack(moved).mean()
        torch.testing.assert_close(found["wra"].double(), expected, rtol=1e-5, atol=1e-6)
    assert set(found) == {task} | ({"wra"} if task == "itm" else set())


def test_no_transport_where_it_weighs_nothing() -> None:
    assert set(PretrainStep(cases.model(LENS), PretrainTasks(transport=0.0))(batch("itm"))) == {
        "itm"
    }


def test_it_learns(tmp_path: Path) -> None:
    """Hidden words of captions that name what is in the picture; pairs that match."""
    tasks = PretrainTasks(mlm=1, itm=1, mrfr=0, mrckl=0)
    before = dev_accuracy(stream(tasks), LENS)(cases.model(LENS).eval())
    plan = replace(PLAN, epochs=40, batch=12, optimiser=replace(RATES, rate=1e-2))
    fitted, _ = run(tmp_path, plan, tasks=tasks)
    assert fitted.best is not None
    assert fitted.best.dev["accuracy"] > before["accuracy"] + 20


def test_lines_tell_the_loss_of_every_task(tmp_path: Path) -> None:
    fitted, _ = run(tmp_path, replace(PLAN, epochs=6, log_every=8))
    told = train_cases.metrics_of(tmp_path)
    assert set().union(*told) >= {"loss_mlm", "loss_itm", "loss_wra", "loss_mrfr", "loss_mrckl"}
    dev = [line for line in told if "dev_accuracy" in line]
    assert len(dev) == 6
    for line in dev:
        mean = (line["dev_mlm"] + line["dev_itm"]) / 2
        assert line["dev_accuracy"] == pytest.approx(mean)
    assert fitted.finished


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    one, other = (run(tmp_path / name, dropout=0.3)[1] for name in ("one", "other"))
    assert train_cases.metrics_of(tmp_path / "one") == train_cases.metrics_of(tmp_path / "other")
    assert all(torch.equal(one[name], other[name]) for name in one)
    _, third = run(tmp_path / "third", replace(PLAN, seed=1), dropout=0.3)
    assert not torch.equal(one["pooler.weight"], third["pooler.weight"])


@pytest.mark.parametrize("change", [{}, {"accumulate": 3}, {"average": 0.8}], ids=str)
def test_stopped_at_every_step_it_goes_on_to_the_same_numbers(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    plan = replace(PLAN, **change)
    _, whole = run(tmp_path / "whole", plan, dropout=0.3)
    why, cut = "minutes", {}
    while why == "minutes":
        fitted, cut = run(tmp_path / "cut", replace(plan, minutes=1e-9), dropout=0.3, resume=True)
        why = fitted.stop_reason
    assert train_cases.metrics_of(tmp_path / "whole") == train_cases.metrics_of(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def session(folder: Path) -> None:
    run(folder, replace(PLAN, save_minutes=0), dropout=0.3, resume=True)


def killed(folder: Path) -> bool:
    """Go on until there is another checkpoint; whether it was killed before it came to its end."""
    job = multiprocessing.get_context("fork").Process(target=session, args=(folder,))
    processes.wait_for_another(folder / "checkpoints" / "last.safetensors", job)
    job.kill()
    job.join()
    return job.exitcode == -signal.SIGKILL


def test_killed_it_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    plan, kills = replace(PLAN, save_minutes=0), 0
    _, whole = run(tmp_path / "whole", plan, dropout=0.3)
    for attempt in range(10):  # on a busy machine some get away
        folder = tmp_path / f"cut-{attempt}"
        kills = sum(killed(folder) for _ in range(3))
        if kills:
            break
    assert kills
    _, cut = run(folder, plan, dropout=0.3, resume=True)
    assert train_cases.metrics_of(tmp_path / "whole") == train_cases.metrics_of(folder)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_without_classes_their_task_is_never_drawn(tmp_path: Path) -> None:
    run(tmp_path, replace(PLAN, epochs=6), classes=None)
    assert not any("loss_mrckl" in line for line in train_cases.metrics_of(tmp_path))


def test_other_tasks_are_another_training(tmp_path: Path) -> None:
    run(tmp_path, replace(PLAN, minutes=1e-9))
    with pytest.raises(ValueError, match="belongs to another training"):
        run(tmp_path, tasks=PretrainTasks(mlm=5), resume=True)


def test_half_precision_is_judged_in_full() -> None:
    model = cases.model(LENS)
    full = PretrainStep(model, PretrainTasks())(batch("itm"))
    half = PretrainStep(model, PretrainTasks(), precision="bf16")(batch("itm"))
    for name, loss in half.items():
        assert loss.dtype == torch.float
        torch.testing.assert_close(loss, full[name], rtol=0.1, atol=0.02)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Bag cannot be pre-trained.*use UNITER"):
        pretrain(PLAN, train_cases.host("bag", LENS), PretrainTasks(), LENS, folder=tmp_path)
    with pytest.raises(ValueError, match="grad_cache=4 is for losses that compare"):
        run(tmp_path, replace(PLAN, grad_cache=4))
    with pytest.raises(ValueError, match="gradient_checkpointing is for models of transformers"):
        run(tmp_path, replace(PLAN, gradient_checkpointing=True))
    with pytest.raises(ValueError, match="'rsum' is not a dev figure"):
        run(tmp_path, replace(PLAN, select="rsum"))
    assert not list(tmp_path.glob("*/best*"))
