from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.core.config import config_from_dict, lazy
from counterfoil.core.types import INFERENCE, ScoreMatrix, Scores, WordTask
from counterfoil.losses.base import WeightedSum, weighted_sum
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, MarginRankingLoss
from counterfoil.papers.tags.losses import WordLoss

ANCHORS = 3
WEIGHTS = (1.0, 0.11, 0.4)


def asked(task: WordTask, name: str = "doubt") -> Scores:
    s = torch.zeros(ANCHORS, ANCHORS, dtype=torch.float64)
    grid = ScoreMatrix(s, torch.eye(ANCHORS).bool(), s.diagonal())
    return Scores({INFERENCE: grid}, words={name: task})


def some(seed: int, words: int = 9, *, by_anchor: bool = True) -> WordTask:
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(words, 3, generator=rng, dtype=torch.float64)
    labels = torch.randint(-1, 3, (words,), generator=rng)
    anchor = torch.randint(ANCHORS, (words,), generator=rng) if by_anchor else None
    return WordTask(logits.requires_grad_(), labels, anchor)


def slowly(task: WordTask, weights: tuple[float, ...]) -> float:
    """Sum over anchors of the mean cost of their words."""
    found: list[list[float]] = [[] for _ in range(ANCHORS)]
    for word, (logits, label) in enumerate(zip(task.logits.tolist(), task.labels.tolist())):
        if label < 0:
            continue
        chance = math.exp(logits[label]) / sum(math.exp(x) for x in logits)
        found[int(task.anchor[word]) if task.anchor is not None else 0].append(
            -weights[label] * math.log(chance)
        )
    if task.anchor is None:
        return ANCHORS * sum(found[0]) / max(1, len(found[0]))
    return sum(sum(costs) / len(costs) for costs in found if costs)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 999), st.integers(0, 12), st.booleans(), st.booleans())
def test_a_mean_over_the_words_of_each_anchor(
    seed: int, words: int, by_anchor: bool, weighted: bool
) -> None:
    task, weights = some(seed, words, by_anchor=by_anchor), WEIGHTS if weighted else ()
    term = WordLoss(task="doubt", weights=weights)
    wanted = slowly(task, weights or (1.0, 1.0, 1.0))
    assert term(asked(task)).item() == pytest.approx(wanted)
    mean = WordLoss(task="doubt", weights=weights, reduction="mean")
    assert mean(asked(task)).item() == pytest.approx(wanted / ANCHORS)


def test_words_that_do_not_count_change_nothing() -> None:
    task = some(3, 8)
    junk = torch.full((4, 3), 70.0, dtype=torch.float64)
    more = WordTask(
        torch.cat([task.logits, junk]),
        torch.cat([task.labels, torch.full((4,), -1)]),
        torch.cat([task.anchor, torch.zeros(4).long()]),
    )
    term = WordLoss(task="doubt", weights=WEIGHTS)
    torch.testing.assert_close(term(asked(more)), term(asked(task)), rtol=0, atol=0)


@pytest.mark.parametrize("by_anchor", [True, False])
def test_no_words_cost_nothing_and_have_a_gradient(by_anchor: bool) -> None:
    for task in (
        some(0, 0, by_anchor=by_anchor),
        WordTask(some(1, 4).logits, torch.full((4,), -1), torch.zeros(4).long()),
    ):
        loss = WordLoss(task="doubt")(asked(task))
        loss.backward()
        assert loss.item() == 0
        assert task.logits.grad is not None
        assert not task.logits.grad.any()


@pytest.mark.parametrize("by_anchor", [True, False])
def test_gradients(by_anchor: bool) -> None:
    task, term = some(5, 6, by_anchor=by_anchor), WordLoss(task="doubt", weights=WEIGHTS)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = term(asked(WordTask(logits, task.labels, task.anchor)))
        return found

    assert torch.autograd.gradcheck(loss, task.logits)


def test_a_word_that_is_far_wrong_still_has_a_gradient() -> None:
    logits = torch.tensor([[60.0, 0.0]], requires_grad=True)
    loss = WordLoss(task="doubt")(
        asked(WordTask(logits, torch.ones(1).long(), torch.zeros(1).long()))
    )
    loss.backward()
    assert loss.item() == pytest.approx(60)
    assert logits.grad is not None
    assert logits.grad.tolist() == [[1, -1]]


def test_the_objective_of_tags_dc_is_written_down() -> None:
    spec = weighted_sum(
        texts=lazy(MarginRankingLoss, role="hard text", reduction="mean"),
        images=lazy(MarginRankingLoss, role="hard image", reduction="mean"),
        written=(1e-3, lazy(MarginRankingLoss, role="written", reduction="mean")),
        masked=(0.1, lazy(WordLoss, task="masked", reduction="mean")),
        doubt=(1e-3, lazy(WordLoss, task="doubt", weights=(1.0, 0.11), reduction="mean")),
        correct=(1e-3, lazy(WordLoss, task="correct", reduction="mean")),
    )
    again = config_from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.build().needs.words == {"masked", "doubt", "correct"}


def test_a_task_may_begin_later() -> None:
    term = SwitchAfter(first=HardestTripletLoss(), second=WordLoss(task="doubt"), steps=10)
    assert WeightedSum(terms={"later": (1.0, term)}).needs.words == {"doubt"}


def test_half_precision_is_judged_in_full_with_its_anchors() -> None:
    task = some(7)
    half = WordTask(task.logits.bfloat16(), task.labels, task.anchor)
    objective = WeightedSum(terms={"doubt": (1.0, WordLoss(task="doubt"))})
    loss = objective(asked(half))["doubt"]
    assert loss.dtype == torch.float32
    exact = WordLoss(task="doubt")(asked(WordTask(half.logits.float(), task.labels, task.anchor)))
    torch.testing.assert_close(loss, exact)


def test_weights_of_another_number_of_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="2 weights were given for the 3 classes of the word task"):
        WordLoss(task="doubt", weights=(1.0, 0.11))(asked(some(0)))
