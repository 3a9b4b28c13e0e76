"""Functions and modules of scores as losses: what they get, what they may return, who resumes."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

import recipes_cases
from counterfoil import losses
from counterfoil.core import registry
from counterfoil.core.config import lazy
from counterfoil.losses.base import WeightedSum, as_loss, weighted_sum
from counterfoil.losses.own import OwnLoss
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.stages.train import Train
from counterfoil.recipes.clip import FineTunedModel, fine_tune_recipe

SCORES = torch.tensor([[0.9, -math.inf, 0.2], [0.1, 0.4, 0.6]])
POSITIVES = torch.tensor([[True, False, False], [False, True, True]])


def gap(scores, positives, weight=1.0):
    return weight * (scores[~positives].mean() - scores[positives].mean())


def masked(scores, positives, mask):
    return scores[mask & ~positives].mean()


class Scaled(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.scale, self.power = nn.Parameter(torch.tensor(scale)), 1

    def forward(self, scores, positives):
        return (self.scale * scores)[~positives].mean()


def seen(scores, positives, mask):
    seen.last = scores.detach(), positives, mask
    return scores.mean()


def test_scores_are_finite_and_pairs_that_do_not_count_hold_the_lowest():
    OwnLoss(seen)(SCORES.half(), POSITIVES)
    scores, positives, mask = seen.last
    assert scores.dtype == torch.float32
    assert torch.equal(positives, POSITIVES)
    assert mask.tolist() == [[True, False, True], [True, True, True]]
    assert scores[0, 1] == scores[1, 0]  # the lowest of those that count
    assert torch.equal(scores[mask], SCORES.half().float()[mask])


def test_values_and_gradients_are_those_of_the_function():
    scores = SCORES.clone().requires_grad_()
    value = OwnLoss(masked)(scores, POSITIVES)
    assert value.item() == pytest.approx((0.2 + 0.1) / 2)
    (slope,) = torch.autograd.grad(value, scores)
    assert slope.tolist() == [[0.0, 0.0, 0.5], [0.5, 0.0, 0.0]]


def test_a_sum_takes_functions_modules_and_ours():
    module, scores = Scaled(), torch.rand(3, 3, requires_grad=True)
    terms = {"gap": (0.5, gap), "scaled": (1.0, module), "ours": (0.1, losses.SumTripletLoss())}
    total = WeightedSum(terms=terms)
    values = total(scores)
    own = torch.eye(3, dtype=torch.bool)
    assert values["gap"].item() == pytest.approx(0.5 * gap(scores, own).item())
    assert values["scaled"].item() == pytest.approx(module(scores, own).item())
    assert [*total.parameters()] == [module.scale]
    torch.stack([*values.values()]).sum().backward()
    assert module.scale.grad is not None


def test_schedules_take_functions():
    loss = losses.StartAt(term=gap, steps=3)
    assert loss(torch.eye(2), step=2) == 0
    assert loss(torch.eye(2), step=3) == gap(torch.eye(2), torch.eye(2).bool())


def test_random_numbers_depend_on_the_step_alone():
    def noisy(scores, positives):
        return (scores * torch.rand_like(scores)).sum()

    torch.manual_seed(1)
    first, after = OwnLoss(noisy)(SCORES[:, 2:], POSITIVES[:, 2:], seed=4), torch.rand(1)
    torch.manual_seed(1)
    assert after == torch.rand(1)  # a model's dropout draws what it drew without
    torch.manual_seed(2)
    assert OwnLoss(noisy)(SCORES[:, 2:], POSITIVES[:, 2:], seed=4) == first


def test_a_batch_with_nothing_to_learn_has_a_gradient_of_zero():
    scores = torch.rand(2, 2, requires_grad=True)
    OwnLoss(lambda s, p: torch.zeros(()))(scores).backward()
    assert scores.grad.eq(0).all()


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda s, p: s, r"returned a tensor of shape \(2, 2\); it has to return one number"),
        (lambda s, p: s.sum().item(), "returned a float; it has to return one number"),
        (lambda s, p: s.sum().detach(), "returned a number without a gradient"),
    ],
)
def test_other_results_are_refused(function, message):
    with pytest.raises(ValueError, match=message):
        OwnLoss(function)(torch.rand(2, 2, requires_grad=True))


def around():
    weight = torch.rand(1)

    def inner(scores, positives):
        return (weight * scores).mean()

    return inner


class Called:
    def __call__(self, scores, positives):
        return scores.mean()

    def method(self, scores, positives):
        return scores.mean()


class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.ones(())), torch.zeros(2)

    def forward(self, scores, positives):
        return self.scale * scores.mean()


@pytest.mark.parametrize(
    "function, why",
    [
        (
            Queue(),
            "Queue keeps the tensor 'last', which is neither a parameter nor a buffer and is not "
            "saved",
        ),
        (gap, ""),
        (partial(gap, weight=2.0), ""),
        (Scaled(), ""),
        (Called(), ""),
        (Called().method, ""),
        (lambda s, p: s.mean(), "a lambda has no name"),
        (around(), "it reads variables of the function around it"),
        (partial(gap, weight=torch.ones(())), "its partial holds a Tensor"),
    ],
)
def test_what_resumes(function, why):
    assert OwnLoss(function).unresumable == why


def test_other_code_and_settings_are_other_losses():
    def described(code):
        return OwnLoss(code).describe()

    settings = Scaled()
    settings.power = 2
    all_of_them = [gap, masked, partial(gap, weight=2.0), partial(gap, weight=3.0), Scaled()]
    descriptions = [described(code) for code in (*all_of_them, settings)]
    assert all(descriptions.count(one) == 1 for one in descriptions)
    assert described(Scaled(3.0)) == described(Scaled())  # parameters are in the checkpoint


def test_recipes_record_functions_by_name_source_and_settings():
    plain = weighted_sum(gap=gap)
    scaled = weighted_sum(gap=(0.5, lazy(gap, weight=3.0)), module=lazy(Scaled, scale=3.0))
    eye = torch.eye(3)
    assert plain.build()(eye)["gap"].item() == pytest.approx(0 - 1)
    assert repr(plain.arguments["terms"]["gap"][1]).startswith("gap(")
    values = scaled.build()(eye)
    assert values["gap"].item() == pytest.approx(0.5 * 3 * (0 - 1))
    assert values["module"].item() == 0
    call = scaled.to_dict()["terms"]["gap"][1]
    assert call["call"].endswith(":gap")
    assert call["weight"] == 3.0
    assert len(call["source"]) == 12
    assert call["source"] != scaled.to_dict()["terms"]["module"][1]["source"]
    assert weighted_sum(gap=gap) == plain


@pytest.mark.parametrize(
    "term, message",
    [
        (lambda s, p: s.mean(), "a recipe knows a loss again by its name and source"),
        (Scaled, r"write lazy\(Scaled, …\)"),
        (Scaled(), r"write lazy\(Scaled, …\)"),
        ("triplet", "'triplet' is no loss of a recipe"),
    ],
)
def test_recipes_refuse_what_they_cannot_record(term, message):
    with pytest.raises((TypeError, ValueError), match=message):
        weighted_sum(a=term)


def test_ours_stay_as_they_are():
    ours = losses.HardestTripletLoss()
    assert as_loss(ours) is ours
    with pytest.raises(TypeError, match="give its terms themselves"):
        as_loss(WeightedSum(terms={"a": (1.0, ours)}))


def test_a_registered_loss_is_a_training_of_a_pretrained_model(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(registry, "_added", {})
    registry.register.loss("my-gap")(gap)
    clip = tmp_path / "clip"
    recipes_cases.clip_like(clip)
    model = FineTunedModel(name=str(clip), way="full")
    recipe = apply_overrides(fine_tune_recipe("my-gap", model), ["tuned.objective.loss.weight=3"])
    (tuned,) = (stage for stage in recipe.stages if isinstance(stage, Train))
    assert tuned.objective.build()(torch.eye(3))["loss"].item() == pytest.approx(-3)
    with pytest.raises(ValueError, match="did you mean 'my-gap'"):
        fine_tune_recipe("my-gapp", model)
