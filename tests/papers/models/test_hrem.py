from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import train_cases
from counterfoil.core.types import INFERENCE, Batch, EncodedViews, Pairs
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.schedules import StartAt
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.layers.towers import GRU, MLPRegions
from counterfoil.papers.compared.losses import DistanceWeightedTripletLoss
from counterfoil.papers.models.hrem import BOTH, FRAGMENTS, HREM, IMAGES, TEXTS, BatchGraph
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.step import TrainingStep
from counterfoil.training.trainer import train_network

WIDTH, WORDS = 8, 40
ANCHORS = [0, 1, 5, 7, 9]  # captions 0 and 1 share an image
ENHANCED = {"images": IMAGES, "texts": TEXTS, "both": BOTH}


def model(*, graph: bool = True, dropout: float = 0.0, best: int = 3, **options) -> HREM:
    torch.manual_seed(0)
    return HREM(
        image=MLPRegions(features=train_cases.WIDTH, width=WIDTH, init="xavier"),
        text=GRU(words=WORDS, word_width=6, width=WIDTH),
        graph=BatchGraph(width=WIDTH, heads=2, dropout=dropout, best=best) if graph else None,
        heads=2,
        dropout=dropout,
        **options,
    )


def batch(step: int = 0, *, offline: bool = False) -> Batch:
    made = train_cases.batch_of(train_cases.processor(), ANCHORS, offline=offline)
    return replace(made, step=step)


def objective(steps: int) -> WeightedSum:
    late = {
        name: StartAt(term=SumTripletLoss(view=grid), steps=steps)
        for name, grid in ENHANCED.items()
    }
    return WeightedSum(
        terms={n: (1.0, term) for n, term in {"plain": SumTripletLoss(), **late}.items()}
    )


def test_before_its_terms_begin_the_graph_is_never_asked():
    step = TrainingStep(model(), objective(4))
    asked = []
    step.model.graph.register_forward_hook(lambda *_: asked.append(1))
    losses = step(batch(3))
    assert not asked
    assert losses.keys() == {"plain", "images", "texts", "both"}
    assert sum(losses[name].item() for name in ENHANCED) == 0
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is None for p in step.model.graph.parameters())
    losses = step(batch(4))
    assert asked == [1]
    assert losses["model_relations"] > 0
    assert min(losses[name].item() for name in ENHANCED) > 0


def test_images_of_several_captions_and_negatives_behind_them():
    host, made = model().eval(), batch(offline=True)
    assert made.block[0] < made.block[1] < len(made.text_rows)
    views = host.batch_forward(made, host(made), frozenset({IMAGES}))
    for name in ENHANCED.values():
        view = views.views[name]
        assert (len(view.images), len(view.texts)) == made.block
    anchors = batch()
    alone = host.batch_forward(anchors, host(anchors), frozenset({BOTH})).views[BOTH]
    torch.testing.assert_close(views.views[BOTH].images.tokens, alone.images.tokens)
    torch.testing.assert_close(views.views[BOTH].texts.tokens, alone.texts.tokens)


def test_each_view_enhances_its_side():
    host, made = model().eval(), batch()
    views = host.batch_forward(made, host(made), frozenset({BOTH})).views
    plain = views[INFERENCE]
    told = views[BOTH]
    assert torch.equal(views[IMAGES].images.tokens, told.images.tokens)
    assert torch.equal(views[IMAGES].texts.tokens, plain.texts.tokens)
    assert torch.equal(views[TEXTS].images.tokens, plain.images.tokens)
    assert torch.equal(views[TEXTS].texts.tokens, told.texts.tokens)
    assert (told.images.tokens - plain.images.tokens).abs().max() > 1e-3


def test_fragments_teach_nobody():
    host, made = model(), batch()
    views = host(made).views
    assert not views[FRAGMENTS].images.tokens.requires_grad
    assert not views[FRAGMENTS].texts.tokens.requires_grad
    assert FRAGMENTS not in host.score_names
    only = WeightedSum(terms={"t": (1.0, SumTripletLoss(view=BOTH))})
    TrainingStep(host, only)(made)["t"].backward()
    assert all(p.grad is not None for p in host.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_related_does_not_depend_on_who_asks(mode):
    """torch has a shortcut for layers that are not trained, which makes NaN of cut edges."""
    host, made, wanted = model().eval(), batch(offline=True), frozenset({BOTH})
    told = host.batch_forward(made, host(made), wanted)
    with mode():
        again = host.batch_forward(made, host(made), wanted)
        with torch.autocast("cpu", torch.bfloat16):
            half = host.batch_forward(made, EncodedViews({**again.views}), wanted)
    for found in (again, half):
        for name in ENHANCED.values():
            for side in ("images", "texts"):
                one, two = (getattr(views.views[name], side).tokens for views in (told, found))
                torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.auxiliary["relations"], told.auxiliary["relations"])


