from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core.types import Pairs
from counterfoil.losses.base import Reduction
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.tiled import tiled_hardest_triplet, tiled_info_nce
from counterfoil.losses.triplet import HardestTripletLoss
from tensor_sizes import Largest

SHARED = [3, 0, 0, 1, 4, 4, 4, 1, 3, 6, 5, 0, 3]  # image 2 has no text


def embeddings(images: int, texts: int, dim: int = 5) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    both = torch.randn(images + texts, dim, generator=rng, dtype=torch.float64)
    some, others = normalize(both, dim=1).split([images, texts])
    return some.clone().requires_grad_(), others.clone().requires_grad_()


OPTIONS: dict[str, dict[str, Any]] = {
    "infonce": {},
    "infonce harder": {"hardness": 9.0, "margin": 0.1},
}


def dense(name: str, images: Tensor, texts: Tensor, own: Tensor, reduction: Reduction) -> Tensor:
    positives = torch.arange(len(images)).unsqueeze(1) == own
    if name == "triplet":
        return HardestTripletLoss(margin=0.3, reduction=reduction)(images @ texts.T, positives)
    loss = InfoNCELoss(temperature=0.1, reduction=reduction, **OPTIONS[name]).double()
    # the dense loss holds its temperature in float32
    loss.log_scale.data = torch.tensor(10.0, dtype=torch.float64).log()
    return loss(images @ texts.T, positives)


def tiled(name: str, *inputs: Tensor, tile: int, reduction: Reduction = "sum") -> Tensor:
    if name == "triplet":
        return tiled_hardest_triplet(*inputs, margin=0.3, tile=tile, reduction=reduction)
    options = OPTIONS[name]
    return tiled_info_nce(*inputs, temperature=0.1, tile=tile, reduction=reduction, **options)


def assert_equal(name: str, images: Tensor, texts: Tensor, own: Tensor, **how: Any) -> None:
    reduction = how.get("reduction", "sum")
    expected = dense(name, images, texts, own, reduction)
    value = tiled(name, images, texts, own, **how)
    exact = {"atol": 1e-12, "rtol": 1e-12}
    torch.testing.assert_close(value, expected, **exact)
    wanted = torch.autograd.grad(expected, (images, texts))
    torch.testing.assert_close(torch.autograd.grad(value, (images, texts)), wanted, **exact)
    assert all(grad.isfinite().all() for grad in wanted)


both_losses = pytest.mark.parametrize("name", [*OPTIONS, "triplet"])


@both_losses
@pytest.mark.parametrize("tile", [1, 2, 3, 5, 7, 13, 100])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_tiled_loss_has_the_value_and_gradient_of_the_dense_one(
    name: str, tile: int, reduction: Reduction
) -> None:
    images, texts = embeddings(7, len(SHARED))
    assert_equal(name, images, texts, torch.tensor(SHARED), tile=tile, reduction=reduction)


@both_losses
@pytest.mark.parametrize("tile", [1, 2, 4, 100])
def test_equally_hard_negatives_share_the_gradient(name: str, tile: int) -> None:
    """Each item is there three times, with coordinates that make exact products."""
    corners = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.5, -0.5, 0.5, 0.5]], dtype=torch.float64)
    images = corners.repeat(3, 1).requires_grad_()
    texts = corners.repeat(3, 1).requires_grad_()
    assert_equal(name, images, texts, torch.arange(6), tile=tile)


@both_losses
def test_an_image_of_which_every_text_is_true_costs_nothing_on_its_side(name: str) -> None:
    images, texts = embeddings(3, 4)
    assert_equal(name, images, texts, torch.ones(4, dtype=torch.long), tile=2)


@both_losses
def test_one_pair_alone_costs_nothing(name: str) -> None:
    images, texts = embeddings(1, 1)
    value = tiled(name, images, texts, torch.zeros(1, dtype=torch.long), tile=4)
    assert value.item() == 0
    assert all(not g.any() for g in torch.autograd.grad(value, (images, texts)))


@both_losses
@pytest.mark.parametrize("tile", [1, 2, 3, 5, 7, 100])
def test_pairs_judged_true_are_no_negatives(name: str, tile: int) -> None:
    """By the dense loss of scores in which they are worth nothing."""
    images, texts = embeddings(7, len(SHARED))
    own = torch.tensor(SHARED)
    exempt = Pairs(torch.tensor([2, 2, 6, 0, 3, 3]), torch.tensor([0, 12, 5, 8, 0, 1]))
    positives = torch.arange(7).unsqueeze(1) == own
    out = torch.zeros_like(positives)
    out[exempt.image, exempt.text] = True
    scores = (images @ texts.T).masked_fill(out & ~positives, -torch.inf)
    if name == "triplet":
        expected = HardestTripletLoss(margin=0.3)(scores, positives)
        value = tiled_hardest_triplet(images, texts, own, 0.3, exempt=exempt, tile=tile)
    else:
        loss = InfoNCELoss(temperature=0.1, margin=0.3).double()
        loss.log_scale.data = torch.tensor(10.0, dtype=torch.float64).log()
        expected = loss(scores, positives)
        value = tiled_info_nce(images, texts, own, 0.1, margin=0.3, exempt=exempt, tile=tile)
    exact = {"atol": 1e-12, "rtol": 1e-12}
    torch.testing.assert_close(value, expected, **exact)
    wanted = torch.autograd.grad(expected, (images, texts))
    torch.testing.assert_close(torch.autograd.grad(value, (images, texts)), wanted, **exact)


