from __future__ import annotations

from math import exp, sqrt, tanh

import pytest
import torch
from torch import Tensor, nn

from bag_cases import WIDTH, bags, each_pair
from counterfoil.models.layers.pooling import unit_vectors
from counterfoil.models.layers.towers import GRU, MLPRegions
from counterfoil.papers.models.xdim import Dependencies, XDim


def model(**options) -> XDim:
    torch.manual_seed(1)
    image, text = MLPRegions(features=2, width=WIDTH), GRU(words=3, word_width=2, width=WIDTH)
    host = XDim(image=image, text=text, **options)
    nn.init.constant_(host.dependencies.deviations, 0.3)
    nn.init.constant_(host.dependencies.sharpness, 1.0)
    return host.double().eval()


def slow(host: XDim, regions: list[list[float]], words: list[list[float]]) -> float:
    """The paper's equations over plain lists of unit vectors."""
    matrix = host.dependencies().tolist()
    diagonal = [sum(row[k] for row in matrix) for k in range(WIDTH)]
    affinity = [
        [tanh(sum(q * d * v for q, d, v in zip(w, diagonal, r, strict=True))) for r in regions]
        for w in words
    ]
    leaky = [[s if s > 0 else 0.1 * s for s in row] for row in affinity]
    lengths = [sqrt(sum(row[k] ** 2 for row in leaky)) + 1e-8 for k in range(len(regions))]
    sharpness, total = exp(float(host.temperature.detach())), 0.0
    for word, row in zip(words, leaky, strict=True):
        weights = [exp(sharpness * s / n) for s, n in zip(row, lengths, strict=True)]
        mixed = [sum(p * r[d] for p, r in zip(weights, regions, strict=True)) for d in range(WIDTH)]
        length = sqrt(sum(m * m for m in mixed))
        x = [m / length * w for m, w in zip(mixed, word, strict=True)]
        z = [sum(a * b for a, b in zip(line, x, strict=True)) for line in matrix]
        total += sum(z) / (sqrt(sum(v * v for v in z)) + 1e-8)
    return total / len(words)


def test_equals_the_loop_over_pairs():
    host = model()
    images, texts = (unit_vectors(bag) for bag in bags())
    for v, w, score in each_pair(images, texts, host.score_matrix(images, texts)):
        assert score == pytest.approx(slow(host, v.tolist(), w.tolist()), abs=1e-7)


def test_steep_dependencies_have_finite_gradients():
    parts = Dependencies(width=6)
    with torch.no_grad():
        parts.table[0, 0] = 9.0
        parts.deviations.fill_(0.0)
        parts.sharpness.fill_(7.0)
    parts().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in parts.parameters())


def test_every_parameter_learns():
    host = model()
    images, texts = (unit_vectors(bag) for bag in bags())
    host.score_matrix(images, texts).square().sum().backward()
    grads: list[Tensor | None] = [host.temperature.grad]
    grads += [p.grad for p in host.dependencies.parameters()]
    assert all(grad is not None and bool(grad.any()) for grad in grads)
