"""Mined negatives that are replaced once they are learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import processes
import train_cases as cases
from benchmarks.truths.replacing import FALL, MOST, Places, Replaced
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCEWithCandidatesLoss
from counterfoil.training.callbacks import Callback
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.trainer import train_network
from negatives_cases import random_lists

PLAN = TrainConfig(
    epochs=4, batch=7, optimiser=OptimizerConfig(rate=0.05), save_minutes=0, log_every=2
)


class Interrupted(Exception):
    pass


class Interrupts(Callback):
    """Stops a training at its ninth step."""

    def on_step_end(self, *given: object) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 9:
            raise Interrupted


def train(folder: Path, dropout: float = 0.3, *, callbacks=(), resume: bool = False):
    processor = cases.processor()
    model = cases.host("bag", processor, dropout=dropout)
    lists = random_lists(processor.dataset.relation, h=9, k=6)
    source = Replaced(lists, every=2, start=(0, 1))
    source.check(model, processor.dataset)
    loss = InfoNCEWithCandidatesLoss(
        texts=("hard text",), images=("hard image",), temperature=0.1, reduction="mean"
    )
    train_network(
        PLAN,
        model,
        WeightedSum(terms={"own": (1.0, loss)}),
        processor,
        folder=folder,
        sources=[source],
        callbacks=callbacks,
        resume=resume,
    )
    found = {**model.state_dict(), **source.state_dict()}
    return {name: value.numpy() for name, value in found.items()}


def same(one, other, atol: float) -> None:
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, atol=atol, err_msg=name)


def test_an_interrupted_training_ends_with_the_same_numbers(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole")
    assert whole["texts.entry"].max() > 1, "some are replaced"
    assert whole["images.entry"].max() > 1
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", callbacks=[Interrupts()])
    same(train(tmp_path / "cut", resume=True), whole, 0.0)


def test_two_processes_replace_as_one(tmp_path: Path) -> None:
    one = train(tmp_path / "one", 0.0)
    first, second = processes.run(train, 2, tmp_path / "two", 0.0)
    same(one, first, 1e-3)
    same(first, second, 0.0)


def test_what_is_learnt_is_replaced_by_the_next_of_its_list() -> None:
    """By a loop over lists, scores and steps."""
    rng = torch.Generator().manual_seed(0)
    lists, every = torch.randint(0, 20, (6, 4), generator=rng), 2
    places = Places(lists, torch.ones(20, dtype=torch.bool), 0)
    known = dict.fromkeys(range(6), (0, None, None))
    for step in range(100):
        queries = torch.randint(0, 6, (5,), generator=rng)
        scores = torch.rand(5, generator=rng) * 1.2 - 0.1
        assert places.rows(queries).tolist() == [
            int(lists[query, known[query][0]]) for query in queries.tolist()
        ]
        places.note(queries, scores, step, every)
        for query in set(queries.tolist()):
            entry, first, since = known[query]
            now = scores[queries == query].mean().item()
            if since is None:
                known[query] = entry, now, step
            elif step - since >= every and FALL * now < first and abs(now) < MOST and entry < 3:
                known[query] = entry + 1, None, None
    assert max(entry for entry, *_ in known.values()) == 3, "one came to its end"


def test_lists_that_end_before_the_first_entry_are_refused() -> None:
    with pytest.raises(ValueError, match="used from entry 2 on, counted from 0, and one has 2"):
        Places(torch.zeros(3, 2).long(), torch.ones(1, dtype=torch.bool), 2)