def test_under_autocast_every_way_to_score_is_the_product_of_single_precision():
    host, made = model().eval(), batch(offline=True)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        images, texts = host.encode_images(made.images), host.encode_texts(made.texts)
        view = host(made).views[INFERENCE]
        image, text = torch.cartesian_prod(torch.arange(len(images)), torch.arange(len(texts))).T
        scores = [
            host.score_matrix(images, texts).flatten(),
            host.score_indices(images, texts, Pairs(image, text)),
            host.score_pairs(images.rows(image), texts.rows(text)),
            host.score_matrix(view.images, view.texts).flatten(),
        ]
    dense = images.tokens[:, 0].double() @ texts.tokens[:, 0].double().T
    for found in scores:
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), dense.flatten(), rtol=0, atol=1e-6)
    for bag in (images, texts):
        length = torch.linalg.vector_norm(bag.tokens.double(), dim=-1)
        torch.testing.assert_close(length, torch.ones_like(length), rtol=0, atol=1e-6)


def test_without_a_graph_there_are_no_enhanced_grids():
    host = model(graph=False)
    assert not host.uses_batch_context
    assert host(batch()).views.keys() == {INFERENCE}
    with pytest.raises(ValueError, match="reads the scores of 'both enhanced', 'images enhanced'"):
        TrainingStep(host, objective(0))


def test_the_graph_is_saved_and_never_asked_at_test_time(monkeypatch):
    host, other, made = model().eval(), model().eval(), batch()
    assert "graph.by_texts.0.weight" in host.state_dict()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(host.state_dict())
    wanted = frozenset({BOTH})
    one, two = (
        x.batch_forward(made, x(made), wanted).views[BOTH].images.tokens for x in (host, other)
    )
    assert torch.equal(one, two)
    monkeypatch.setattr(host, "graph", None)
    assert host.encode_images(made.images).tokens.isfinite().all()


def test_dropout_in_the_graph_is_of_its_step_and_not_of_what_came_before():
    step = TrainingStep(
        model(dropout=0.3), WeightedSum(terms={"t": (1.0, SumTripletLoss(view=BOTH))})
    )
    step.model.image_pool.eval(), step.model.text_pool.eval()

    def loss(seed: int, number: int) -> float:
        torch.manual_seed(seed)
        return step(batch(number))["t"].item()

    assert loss(0, 1) == loss(5, 1)
    assert loss(0, 1) != loss(0, 2)


@pytest.mark.parametrize("chunk", [0, 3])
def test_a_stopped_training_goes_on_as_if_it_had_not(tmp_path: Path, chunk: int):
    plan = TrainConfig(epochs=1, batch=5, optimiser=OptimizerConfig(rate=0.02), grad_cache=chunk)
    processor = train_cases.processor()

    def train(folder: str, plan: TrainConfig, **more) -> tuple[object, HREM]:
        host = model(dropout=0.2)
        return train_network(
            plan, host, objective(3), processor, folder=tmp_path / folder, **more
        ), host

    whole, expected = train("whole", plan)
    assert whole.steps > 5
    fitted, sessions = None, 0
    while fitted is None or not fitted.finished:
        fitted, host = train("cut", replace(plan, minutes=1e-9), resume=True)
        sessions += 1
        assert sessions <= whole.steps
    assert sessions > 2
    for name, value in expected.state_dict().items():
        assert torch.equal(host.state_dict()[name], value), name


@pytest.mark.parametrize("term", [HardestTripletLoss, DistanceWeightedTripletLoss])
def test_it_learns_with_the_graph(term: type[Loss]):
    torch.manual_seed(0)
    terms = {"plain": term(), **{name: term(view=grid) for name, grid in ENHANCED.items()}}
    step = TrainingStep(
        model(dropout=0.1), WeightedSum(terms={n: (1.0, t) for n, t in terms.items()})
    )
    made = batch()
    first, *_, losses = train_cases.learnt(step, lambda: step(made), rate=0.01, steps=30)
    assert losses["plain"] < 0.5 * first["plain"]
    assert losses["both"] < 0.5 * first["both"]
