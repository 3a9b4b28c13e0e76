"""What papers print, beside which our own numbers are set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final


@final
@dataclass(frozen=True, slots=True)
class Published:
    """One row of a paper's table; recalls are percent, "any hit".

    Attributes:
        method: as the paper calls it.
        dataset: "flickr30k-1k", "coco-1k" (mean of five folds) or "coco-5k".
        i2t: R@1, R@5, R@10, caption retrieval.
        t2i: R@1, R@5, R@10, image retrieval.
        models: how many models are averaged; 1 is a single model.
        source: paper and table, or who measured it.
    """

    method: str
    dataset: Literal["flickr30k-1k", "coco-1k", "coco-5k"]
    i2t: tuple[float, float, float]
    t2i: tuple[float, float, float]
    models: int
    source: str

    @property
    def rsum(self) -> float:
        """Sum of the six recalls."""
        return round(sum(self.i2t) + sum(self.t2i), 1)
