from __future__ import annotations

import pytest
import torch

import train_cases as cases
from counterfoil.core.types import Batch
from counterfoil.losses.aoq import OfflineQuintuplet
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.triplet import SumTripletLoss
from counterfoil.papers.compared.losses import DistanceWeightedTripletLoss
from counterfoil.papers.models.hrem import BOTH
from counterfoil.training import step as step_module
from counterfoil.training.step import TrainingStep
from sources_cases import Drawn

ANCHORS = [0, 1, 5, 7, 9, 12, 30, 18, 21]


def step(kind: str, dropout: float) -> TrainingStep:
    terms = {
        "offline": (1.0, OfflineQuintuplet(reduction="mean")),
        "nce": (0.2, InfoNCELoss(learnable=True)),
    }
    model = cases.host(kind, cases.processor(), dropout=dropout)
    return TrainingStep(model, WeightedSum(terms=terms), sources=[Drawn(cases.Offline.provides)])


def enhanced(dropout: float) -> TrainingStep:
    terms = {"plain": SumTripletLoss(), "drawn": DistanceWeightedTripletLoss(view=BOTH)}
    objective = WeightedSum(terms={name: (1.0, term) for name, term in terms.items()})
    return TrainingStep(cases.host("hrem", cases.processor(), dropout=dropout), objective)


def batch(anchors: list[int] = ANCHORS) -> Batch:
    return cases.batch_of(cases.processor(), anchors, offline=True)


def plain(module: TrainingStep, made: Batch) -> dict[str, torch.Tensor]:
    losses = module(made)
    torch.stack(list(losses.values())).sum().backward()
    return cases.gradients(module)


def near(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert wanted[name].abs().max() > 1e-4, name
        torch.testing.assert_close(found[name], wanted[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["global", "bag"])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_it_equals_the_plain_gradient(kind: str, chunk: int) -> None:
    one, other = step(kind, 0.0), step(kind, 0.0)
    wanted = plain(one, batch())
    losses = cases.cached_backward(other, batch(), chunk)
    near(cases.gradients(other), wanted)
    assert {n: v.item() for n, v in losses.items()} == pytest.approx(
        {n: v.item() for n, v in one(batch()).items()}, rel=1e-5
    )


@pytest.mark.parametrize("kind", ["global", "bag", "own"])
def test_dropout_is_the_same_both_times(kind: str) -> None:
    """The same pieces encoded once, with a graph, are the plain gradient under dropout."""
    one, other, made = step(kind, 0.5), step(kind, 0.5), batch()
    torch.manual_seed(1)
    whole = step_module._concatenate([one.encode(part) for part in step_module._pieces(made, 4)])
    torch.stack(list(one.compute_losses(made, whole).values())).sum().backward()
    torch.manual_seed(1)
    cases.cached_backward(other, made, 4)
    near(cases.gradients(other), cases.gradients(one))
    torch.manual_seed(2)
    third = step(kind, 0.5)
    cases.cached_backward(third, made, 4)
    assert not torch.allclose(third.model.image.weight.grad, other.model.image.weight.grad)


def test_what_relates_a_whole_batch_equals_the_plain_gradient() -> None:
    one, other = enhanced(0.0), enhanced(0.0)
    wanted = plain(one, batch())
    losses = cases.cached_backward(other, batch(), 4)
    near(cases.gradients(other), wanted)
    assert losses.keys() == {"plain", "drawn", "model_relations"}


def test_the_generator_goes_on_from_the_first_encoding() -> None:
    module, made = step("global", 0.5), batch()
    torch.manual_seed(1)
    cases.cached_backward(module, made, 4)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    for part in step_module._pieces(made, 4):
        module.encode(part)
    assert torch.equal(torch.get_rng_state(), after)


def test_gradients_are_added_and_shared() -> None:
    one, other = step("bag", 0.0), step("bag", 0.0)
    cases.cached_backward(one, batch(), 3)
    cases.cached_backward(other, batch(), 3, share=0.25)
    cases.cached_backward(other, batch(), 3, share=0.75)
    near(cases.gradients(other), cases.gradients(one))


def test_frozen_encoders_are_left_alone() -> None:
    module = step("global", 0.0)
    module.model.image.requires_grad_(False)
    cases.cached_backward(module, batch(), 3)
    assert module.model.image.weight.grad is None
    assert module.model.word.weight.grad is not None


def test_pieces_are_never_empty() -> None:
    parts = list(step_module._pieces(batch([0, 1, 2, 3]), 2))
    sizes = [(len(part.images), len(part.texts)) for part in parts]
    assert all(images and texts for images, texts in sizes)
    assert sum(images for images, _ in sizes) == len(batch([0, 1, 2, 3]).images)


def test_no_more_than_a_piece_is_encoded_at_once() -> None:
    module, most = step("global", 0.0), []
    encode = module.model.encode_texts
    module.model.encode_texts = lambda items: most.append(len(items)) or encode(items)
    cases.cached_backward(module, batch(), 4)
    assert max(most) <= 4
    assert sum(most) == 2 * len(batch().texts)


def test_activations_of_pieces_are_not_held() -> None:
    """Of pieces, the graph of the encoders holds no tensor that grows with the batch."""
    held: list[torch.Tensor] = []
    sizes = {}
    for chunk in (0, 4):
        held.clear()
        module = step("global", 0.5)
        module.chunk = chunk
        with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
            module.encode(batch())
        sizes[chunk] = sum(tensor.numel() for tensor in held)
    assert sizes[4] < sizes[0] / 2
