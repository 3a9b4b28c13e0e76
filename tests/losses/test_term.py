from __future__ import annotations

import json

import torch

from counterfoil.core.config import Config, config, config_from_dict, lazy
from counterfoil.core.types import Role
from counterfoil.losses.aoq import (
    AdaptiveQuintuplet,
    OfflineTriplet,
)
from counterfoil.losses.base import WeightedSum, weighted_sum
from counterfoil.losses.contrastive import InfoNCELoss, SigmoidLoss
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.losses.triplet import (
    HardestTripletLoss,
    MarginRankingLoss,
    SumTripletLoss,
)
from objectives_cases import drawn, judged, with_roles

OWNER = [0, 1, 1, 3, 2]


def test_an_objective_is_the_weighted_sum_of_its_terms_by_name() -> None:
    scores = with_roles(drawn(1, OWNER, 4), OWNER)
    objective = WeightedSum(terms={"a": (2.0, SumTripletLoss()), "b": (0.5, AdaptiveQuintuplet())})
    losses = objective(scores)
    assert list(losses) == ["a", "b"]
    torch.testing.assert_close(losses["a"], 2 * SumTripletLoss()(scores))
    torch.testing.assert_close(losses["b"], 0.5 * AdaptiveQuintuplet()(scores))


def test_needs_are_the_union_of_the_terms_needs() -> None:
    warm = SwitchAfter(first=SumTripletLoss(), second=MarginRankingLoss(role="written"), steps=1)
    objective = WeightedSum(terms={"a": (1.0, warm), "b": (1.0, OfflineTriplet())})
    assert objective.needs.roles == {Role.WRITTEN, Role.HARD_TEXT, Role.HARD_IMAGE}
    assert objective.views == {"inference"}
    assert not objective.needs.targets
    assert not objective.needs.words


def test_a_written_objective_survives_json_and_builds_the_same() -> None:
    spec = weighted_sum(
        warm=lazy(
            SwitchAfter,
            first=lazy(SumTripletLoss),
            second=lazy(HardestTripletLoss, margin=0.3),
            steps=10,
        ),
        written=(0.25, lazy(MarginRankingLoss, role="hard text")),
        nce=(2.0, lazy(InfoNCELoss, temperature=0.1, learnable=True)),
    )
    again: Config[WeightedSum] = config_from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    scores = with_roles(drawn(2, OWNER, 4), OWNER)
    left, right = spec.build()(scores), again.build()(scores)
    assert left.keys() == right.keys() == {"warm", "written", "nce"}
    for name in left:
        torch.testing.assert_close(left[name], right[name])
    assert spec == config(WeightedSum, terms=spec.arguments["terms"])


def test_learnt_numbers_are_parameters_of_the_objective() -> None:
    spec = weighted_sum(
        nce=lazy(InfoNCELoss, learnable=True), fixed=lazy(InfoNCELoss), sig=lazy(SigmoidLoss)
    )
    trained = {n for n, p in spec.build().named_parameters() if p.requires_grad}
    assert trained == {"terms.nce.log_scale", "terms.sig.log_scale", "terms.sig.bias"}


def test_half_precision_scores_are_judged_in_float32() -> None:
    exact = with_roles(drawn(3, OWNER, 4), OWNER)
    half = judged(
        exact.matrices["inference"].scores.bfloat16(),
        OWNER,
        {role: pair.bfloat16() for role, pair in exact.pairs.items()},
    )
    objective = WeightedSum(terms={"a": (1.0, AdaptiveQuintuplet()), "b": (1.0, InfoNCELoss())})
    losses = objective(half)
    assert {loss.dtype for loss in losses.values()} == {torch.float32}
    for name, loss in objective(exact).items():
        torch.testing.assert_close(losses[name], loss.float(), atol=0.3, rtol=0.05)
