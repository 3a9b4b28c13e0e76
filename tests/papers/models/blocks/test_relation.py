from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from counterfoil.papers.models.vsrn import RegionRelation, normalise_by

WIDTH = 4


def layer(training: bool = False) -> RegionRelation:
    """With a norm that does something, in double precision."""
    torch.manual_seed(0)
    made = RegionRelation(width=WIDTH).double()
    for tensor in (made.norm.weight, made.norm.bias, made.norm.running_mean):
        torch.nn.init.normal_(tensor)
    return made.train(training)


def bags(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Three images of 5, 1 and 3 regions; zero at padding."""
    rng = torch.Generator().manual_seed(seed)
    mask = torch.arange(5) < torch.tensor([[5], [1], [3]])
    tokens = torch.randn(3, 5, WIDTH, dtype=torch.double, generator=rng)
    return tokens.masked_fill(~mask.unsqueeze(-1), 0), mask


def slow(made: RegionRelation, image: torch.Tensor) -> torch.Tensor:
    """One image of N regions, region by region, before the norm."""
    theta, phi, value = made.theta(image), made.phi(image), made.value(image)
    told = [
        sum((theta[i] @ phi[j]) * value[j] for j in range(len(image))) / len(image)
        for i in range(len(image))
    ]
    return made.out(torch.stack(told))


@pytest.mark.parametrize("training", [False, True])
def test_it_is_the_formula_over_real_regions(training):
    made, (tokens, mask) = layer(training), bags()
    rows = torch.cat([slow(made, t[m]) for t, m in zip(tokens, mask, strict=True)])
    norm = made.norm
    mean = rows.mean(0) if training else norm.running_mean
    spread = rows.var(0, unbiased=False) if training else norm.running_var
    normal = (rows - mean) / (spread + norm.eps).sqrt() * norm.weight + norm.bias
    got = made(tokens, mask)
    torch.testing.assert_close(got[mask], tokens[mask] + normal)
    assert (got[~mask] == 0).all()


def test_it_begins_as_the_identity():
    tokens, mask = bags()
    made = RegionRelation(width=WIDTH).double()
    assert torch.equal(made(tokens, mask), tokens)
    assert torch.equal(made.eval()(tokens[:1]), tokens[:1])


def test_without_padding_no_mask_is_needed():
    tokens, mask = bags()
    made, whole = layer(training=True), torch.ones_like(mask)
    torch.testing.assert_close(made(tokens), layer(training=True)(tokens, whole))


@pytest.mark.parametrize("training", [False, True])
def test_gradient(training):
    made, (tokens, mask) = layer(training), bags()
    tokens.requires_grad_()
    hidden = ~mask.unsqueeze(-1)
    assert gradcheck(lambda v: made(v.masked_fill(hidden, 0), mask), tokens)


def test_a_channel_is_levelled_over_the_regions_and_a_vector_alone():
    tokens, mask = bags()
    channel, vector = normalise_by("channel", tokens), normalise_by("vector", tokens)
    ones = torch.ones(3, WIDTH, dtype=torch.double)
    torch.testing.assert_close(channel.norm(dim=1), ones)
    torch.testing.assert_close(vector.norm(dim=2), mask.double())
    assert (channel - vector).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["channel", "vector"])
def test_levelling_has_a_gradient_even_at_zero(kind):
    tokens, _ = bags()
    tokens.requires_grad_()
    assert gradcheck(lambda v: normalise_by(kind, v), tokens[:1].detach().requires_grad_())
    nothing = torch.zeros(1, 2, 3, requires_grad=True)
    normalise_by(kind, nothing).sum().backward()
    assert (nothing.grad.abs() <= 1).all()
