"""The kernel of top-k lists equals the torch form."""

from __future__ import annotations

import pytest
import torch

from counterfoil import kernels
from counterfoil.gpu import top_k as kernel
from counterfoil.kernels import top_k
from tensor_sizes import Largest


def whole_numbers(*shape: int, seed: int) -> torch.Tensor:
    """Vectors whose products are exact, with many equal scores."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("queries", "answers", "k"), [(150, 700, 5), (3, 400, 90), (5, 4, 9), (1, 1, 1)]
)
def test_lists_are_equal_whatever_the_parts(queries, answers, k, dtype, monkeypatch):
    monkeypatch.setattr(kernel, "QUERIES", 130)
    monkeypatch.setattr(kernel, "ANSWERS", 256)
    x, y = whole_numbers(queries, 20, seed=0).to(dtype), whole_numbers(answers, 20, seed=1)
    y = y.to(dtype)
    groups = torch.arange(queries), torch.arange(answers) % max(2, queries // 2)
    for own in ((), groups):
        expected = top_k(x, y, k, *own)
        with kernels.use("always"), monkeypatch.context() as patch:
            patch.delattr(kernels, "_best_keys")  # the torch form
            scores, rows = top_k(x, y, k, *own)
        assert torch.equal(scores, expected[0])
        assert torch.equal(rows, expected[1])


def test_an_order_in_which_every_answer_beats_those_before():
    queries, answers = torch.ones(2, 1), torch.arange(1000.0).unsqueeze(1)
    with kernels.use("always"):
        scores, rows = top_k(queries, answers, 3)
    assert rows.tolist() == [[999, 998, 997]] * 2
    assert scores.tolist() == [[999.0, 998.0, 997.0]] * 2


def test_no_score_matrix(monkeypatch):
    monkeypatch.setattr(kernel, "QUERIES", 64)
    monkeypatch.setattr(kernel, "ANSWERS", 64)
    queries, answers = whole_numbers(256, 4, seed=0), whole_numbers(512, 4, seed=1)
    with kernels.use("always"), Largest() as largest:
        top_k(queries, answers, 4)
    assert largest.elements <= 64 * (64 + kernel.GROWTH * 4)
