"""Sources of negatives made of what tests have at hand: samplers, roles, functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from counterfoil.core.types import Needs, Pairs, Role
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.negatives.sources import NegativeSource


class Drawn(NegativeSource):
    """Draws with a sampler; without one, says what a batch made by hand holds already."""

    seed_name = "draw"

    def __init__(self, roles: Any, sampler: Any = None) -> None:
        self.gives, self._sampler = Needs(roles=frozenset(roles)), sampler

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        return self._sampler.draw(texts, rng) if self._sampler else {}


def drawn(sampler: Any) -> Drawn:
    """A source that draws with this sampler."""
    return Drawn(sampler.provides, sampler)


class Guided(NegativeSource):
    """Targets of a function of the batch; with a second one, also of pairs."""

    def __init__(self, targets: Any, pairs: Any = None) -> None:
        self.gives = Needs(targets=True, pair_targets=frozenset(Role if pairs else ()))
        self._targets, self._pairs = targets, pairs

    def targets(self, batch: Any) -> Tensor:
        return self._targets(batch)

    def pair_targets(self, batch: Any, pairs: Pairs) -> Tensor:
        return self._pairs(batch, pairs)


def begun(source: Any, processor: Any, model: Any = None) -> Any:
    """A source that has been checked and has begun on a data set."""
    source.check(model, processor.dataset)
    source.begin(
        model, processor, WeightedSum(terms={"loss": (1.0, HardestTripletLoss())}), batches=1
    )
    return source
