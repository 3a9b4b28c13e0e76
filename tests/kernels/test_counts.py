"""Counted operations and bytes are those of the launched grids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from benchmarks.speed.gpu_counts import Count, count_attention, count_max_sim
from counterfoil import kernels
from counterfoil.gpu import max_sim as max_sim_kernel


class Counter:
    """What interpreted programs multiply, and the bytes of vectors in half precision they read."""

    def __init__(self) -> None:
        self.multiplied = self.read = 0


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    counter, builder = Counter(), InterpreterBuilder
    dot, load = builder.create_dot, builder.create_masked_load

    def create_dot(self, a, b, *more):
        counter.multiplied += a.data.shape[0] * a.data.shape[1] * b.data.shape[1]
        return dot(self, a, b, *more)

    def create_masked_load(self, pointers, mask, *more):
        if pointers.get_element_ty() == tl.bfloat16:
            counter.read += 2 * int(mask.data.sum())
        return load(self, pointers, mask, *more)

    monkeypatch.setattr(builder, "create_dot", create_dot)
    monkeypatch.setattr(builder, "create_masked_load", create_masked_load)
    with kernels.use("always"), torch.no_grad():
        yield counter


def vectors(lengths: np.ndarray, width: int) -> tuple[Tensor, Tensor]:
    """Vectors and the mask of items of these lengths."""
    mask = torch.arange(int(lengths.max())) < torch.from_numpy(lengths).unsqueeze(1)
    rng = torch.Generator().manual_seed(0)
    return torch.randn(*mask.shape, width, generator=rng).bfloat16(), mask


@pytest.mark.parametrize(
    ("score", "count", "regions", "width"),
    [
        (kernels.max_sim, count_max_sim, 36, 48),  # queries stay on the chip
        (kernels.max_sim, count_max_sim, 36, 130),
        (kernels.max_sim, count_max_sim, 300, 48),  # several blocks of a context
        (kernels.attention_scores, count_attention, 36, 70),
    ],
    ids=["MaxSim", "MaxSim, wide", "MaxSim, long", "attention"],
)
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_counts(score, count: Callable[..., Count], regions, width, direction, monkeypatch):
    monkeypatch.setattr(max_sim_kernel, "PROGRAMS", 4)
    sides = np.full(5, regions), np.arange(2, 21)
    images, texts = (vectors(lengths, width) for lengths in sides)
    with counting(monkeypatch) as counter:
        score(images[0], texts[0], images[1], texts[1], direction=direction)
    queries, contexts = sides[::-1] if direction == "t2i" else sides
    expected = count(queries, contexts, width)
    assert expected.plain == int(queries.sum()) * int(contexts.sum()) * width
    assert (counter.multiplied, counter.read) == (expected.multiplied, expected.read)
