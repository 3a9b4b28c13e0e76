from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file

import train_cases as cases
from counterfoil.core.types import Embeddings, Role
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.queue import MomentumQueueLoss, UTOLoss
from counterfoil.negatives.momentum import KeyQueue, MomentumQueue
from counterfoil.training.callbacks import Callback
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.step import TrainingStep
from counterfoil.training.trainer import train_network

HOSTS = ["global", "bag", "scan"]
OBJECTIVE = {"batch": (20.0, UTOLoss()), "queue": (1.0, MomentumQueueLoss())}


def step_of(kind: str, queue: MomentumQueue) -> TrainingStep:
    model = cases.host(kind, cases.processor(), dropout=0.3)
    loss = WeightedSum(terms=OBJECTIVE)
    queue.begin(model, cases.processor(), loss, batches=1)
    return TrainingStep(model, loss, sources=[queue])


@pytest.mark.parametrize("kind", HOSTS)
def test_scores_are_those_of_a_slow_copy_and_earlier_batches(kind):
    queue = MomentumQueue(size=7, momentum=0.9)
    step = step_of(kind, queue)
    slow = copy.deepcopy(step.model).eval()
    keys: list[tuple[object, object, int]] = []  # image, text and row, oldest first
    found = cases.proposals(queue)
    for number, rows in enumerate(([0, 5, 9], [1, 13, 17], [2, 6, 20])):
        with torch.no_grad():
            for parameter in step.model.parameters():
                parameter.add_(0.05)
            for old, new in zip(slow.parameters(), step.model.parameters(), strict=True):
                old.copy_(0.9 * old + 0.1 * new)
        batch = cases.batch_of(cases.processor(), rows, step=number)
        step.model.eval()  # without dropout, so that encodings can be computed again
        step(batch)
        scores = found[-1].scores
        with torch.no_grad():
            images, texts = (
                step.model.encode_images(batch.images),
                step.model.encode_texts(batch.texts),
            )
            slow_images, slow_texts = (
                slow.encode_images(batch.images),
                slow.encode_texts(batch.texts),
            )
            for b, (i, t) in enumerate(zip(batch.anchors.image, batch.anchors.text, strict=True)):
                image, text = images.rows(i[None]), texts.rows(t[None])
                assert float(scores[Role.KEY_TEXT][b, 0]) == pytest.approx(
                    float(step.model.score_pairs(image, slow_texts.rows(t[None]))), abs=1e-5
                )
                row = int(batch.image_rows[i])
                expected = sorted(
                    float(step.model.score_pairs(image, key))
                    for _, key, other in keys[-7:]
                    if other != row
                )
                real = scores[Role.QUEUE_TEXT][b]
                assert sorted(real[real > -torch.inf].tolist()) == pytest.approx(expected, abs=1e-5)
                expected = sorted(
                    float(step.model.score_pairs(key, text))
                    for key, _, other in keys[-7:]
                    if other != row
                )
                real = scores[Role.QUEUE_IMAGE][b]
                assert sorted(real[real > -torch.inf].tolist()) == pytest.approx(expected, abs=1e-5)
            for i, t in zip(batch.anchors.image, batch.anchors.text, strict=True):
                parts = slow_images.rows(i[None]), slow_texts.rows(t[None])
                keys.append((*parts, int(batch.image_rows[i])))
    assert len(keys) > 7  # the first ones were overwritten


def test_only_the_model_learns():
    queue = MomentumQueue(size=5)
    step = step_of("bag", queue)
    for number, rows in enumerate(([0, 5], [9, 13])):
        step.zero_grad()
        losses = step(cases.batch_of(cases.processor(), rows, step=number))
        torch.stack(list(losses.values())).sum().backward()
    learnt = {name for name, p in step.named_parameters() if p.grad is not None}
    assert learnt
    assert all(name.startswith("model.") for name in learnt)
    assert not any(p.requires_grad for p in queue.parameters())


@pytest.mark.parametrize("kind", HOSTS)
def test_the_backward_pass_follows_the_update_of_the_queue(kind):
    queue = MomentumQueue(size=64)
    step = step_of(kind, queue)
    for _ in range(2):  # of equal items, so that the queue is not widened but overwritten
        losses = step(cases.batch_of(cases.processor(), [0, 5], step=0))
        torch.stack(list(losses.values())).sum().backward()


def test_longer_items_widen_the_queue():
    queue = KeyQueue(3)
    for value, length, rows in ((1, 1, [7, 8]), (2, 3, [9, 5])):
        bag = Embeddings(value * torch.ones(2, length, 4), torch.ones(2, length, dtype=torch.bool))
        queue.append(bag, torch.tensor(rows))
    bag = queue.embeddings()
    assert queue.rows.tolist() == [5, 8, 9]
    assert bag.mask.tolist() == [[True] * 3, [True, False, False], [True] * 3]
    assert bag.tokens[:, :, 0].tolist() == [[2, 2, 2], [1, 0, 0], [2, 2, 2]]


class Interrupted(Exception):
    pass


class Interrupts(Callback):
    """Stops a training at its fifth step."""

    def on_step_end(self, *given: object) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 5:
            raise Interrupted


def test_an_interrupted_training_ends_with_the_same_numbers(tmp_path):
    processor = cases.processor()
    plan = TrainConfig(
        epochs=2, batch=6, optimiser=OptimizerConfig(rate=0.02), save_minutes=0, log_every=2
    )

    def train(folder, *, callbacks=(), resume=False):
        model = cases.host("bag", processor, dropout=0.3)
        queue = MomentumQueue(size=8, momentum=0.9)
        train_network(
            plan,
            model,
            WeightedSum(terms=OBJECTIVE),
            processor,
            folder=folder,
            sources=[queue],
            callbacks=callbacks,
            resume=resume,
        )
        return {**model.state_dict(), **queue.state_dict()}

    whole = train(tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", callbacks=[Interrupts()])
    saved = load_file(tmp_path / "cut" / "checkpoints" / "last.safetensors")
    assert any("texts.tokens" in name for name in saved)
    torch.testing.assert_close(train(tmp_path / "cut", resume=True), whole, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "message"), [({"size": 0}, "at least 1"), ({"momentum": 1.0}, "below 1")]
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MomentumQueue(**options)
