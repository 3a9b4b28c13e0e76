from __future__ import annotations

import json

import pytest
import torch

from counterfoil.objectives.curriculum import Then
from counterfoil.objectives.debiased import Debiased
from counterfoil.objectives.infonce import InfoNCE
from counterfoil.objectives.online_quintuplet import OnlineQuintuplet
from counterfoil.objectives.posterior import PosteriorTriplet
from counterfoil.objectives.quintuplet import AdaptiveQuintuplet, OfflineQuintuplet, OfflineTriplet
from counterfoil.objectives.selective import SelectivelyHardest
from counterfoil.objectives.sigmoid import Sigmoid
from counterfoil.objectives.term import Objective, Term, total
from counterfoil.objectives.triplet import HardestTriplet, RankedBelow, SemiHard, SumTriplet
from counterfoil.records import Role, Scores
from counterfoil.spec import Spec, from_plain, of, part
from objectives_cases import ROLES, drawn, judged, with_roles

OWNER = [0, 1, 1, 3, 2]


def every_term(reduction: str = "sum") -> list[Term]:
    made = (SumTriplet, HardestTriplet, SemiHard, InfoNCE, Sigmoid, OfflineTriplet)
    terms: list[Term] = [make(reduction=reduction) for make in made]
    terms += [make(reduction=reduction) for make in (AdaptiveQuintuplet, OnlineQuintuplet)]
    terms += [
        OfflineTriplet(online=None, reduction=reduction),
        OfflineQuintuplet(squared=True, reduction=reduction),
        AdaptiveQuintuplet(reference="positive", reduction=reduction),
    ]
    terms += [
        Debiased(tau_plus=0.05, beta=0.5, reduction=reduction),
        SelectivelyHardest(epsilon=0.2, reduction=reduction),
        PosteriorTriplet(margin=0.5, reduction=reduction).eval(),
    ]
    return [*terms, RankedBelow(role="hard text", margin=0.4, reduction=reduction)]


TERMS = range(len(every_term()))


@pytest.mark.parametrize("place", TERMS)
def test_mean_is_the_sum_over_anchor_pairs_divided_by_their_number(place: int) -> None:
    scores = with_roles(drawn(0, OWNER, 4, 2), OWNER)
    summed, mean = every_term("sum")[place], every_term("mean")[place]
    assert summed(scores).item() > 0
    torch.testing.assert_close(mean(scores) * len(OWNER), summed(scores))


def test_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="'average' is not known; use 'sum' or 'mean'"):
        SumTriplet(reduction="average")  # type: ignore[arg-type]


def test_an_objective_is_the_weighted_sum_of_its_terms_by_name() -> None:
    scores = with_roles(drawn(1, OWNER, 4), OWNER)
    objective = Objective(terms={"a": (2.0, SumTriplet()), "b": (0.5, AdaptiveQuintuplet())})
    losses = objective(scores)
    assert list(losses) == ["a", "b"]
    torch.testing.assert_close(losses["a"], 2 * SumTriplet()(scores))
    torch.testing.assert_close(losses["b"], 0.5 * AdaptiveQuintuplet()(scores))


def test_needs_are_the_union_of_the_terms_needs() -> None:
    warm = Then(first=SumTriplet(), second=RankedBelow(role="written"), steps=1)
    objective = Objective(terms={"a": (1.0, warm), "b": (1.0, OfflineTriplet())})
    assert objective.needs == {Role.WRITTEN, Role.HARD_TEXT, Role.HARD_IMAGE}
    assert objective.needs_grids == {"inference"}
    assert not objective.needs_guide
    assert not objective.needs_words


