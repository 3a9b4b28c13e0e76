"""Queries on which two models differ most."""

from __future__ import annotations

from torch import Tensor

from counterfoil.evaluate.recall import Ranked


def differ(first: Ranked, second: Ranked, count: int) -> tuple[list[int], list[int]]:
    """Queries that the second model answers better than the first, and those it answers worse.

    They are in order of how many times better the rank is, so that from 100 to 10 is as much as
    from 10 to 1; at most one per image, and of equal ones the lower row first.

    Args:
        first: ranks under one model.
        second: ranks of the same queries under the other.
        count: how many of each, at most.

    Raises:
        ValueError: the ranks are of other queries.
    """
    if len(first) != len(second) or bool((first.images != second.images).any()):
        raise ValueError(
            f"two models were ranked on different queries, {len(first):,} and {len(second):,}; "
            "measure both on one split"
        )
    gain = (first.ranks.double() + 1).log() - (second.ranks.double() + 1).log()
    gain = gain.where(first.counted & second.counted, 0.0)
    return _most(gain, first.images, count), _most(-gain, first.images, count)


def _most(gain: Tensor, images: Tensor, count: int) -> list[int]:
    chosen: dict[int, int] = {}
    for query in gain.argsort(descending=True, stable=True).tolist():
        if gain[query] <= 0 or len(chosen) == count:
            break
        chosen.setdefault(int(images[query]), query)
    return list(chosen.values())
