from __future__ import annotations

from math import exp, sqrt

import pytest
import torch
from torch import Tensor, nn

from bag_cases import WIDTH, bags, each_pair
from counterfoil.core.types import Embeddings
from counterfoil.models.layers.pooling import unit_vectors
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.sgraf import SGRAF, batch_norm_places

REGIONS = 5


def model(module: str = "SGR", **options) -> SGRAF:
    torch.manual_seed(1)
    image, text = Regions(features=2, width=WIDTH), GRU(words=3, word_width=2, width=WIDTH)
    host = SGRAF(
        image=image, text=text, module=module, regions=REGIONS, similarity_width=3, **options
    )
    for part in host.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.bias, std=0.3)
        if isinstance(part, nn.BatchNorm1d):
            nn.init.normal_(part.running_mean, std=0.3)
    return host.double().eval()


def linear(layer: nn.Linear, x: list[float]) -> list[float]:
    rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in rows]


def unit(x: list[float]) -> list[float]:
    length = sqrt(sum(v * v for v in x))
    return [v / length for v in x]


def softmax(x: list[float]) -> list[float]:
    return [exp(v) / sum(exp(u) for u in x) for v in x]


def weighted(weights: list[float], rows: list[list[float]]) -> list[float]:
    return [
        sum(p * row[d] for p, row in zip(weights, rows, strict=True)) for d in range(len(rows[0]))
    ]


def slow(host: SGRAF, image: Tensor, text: Tensor) -> float:
    """The paper's equations for one pair, from pooled vectors and tokens."""
    (pooled, *regions), (caption, *words) = image.tolist(), text.tolist()
    affinity = [[sum(a * b for a, b in zip(w, v, strict=True)) for v in regions] for w in words]
    leaky = [[s if s > 0 else 0.1 * s for s in row] for row in affinity]
    lengths = [sqrt(sum(row[k] ** 2 for row in leaky)) + 1e-8 for k in range(len(regions))]
    nodes = [unit(linear(host.whole, [(a - b) ** 2 for a, b in zip(pooled, caption, strict=True)]))]
    for word, row in zip(words, leaky, strict=True):
        attention = softmax([9 * s / n for s, n in zip(row, lengths, strict=True)])
        attended = unit(weighted(attention, regions))
        square = [(a - b) ** 2 for a, b in zip(attended, word, strict=True)]
        nodes.append(unit(linear(host.local, square)))
    if host.filtration is None:
        for step in host.reasoning:
            queries, keys = ([linear(layer, x) for x in nodes] for layer in (step.query, step.key))
            edges = [
                softmax([sum(a * b for a, b in zip(q, k, strict=True)) for k in keys])
                for q in queries
            ]
            nodes = [
                [max(0.0, v) for v in linear(step.update, weighted(row, nodes))] for row in edges
            ]
        vector = nodes[0]
    else:
        norm = host.filtration.norm
        scale = float((norm.weight / (norm.running_var + norm.eps).sqrt()).detach())
        logits = [linear(host.filtration.attention, x)[0] for x in nodes]
        shares = [
            1 / (1 + exp(-(scale * (v - float(norm.running_mean)) + float(norm.bias.detach()))))
            for v in logits
        ]
        vector = unit(weighted([share / sum(shares) for share in shares], nodes))
    return linear(host.rank, vector)[0]


@pytest.mark.parametrize("module", ["SGR", "SAF"])
def test_equals_the_loop_over_pairs(module):
    host = model(module)
    regions, words = (unit_vectors(bag) for bag in bags())
    images, texts = host.pool_images(regions), host.pool_texts(words)
    for image, text, score in each_pair(images, texts, host.score_matrix(images, texts)):
        assert score == pytest.approx(slow(host, image, text), abs=1e-9)


def test_filtration_is_normalised_caption_by_caption_in_training():
    host = model("SAF", dropout=0.0).train()
    regions, words = (unit_vectors(bag) for bag in bags())
    images, texts = host.pool_images(regions), host.pool_texts(words)
    together = host.score_matrix(images, texts)
    apart = [host.score_matrix(images, texts.rows(slice(t, t + 1))) for t in range(len(texts))]
    torch.testing.assert_close(together, torch.cat(apart, 1))


def test_places_without_padding_are_normalised_as_pytorch_does():
    torch.manual_seed(0)
    tokens = torch.randn(6, REGIONS, 4)
    ours, theirs = nn.BatchNorm1d(REGIONS), nn.BatchNorm1d(REGIONS)
    normal = batch_norm_places(ours, tokens, torch.ones(6, REGIONS, dtype=torch.bool))
    torch.testing.assert_close(normal, theirs(tokens))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_padding_takes_no_part_in_the_statistics_of_a_place():
    torch.manual_seed(0)
    tokens, mask = torch.randn(6, REGIONS, 4), torch.ones(6, REGIONS, dtype=torch.bool)
    mask[3:, -1] = False
    norm, few = nn.BatchNorm1d(REGIONS), nn.BatchNorm1d(REGIONS)
    normal = batch_norm_places(norm, tokens, mask)[:3]
    expected = batch_norm_places(few, tokens[:3], mask[:3])
    torch.testing.assert_close(normal[:, -1], expected[:, -1])


def test_more_regions_than_places_are_refused():
    tokens = torch.zeros(2, REGIONS + 1, WIDTH, dtype=torch.double)
    full = torch.ones(tokens.shape[:2], dtype=torch.bool)
    with pytest.raises(ValueError, match="build it with regions=6"):
        model().pool_images(Embeddings(tokens, full))
