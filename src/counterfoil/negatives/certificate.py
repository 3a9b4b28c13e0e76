"""Why lists from half precision are those of single precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from counterfoil.engine.rerank import Rescored
from counterfoil.engine.topk import TopK


@final
@dataclass(frozen=True, slots=True)
class Certificate:
    """Why lists from half precision are those of single precision.

    A query whose k-th score in float32 is above the last bfloat16 score on its short list by more
    than `bound` can have missed nothing, as long as no score of the matrix is off by more than
    that. All others were mined again in float32.

    Attributes:
        images: how many images asked.
        texts: how many texts asked.
        certain_images: images whose first lists were certain.
        certain_texts: texts whose first lists were certain.
        pairs: how many pairs were scored again in float32.
        error: largest difference between the two scores of a pair among these.
        bound: the difference that no pair was taken to exceed.
        measured: whether the bound is a multiple of `error`, or was given.
    """

    images: int
    texts: int
    certain_images: int
    certain_texts: int
    pairs: int
    error: float
    bound: float
    measured: bool

    def in_words(self) -> str:
        """The whole of it as a sentence."""
        source = f"{self.bound / self.error:g} times that" if self.error else "the same"
        source = source if self.measured else "as given"
        return (
            f"{self.certain_images:,} of {self.images:,} images and {self.certain_texts:,} of "
            f"{self.texts:,} texts were certain at once, the others were mined again in float32; "
            f"{self.pairs:,} pairs were scored twice and differed by {self.error:.2g} at most, and "
            f"the bound was {self.bound:.2g}, {source}"
        )


def disagreement(near: TopK, rescored: Rescored) -> float:
    """Largest difference between the two scores of a pair on the short lists.

    Args:
        near: the short lists, merged.
        rescored: the scores of their pairs in float32.
    """
    listed = near.rows.cpu() >= 0
    if not bool(listed.any()):
        return 0.0
    coarse, fine = near.scores.cpu()[listed], rescored.scores(near.query)[listed]
    return float((coarse.double() - fine.double()).abs().max())


def certain(near: TopK, answers: int, scores: Tensor, bound: float) -> Tensor:
    """(Q,) whether nothing that was left out can belong to a list.

    Args:
        near: the short lists, merged.
        answers: how many counterparts there are; lists as long as that have left out nothing.
        scores: (Q, k) float32 scores of the lists, best first.
        bound: by how much no score is off.
    """
    last = near.scores.cpu()[:, -1].double()
    return last.isneginf() | (near.k >= answers) | (scores[:, -1].double() > last + bound)