@pytest.mark.parametrize("tile", [1, 3, 100])
def test_extra_positives_count_with_their_weights_as_in_the_dense_loss(tile: int) -> None:
    images, texts = embeddings(7, len(SHARED))
    own = torch.tensor(SHARED)
    extra = {(2, 0): 0.25, (6, 5): 1.0, (0, 8): 0.0, (3, 1): 0.5}
    exempt = Pairs(*(torch.tensor(side) for side in zip(*extra)))
    weight = torch.tensor(list(extra.values()), dtype=torch.float64)
    positives = torch.arange(7).unsqueeze(1) == own
    assert not positives[exempt.image, exempt.text].any()
    weights = torch.zeros(positives.shape, dtype=torch.float64)
    weights[exempt.image, exempt.text] = weight
    scores = images @ texts.T
    ambiguous = torch.zeros_like(positives)
    ambiguous[0, 8] = True
    loss = InfoNCELoss(temperature=0.1, margin=0.3, reduction="mean").double()
    loss.log_scale.data = torch.tensor(10.0, dtype=torch.float64).log()
    dense = scores.masked_fill(ambiguous, -torch.inf)
    expected = loss(dense, positives, extra_positives=weights)
    value = tiled_info_nce(
        images,
        texts,
        own,
        0.1,
        margin=0.3,
        exempt=exempt,
        weight=weight,
        tile=tile,
        reduction="mean",
    )
    torch.testing.assert_close(value, expected, atol=1e-12, rtol=1e-12)
    wanted = torch.autograd.grad(expected, (images, texts))
    found = torch.autograd.grad(value, (images, texts))
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


def test_a_temperature_that_is_a_tensor_is_learnt() -> None:
    images, texts = embeddings(7, len(SHARED))
    own = torch.tensor(SHARED)

    def of(temperature: Tensor) -> Tensor:
        return tiled_info_nce(images.detach(), texts.detach(), own, temperature, tile=3)

    assert torch.autograd.gradcheck(of, torch.tensor(0.3, dtype=torch.float64, requires_grad=True))


@both_losses
def test_autocast_changes_neither_value_nor_gradient(name: str) -> None:
    images, texts = (side.detach().float().requires_grad_() for side in embeddings(7, len(SHARED)))
    own = torch.tensor(SHARED)
    plain = tiled(name, images, texts, own, tile=3)
    with torch.autocast("cpu", torch.bfloat16):
        under = tiled(name, images, texts, own, tile=3)
    assert under.item() == plain.item()
    for one, other in zip(
        torch.autograd.grad(under, (images, texts)),
        torch.autograd.grad(plain, (images, texts)),
        strict=True,
    ):
        assert torch.equal(one, other)


@both_losses
def test_no_tensor_is_larger_than_the_embeddings(name: str) -> None:
    count, dim = 300, 4
    images, texts = embeddings(count, count, dim)
    with Largest() as whole:
        dense(name, images, texts, torch.arange(count), "sum").backward()
    assert whole.elements == count * count  # so the watch sees a score matrix
    with Largest() as pieces:
        tiled(name, images, texts, torch.arange(count), tile=32).backward()
    assert pieces.elements == count * dim


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"texts": torch.ones(2, 3, 4)}, "one vector per item"),
        ({"texts": torch.ones(2, 3)}, "one vector per item"),
        ({"text_to_image": torch.zeros(3, dtype=torch.long)}, "one image row for each of the 2"),
        ({"text_to_image": torch.tensor([0, -1])}, "from 0 to 1"),
        ({"text_to_image": torch.tensor([0, 2])}, "from 0 to 1"),
        ({"tile": 0}, "a tile of 0"),
    ],
)
@pytest.mark.parametrize("loss", [tiled_info_nce, tiled_hardest_triplet])
def test_inputs_that_do_not_fit_are_refused(
    loss: Callable[..., Tensor], change: dict[str, Any], said: str
) -> None:
    plain = {"images": torch.eye(2), "texts": torch.eye(2), "text_to_image": torch.arange(2)}
    with pytest.raises(ValueError, match=said):
        loss(**{**plain, **change})


def test_a_temperature_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a temperature of 0\.0"):
        tiled_info_nce(torch.eye(2), torch.eye(2), torch.arange(2), 0.0)
