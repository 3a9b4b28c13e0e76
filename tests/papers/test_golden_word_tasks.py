"""The losses of TAGS-DC (https://github.com/LibertFan/TAGS, 3c059a1) on the logits of its code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import golden_vectors
from counterfoil.core.config import lazy
from counterfoil.core.types import INFERENCE, Role, ScoreMatrix, Scores, WordTask
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.papers.tags.losses import WordLoss

SYSTEM = "tags"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


@pytest.fixture
def golden() -> golden_vectors.Golden:
    return golden_vectors.load(SYSTEM)


def judged(
    words: dict[str, WordTask] | None = None, positive: Tensor | None = None, **written: Tensor
) -> Scores:
    """One anchor pair."""
    anchor = torch.zeros(1) if positive is None else positive.view(1)
    grid = ScoreMatrix(anchor.view(1, 1), torch.ones(1, 1).bool(), anchor)
    return Scores({INFERENCE: grid}, {Role.WRITTEN: w for w in written.values()}, words or {})


def of_one(logits: Tensor, labels: Tensor) -> WordTask:
    labels = labels.flatten().long()
    return WordTask(logits.flatten(0, -2), labels, torch.zeros_like(labels))


def masked(golden: golden_vectors.Golden) -> WordTask:
    labels = golden.inputs["mlm/labels"]
    return of_one(golden.outputs["mlm/slot_logits"], labels[labels >= 0])


def doubt(golden: golden_vectors.Golden) -> WordTask:
    return of_one(golden.outputs["wod/logits"], golden.outputs["wod/labels"])


def correct(golden: golden_vectors.Golden) -> WordTask:
    labels = golden.inputs["mlm/labels"].repeat_interleave(golden.meta["config"]["L"], 0)
    return of_one(golden.outputs["woc/slot_logits"], labels[labels >= 0])


def weights(golden: golden_vectors.Golden) -> tuple[float, ...]:
    return tuple(golden.meta["config"]["disc_weights_mismatch_match"])


def test_masked_words(golden: golden_vectors.Golden) -> None:
    term, task = WordLoss(task="masked"), masked(golden)
    golden_vectors.same(golden, "mlm/loss", term.costs(task))
    loss = term(judged({"masked": task}))
    torch.testing.assert_close(loss, golden.outputs["mlm/loss"].mean())


def test_doubted_words(golden: golden_vectors.Golden) -> None:
    term, task = WordLoss(task="doubt", weights=weights(golden)), doubt(golden)
    golden_vectors.same(golden, "wod/token_loss", term.costs(task))
    golden_vectors.same(golden, "wod/loss", term(judged({"doubt": task})))


def test_corrected_words(golden: golden_vectors.Golden) -> None:
    term, task = WordLoss(task="correct"), correct(golden)
    golden_vectors.same(golden, "woc/slot_loss", term.costs(task))
    golden_vectors.same(golden, "woc/loss", term(judged({"correct": task})))


def test_a_mean_of_one_positive_is_its_sum(golden: golden_vectors.Golden) -> None:
    for name, task in (("doubt", doubt(golden)), ("correct", correct(golden))):
        whole, mean = (WordLoss(task=name, reduction=how) for how in ("sum", "mean"))
        assert whole(judged({name: task})) == mean(judged({name: task}))


@pytest.mark.parametrize("variant", ["released", "fixed"])
def test_written_negatives(golden: golden_vectors.Golden, variant: str) -> None:
    raw = golden.outputs[f"istm/{variant}/selected_scores"].sigmoid()
    term = MarginRankingLoss(role="written", margin=golden.meta["config"]["margin"])
    loss = term(judged(positive=raw[:1], written=raw[1:].view(1, -1)))
    golden_vectors.same(golden, f"istm/{variant}/loss", loss)


def test_weighted_sums(golden: golden_vectors.Golden) -> None:
    by = golden.meta["config"]["lambdas"]
    written = lazy(MarginRankingLoss, role="written", margin=golden.meta["config"]["margin"])
    doubts = lazy(WordLoss, task="doubt", weights=weights(golden))
    first = weighted_sum(
        masked=(by["mlm"], lazy(WordLoss, task="masked")), written=(by["istm"], written)
    )
    second = weighted_sum(
        doubt=(by["wod"], doubts), correct=(by["woc"], lazy(WordLoss, task="correct"))
    )
    raw = golden.outputs["istm/fixed/selected_scores"].sigmoid()
    step1 = judged({"masked": masked(golden)}, raw[:1], written=raw[1:].view(1, -1))
    step2 = judged({"doubt": doubt(golden), "correct": correct(golden)})
    for spec, scores, key in (
        (first, step1, "istm/fixed/weighted_mlm_plus_istm"),
        (second, step2, "wodwoc/weighted_loss"),
    ):
        loss = torch.stack(list(spec.build()(scores).values())).sum()
        golden_vectors.same(golden, key, loss)
