"""The small protocol behind which libraries of near neighbours stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

Vectors: TypeAlias = tuple[Tensor, Tensor]  # (N,) long numbers and (N, D) float32


class Finder(Protocol):
    """Proposes vectors that are probably near; the index then compares them itself.

    A finder may propose numbers that are dead or were never known: the index passes them over, so
    that a finder may be ahead of the index or behind it when something is killed.
    """

    def propose(self, queries: Tensor, k: int) -> Tensor:
        """About the k nearest of each query by inner product.

        Args:
            queries: (Q, D) float32.
            k: how many.

        Returns:
            (Q, K) long numbers, -1 for none; K is at most k.
        """
        ...

    def update(
        self, count: int, living: Callable[[], Vectors], more: Vectors | None, tag: str
    ) -> str:
        """Take in what an index is about to hold, before it counts.

        Args:
            count: how many vectors there will be.
            living: all of them.
            more: those of them that are new; None where none is.
            tag: a name that was not used before.

        Returns:
            What the finder is opened by from now on, "" where it keeps nothing; what was returned
            before can still be opened.
        """
        ...

    def forget(self, numbers: Tensor) -> None:
        """Drop what was deleted, now that it counts no more."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
