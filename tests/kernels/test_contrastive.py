"""The kernel of the contrastive loss equals the torch form, in value and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil import kernels
from counterfoil.gpu import contrastive
from counterfoil.losses import tiled
from counterfoil.losses.tiled import tiled_info_nce
from tensor_sizes import Largest


def inputs(images: int, texts: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    left, right = (
        normalize(torch.randn(n, 20, generator=rng), dim=1).to(dtype) for n in (images, texts)
    )
    return left, right, torch.randint(0, images, (texts,), generator=rng)


def results(images: Tensor, texts: Tensor, own: Tensor, **options: object) -> tuple[Tensor, ...]:
    """The loss and its gradients by images, texts and temperature."""
    images, texts = (x.detach().clone().requires_grad_() for x in (images, texts))
    temperature = torch.tensor(0.07, requires_grad=True)
    loss = tiled_info_nce(images, texts, own, temperature, reduction="mean", **options)
    loss.backward()
    return loss.detach(), images.grad.float(), texts.grad.float(), temperature.grad


@pytest.mark.parametrize("sizes", [(150, 300), (7, 13), (1, 3), (5, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_loss_and_gradients(sizes, dtype, monkeypatch):
    images, texts, own = inputs(*sizes, dtype)
    expected = results(images.float(), texts.float(), own, margin=0.1)
    monkeypatch.delattr(tiled, "_WrongPairs")  # the torch form
    with kernels.use("always"):
        got = results(images, texts, own, margin=0.1)
    near = {torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for one, other, limit in zip(got, expected, (2e-6, near, near, 2e-5), strict=True):
        assert float((one - other).abs().max()) <= limit * float(other.abs().max())


def test_memory_does_not_grow_with_the_product(monkeypatch):
    images, texts, own = inputs(500, 600, torch.float32)
    expected = results(images, texts, own)
    monkeypatch.setattr(contrastive, "BUFFER", 128 * 600)
    with kernels.use("always"), Largest() as largest:
        got = results(images, texts, own)
    assert largest.elements <= 128 * 600
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_one_text_of_each_image_without_wrong_pairs():
    images, texts, own = inputs(1, 3, torch.float32)
    with kernels.use("always"):
        loss, *grads = results(images, texts, own)
    assert loss.isfinite()
    assert all(grad.isfinite().all() for grad in grads)
