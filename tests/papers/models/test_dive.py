from __future__ import annotations

import pytest
import torch

import hub_cases
import train_cases
from counterfoil.core.types import Batch
from counterfoil.data.batching import BatchSampler
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss, MeanTripletLoss
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions
from counterfoil.papers.models.dive import DivE, PooledParts, WordsAndStates
from counterfoil.training.config import OptimizerConfig, ParameterGroup
from counterfoil.training.step import TrainingStep

WORDS, WIDTH = 40, 8


def model(**options: object) -> DivE:
    torch.manual_seed(0)
    parts = {
        "image": PooledParts(
            tower=MLPRegions(features=train_cases.WIDTH, width=WIDTH, stacked=True)
        ),
        "text": WordsAndStates(gru=GRU(words=WORDS, word_width=6, width=WIDTH)),
        "heads": 2,
        "head_width": 4,
    }
    return DivE(**(parts | options))


def batch(count: int = 4) -> Batch:
    """Images with all of their captions."""
    processor = train_cases.processor()
    rows = next(
        BatchSampler(processor.dataset.relation, batch=count, seed=0, all_captions=True).epoch(0)
    )
    return train_cases.batch_of(processor, rows.tolist())


def test_a_set_is_the_whole_added_to_every_slot():
    host, made = model().eval(), batch()
    sets, slots = host.images(made.images)
    whole = host.image_norm(host.image(made.images).whole)
    assert sets.tokens.shape == (4, 4, WIDTH)
    for n in range(4):
        for k in range(4):
            sum_ = whole[n] + slots[n, k]
            torch.testing.assert_close(sets.tokens[n, k], sum_ / sum_.norm())


def test_the_image_tower_is_run_once():
    host, made, calls = model(), batch(), []
    host.image.tower.fc.register_forward_hook(lambda *_: calls.append(1))
    host(made)
    assert len(calls) == 1


def losses(host: DivE, made: Batch) -> dict[str, torch.Tensor]:
    terms = {"triplet": (1.0, HardestTripletLoss(reduction="mean"))}
    return TrainingStep(host, WeightedSum(terms=terms))(made)


def test_its_ranking_loss_is_two_means_over_all_true_pairs():
    host, made = model().eval(), batch()
    view = host(made).inference
    scores = host.score_matrix(view.images, view.texts).detach()
    assert made.block == (4, 12)
    costs: list[list[float]] = [[], []]
    for image, text in made.positive.nonzero().tolist():
        wrong_texts = scores[image][~made.positive[image]].max()
        wrong_images = scores[:, text][~made.positive[:, text]].max()
        for side, worst in zip(costs, (wrong_texts, wrong_images), strict=True):
            side.append(max(0.0, 0.2 + float(worst - scores[image, text])))
    expected = sum(sum(side) / len(side) for side in costs)
    assert losses(host, made)["triplet"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"mmd", "diversity"}),
        ({"diversity_weight": 0.0}, {"mmd"}),
        ({"mmd_weight": 0.0, "diversity_of": "elements"}, {"diversity"}),
        ({"mmd_weight": 0.0, "diversity_weight": 0.0}, set()),
    ],
)
def test_losses_of_its_own_are_those_with_a_weight(options, names):
    host = model(**options)
    found = losses(host, batch())
    assert set(found) == {"triplet", *(f"model_{name}" for name in names)}
    torch.stack(list(found.values())).sum().backward()
    for name, parameter in host.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_weights_are_factors():
    made = batch()
    one, ten = (
        losses(model(mmd_weight=w, diversity_weight=2 * w).eval(), made) for w in (0.01, 0.1)
    )
    for name in ("model_mmd", "model_diversity"):
        assert ten[name].item() == pytest.approx(10 * one[name].item(), rel=1e-5)


def test_diversity_of_elements_is_another():
    slots, elements = (
        losses(model(diversity_of=of).eval(), batch())["model_diversity"].item()
        for of in ("slots", "elements")
    )
    assert elements > slots > 0  # elements share the whole


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_learns_to_tell_a_batch(precision):
    host, made = model(dropout=0.0), batch()
    terms = {"triplet": (1.0, MeanTripletLoss(reduction="mean"))}
    step = TrainingStep(host, WeightedSum(terms=terms), precision=precision)
    first, *_, last = train_cases.learnt(step, lambda: step(made), rate=0.01, steps=20)
    assert last["triplet"] < first["triplet"] / 2


@pytest.mark.parametrize(("pool", "apart"), [("max", False), ("first", True)])
def test_bert(tmp_path, pool, apart):
    bert = BertTextTower(name=hub_cases.bert(tmp_path), width=WIDTH * (1 + apart))
    host = model(text=PooledParts(tower=bert, pool=pool, apart=apart))
    torch.stack(list(losses(host, batch()).values())).sum().backward()
    assert host.text.tower.fc.weight.grad.abs().max() > 0


def test_the_papers_groups_of_parameters():
    host = model()
    step = TrainingStep(host, WeightedSum(terms={"triplet": (1.0, HardestTripletLoss())}))
    groups = (ParameterGroup(match="image*", rate=0.1), ParameterGroup(match="text_*", rate=0.1))
    optimiser = OptimizerConfig(rule="adamw", rate=1e-3, decay=1e-4, clip=1.0, groups=groups)
    fast = {
        id(p)
        for group in optimiser.build(step).param_groups
        for p in group["params"]
        if group["lr"] == pytest.approx(1e-3)
    }
    assert fast == {id(p) for p in host.text.parameters()}
