from __future__ import annotations

from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor

from bag_cases import WIDTH, bags, each_pair, whole
from counterfoil.core.types import Batch, Pairs
from counterfoil.models.layers.pooling import unit_vectors
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.naaf import NAAF, mined_thresholds


def model(threshold: float = 0.0, **options) -> NAAF:
    image, text = Regions(features=2, width=WIDTH), GRU(words=3, word_width=2, width=WIDTH)
    built = NAAF(image=image, text=text, **options).double()
    built.thresholds.fill_(threshold)
    built.mined.fill_(threshold)
    return built


def dot(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow(regions, words, threshold: float, *, sharpness: float, spread: float | None) -> float:
    """The paper's equations over plain lists of unit vectors."""
    affinity = [[dot(w, v) for v in regions] for w in words]
    leaky = [[s if s > 0 else 0.1 * s for s in row] for row in affinity]
    lengths = [sqrt(sum(row[k] ** 2 for row in leaky)) + 1e-8 for k in range(len(regions))]
    margins = [max(row) - threshold for row in affinity]
    signs = margins
    if spread is not None:
        signs = []
        for w in words:
            weights = [exp(spread * dot(w, other)) for other in words]
            signs.append(sum(p * m for p, m in zip(weights, margins, strict=True)))
    total = 0.0
    for word, row, soft, margin, sign in zip(words, affinity, leaky, margins, signs, strict=True):
        weights = [exp(sharpness * (s - threshold)) if s > threshold else 0.0 for s in row]
        mixed = [sum(p * v[d] for p, v in zip(weights, regions, strict=True)) for d in range(WIDTH)]
        if any(weights):
            total += dot(word, mixed) / sqrt(dot(mixed, mixed))
        attention = [exp(sharpness * s / n) for s, n in zip(soft, lengths, strict=True)]
        total += dot(attention, row) / sum(attention)
        total += margin if sign < 0 else 0.0
    return total / len(words)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.9])
def test_equals_the_loop_over_pairs(training, threshold):
    host = model(threshold, lambda_softmax=6.0).train(training)
    images, texts = (unit_vectors(bag) for bag in bags())
    spread = None if training else host.intra_lambda
    for v, w, score in each_pair(images, texts, host.score_matrix(images, texts)):
        expected = slow(v.tolist(), w.tolist(), threshold, sharpness=6.0, spread=spread)
        assert score == pytest.approx(expected, abs=1e-9)


def test_the_threshold_is_where_matched_words_begin_to_prevail():
    rng = torch.Generator().manual_seed(0)
    matched = 0.6 + 0.1 * torch.randn(5000, generator=rng, dtype=torch.double)
    mismatched = 0.3 + 0.15 * torch.randn(5000, generator=rng, dtype=torch.double)
    carried = torch.zeros(2, dtype=torch.double)
    train, safe = (mined_thresholds(matched, mismatched, carried, alpha=2.0) / 0.7).tolist()

    def density(x: Tensor) -> float:
        return float(-((train - x.mean()) ** 2) / (2 * x.var()) - x.std().log())

    assert density(matched) - density(mismatched) == pytest.approx(log(2.0), abs=1e-6)
    assert mismatched.mean() < train < matched.mean()
    assert safe == pytest.approx(float(matched.mean() - 3 * matched.std()))


def test_equal_deviations_lose_no_precision():
    rng = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(5000, generator=rng)
    train = mined_thresholds(0.6 + noise, 0.2 + noise, torch.zeros(2), alpha=1.0)[0] / 0.7
    assert float(train) == pytest.approx(0.4, abs=0.01)  # half way


def batch(n: int) -> Batch:
    rng, rows = torch.Generator().manual_seed(3), torch.arange(n)
    images = torch.randn(n, 4, 2, generator=rng)
    texts = torch.randint(0, 3, (n, 12), generator=rng)
    # everything is positive, so every caption's first image is right
    every = Pairs(rows.repeat(n), rows.repeat_interleave(n))
    return Batch(0, rows, rows, whole(images), whole(texts), (n, n), every)


def test_a_batch_is_scored_with_the_thresholds_mined_from_the_one_before():
    host, step = model().float().train(), batch(20)
    before = []
    for _ in range(2):
        views = host.forward(step)
        host.batch_forward(step, views, frozenset())
        before.append(host.thresholds.clone())
    assert before[0].tolist() == [0, 0]
    assert torch.equal(before[1], before[1].clamp(0, 1))
    assert before[1].any()


def test_few_words_change_nothing():
    host, step = model(0.25).float().train(), batch(3)
    host.batch_forward(step, host.forward(step), frozenset())
    assert host.mined.tolist() == [0.25, 0.25]
