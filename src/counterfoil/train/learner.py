"""What a training trains, and what it feeds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from counterfoil.matcher import Matcher
from counterfoil.records import Pairs
from counterfoil.train.guidance import Watch


class Fed(Protocol):
    """A batch, the same on every process but for the items that each one reads."""

    @property
    def anchors(self) -> Pairs:
        """(B,) the pairs that are learnt from, on all processes together."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        ...


B = TypeVar("B", bound=Fed)
B_co = TypeVar("B_co", bound=Fed, covariant=True)


class Feed(Protocol[B_co]):
    """The batches of a training, each the same from the same seed wherever it begins."""

    @property
    def sampler(self) -> Sized:
        """Its length is the batches in an epoch."""
        ...

    def batches(self, start: int = 0) -> Iterator[B_co]:
        """Batch `start` of the training and those after it."""
        ...


class Learner(nn.Module, ABC, Generic[B]):
    """From a batch to named losses. This is what DistributedDataParallel wraps.

    Attributes:
        matcher: the model in training.
        watch: what looks at a step that is written down.
    """

    matcher: Matcher
    watch: Watch

    @abstractmethod
    def forward(self, batch: B) -> dict[str, Tensor]:
        """Weighted losses by name, of the whole batch; their sum is minimised."""

    @abstractmethod
    def level(self, batch: B) -> Tensor | None:
        """The loss if all scores were equal; None where that says nothing."""