def test_a_written_objective_survives_json_and_builds_the_same() -> None:
    spec = total(
        warm=part(Then, first=part(SumTriplet), second=part(HardestTriplet, margin=0.3), steps=10),
        written=(0.25, part(RankedBelow, role="hard text")),
        nce=(2.0, part(InfoNCE, temperature=0.1, learnable=True)),
    )
    again: Spec[Objective] = from_plain(json.loads(json.dumps(spec.plain())))
    assert again == spec
    scores = with_roles(drawn(2, OWNER, 4), OWNER)
    left, right = spec.build()(scores), again.build()(scores)
    assert left.keys() == right.keys() == {"warm", "written", "nce"}
    for name in left:
        torch.testing.assert_close(left[name], right[name])
    assert spec == of(Objective, terms=spec.arguments["terms"])


def test_learnt_numbers_are_parameters_of_the_objective() -> None:
    spec = total(nce=part(InfoNCE, learnable=True), fixed=part(InfoNCE), sig=part(Sigmoid))
    trained = {n for n, p in spec.build().named_parameters() if p.requires_grad}
    assert trained == {"terms.nce.log_scale", "terms.sig.log_scale", "terms.sig.bias"}


def test_half_precision_scores_are_judged_in_float32() -> None:
    exact = with_roles(drawn(3, OWNER, 4), OWNER)
    half = judged(
        exact.grids["inference"].scores.bfloat16(),
        OWNER,
        {role: pair.bfloat16() for role, pair in exact.pairs.items()},
    )
    objective = Objective(terms={"a": (1.0, AdaptiveQuintuplet()), "b": (1.0, InfoNCE())})
    losses = objective(half)
    assert {loss.dtype for loss in losses.values()} == {torch.float32}
    for name, loss in objective(exact).items():
        torch.testing.assert_close(losses[name], loss.float(), atol=0.3, rtol=0.05)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({}, "at least one term"),
        ({"a.b": (1.0, SumTriplet())}, "'a.b' cannot name a term"),
        ({"a": (float("nan"), SumTriplet())}, "weight of term 'a' is nan"),
    ],
)
def test_an_impossible_objective_is_refused(
    terms: dict[str, tuple[float, Term]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Objective(terms=terms)


@pytest.mark.parametrize("place", TERMS)
def test_gradients_agree_with_finite_differences(place: int) -> None:
    term = every_term()[place].double()

    def loss(*tensors: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = term(with_roles(tensors, OWNER))
        return out

    assert torch.autograd.gradcheck(loss, drawn(4, OWNER, 4, 2))


@pytest.mark.parametrize("place", TERMS[:-1])
@pytest.mark.parametrize("owner", [[0], [0, 0, 0], [1, 0, 0, 0, 0, 0]])
def test_rows_without_a_negative_are_free_and_harmless(place: int, owner: list[int]) -> None:
    """One image, or one image with nearly all texts: no NaN, and zero where nothing is wrong."""
    tensors = drawn(5, owner, max(owner) + 1)
    quiet = tuple((t.detach() - (10.0 if i else 0.0)).requires_grad_() for i, t in
                  enumerate(tensors))  # fmt: skip
    term = every_term()[place].double()
    loss = term(with_roles(quiet, owner))
    loss.backward()
    grad = quiet[0].grad
    assert grad is not None
    assert grad.isfinite().all()
    assert loss.isfinite()
    if max(owner) == 0 and not isinstance(term, Sigmoid):
        assert loss.item() == 0
        assert (grad == 0).all()
        mined = [t.grad for t in quiet[1:] if t.grad is not None]
        assert all((g == 0).all() for g in mined)


@pytest.mark.parametrize("place", TERMS)
def test_a_nan_score_is_never_hidden(place: int) -> None:
    tensors = drawn(6, OWNER, 4)
    with torch.no_grad():
        for tensor in tensors:
            tensor[0, 0] = torch.nan
    assert every_term()[place](with_roles(tensors, OWNER)).isnan()


def test_roles_are_all_covered_by_the_cases() -> None:
    assert AdaptiveQuintuplet().needs == set(ROLES)
    assert isinstance(judged(torch.zeros(1, 1), [0]), Scores)
