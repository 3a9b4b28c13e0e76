from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import normalize

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.papers.models import dive
from counterfoil.papers.models.dive import SetSimilarity, set_score_matrix

KINDS = get_args(SetSimilarity)
ALPHA = 5.0


def bag(counts: list[int], seed: int, longest: int = 0) -> Embeddings:
    """Sets of unit vectors."""
    made = bag_cases.bag(counts, 4, seed=seed, longest=longest)
    return Embeddings(normalize(made.tokens, dim=2), made.mask)


def by_loops(kind: str, image: Tensor, text: Tensor) -> float:
    """Of one set with another, an element after the other."""
    near = [[float(x @ y) for y in text] for x in image]
    if kind.endswith("euclidean"):
        near = [[-float((x - y).norm()) for y in text] for x in image]
    across = list(zip(*near, strict=True))

    def best(values: list[float]) -> float:
        return math.log(sum(math.exp(ALPHA * v) for v in values)) / ALPHA

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    if kind == "max":
        return max(max(row) for row in near)
    if kind == "mean_sigmoid":
        return mean([1 / (1 + math.exp(-v)) for row in near for v in row])
    of = max if kind == "chamfer" else best
    return (mean([of(row) for row in near]) + mean([of(column) for column in across])) / 2


CASES = {
    "whole": (bag([3, 3], 0), bag([2, 2, 2], 1)),
    "ragged": (bag([1, 3, 2], 0, 4), bag([2, 4], 1, 5)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [1, 1 << 20])
def test_equals_loops_over_elements(kind, case, cells, monkeypatch):
    monkeypatch.setattr(dive, "CELLS_AT_ONCE", cells)
    images, texts = CASES[case]
    found = set_score_matrix(kind, images, texts, ALPHA)
    for i, row in enumerate(found.tolist()):
        for t, score in enumerate(row):
            image, text = images.tokens[i][images.mask[i]], texts.tokens[t][texts.mask[t]]
            assert score == pytest.approx(by_loops(kind, image, text), abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    images, texts = CASES["ragged"]

    def scores(image: Tensor, text: Tensor) -> Tensor:
        return set_score_matrix(
            kind, Embeddings(image, images.mask), Embeddings(text, texts.mask), ALPHA
        )

    leaves = [bag.tokens.nan_to_num(0.3).requires_grad_() for bag in (images, texts)]
    assert gradcheck(scores, leaves)


def test_a_smooth_chamfer_is_a_little_above_the_cosine_of_single_vectors():
    one = bag([1], 0)
    near = set_score_matrix("smooth_chamfer", one, one, 16.0).item()
    assert near == pytest.approx(1.0)
    twins = Embeddings(one.tokens.expand(1, 4, 4), torch.ones(1, 4, dtype=torch.bool))
    assert set_score_matrix("smooth_chamfer", twins, twins, 16.0).item() == pytest.approx(
        1 + math.log(4) / 16
    )


def test_a_sharp_one_does_not_overflow():
    images, texts = (Embeddings(x.tokens.float(), x.mask) for x in CASES["ragged"])
    assert set_score_matrix("smooth_chamfer", images, texts, 1e4).isfinite().all()
