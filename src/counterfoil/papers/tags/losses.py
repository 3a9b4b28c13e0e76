"""Word losses of TAGS-DC: predict masked words, detect wrong words, correct them."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import Needs, Scores, WordTask
from counterfoil.losses.base import Loss, Reduction

__all__ = ["WordLoss"]


@final
class WordLoss(Loss):
    """Cross entropy of one word task: mean over the words of an anchor pair, sum over the pairs.

    TAGS-DC (https://arxiv.org/abs/2111.03349): "masked" is masked language modelling, which yields
    the generator (Eq. 1), "doubt" is word detection (Eq. 8), "correct" word correction (Eq. 9).
    The mean divides by the number of words, not by the sum of their weights, as in the authors'
    code. An anchor without words adds 0. Where a task does not give the anchors of its words, all
    words have equal weight.

    Departs from the authors' code in: the logarithm of the softmax is not clamped, so that a word
    of which the model is confidently wrong still has a gradient.

    Args:
        task: name of the word task.
        weights: of the classes, or () for 1 each. TAGS-DC gives "doubt" 1.0 for a wrong word,
            class 0, and 0.11 for a right one, class 1.
        reduction: see `Loss`; "mean" is the authors' form.

    Raises:
        ValueError: a weight below 0, or weights for another number of classes than the task has.

    >>> scores = torch.ones(1, 1)
    >>> logits, labels, anchor = torch.zeros(3, 2), torch.tensor([0, 1, -1]), torch.zeros(3).long()
    >>> loss = WordLoss(task="doubt", weights=(1.0, 0.5))
    >>> round(loss(scores, words={"doubt": (logits, labels, anchor)}).item(), 3)
    0.52
    """

    def __init__(
        self, *, task: str, weights: tuple[float, ...] = (), reduction: Reduction = "sum"
    ) -> None:
        super().__init__(reduction=reduction)
        if any(not weight >= 0 for weight in weights):
            raise ValueError(f"weights={weights}: the weight of a class may not be below 0")
        self.task, self.weights = task, tuple(weights)
        self.needs = Needs(words=frozenset({task}), block=False)

    def forward(self, scores: Scores) -> Tensor:
        matrix, words = self.matrix(scores), scores.words[self.task]
        counted = words.labels >= 0
        cost = self.costs(words).masked_fill(~counted, 0)
        if words.anchor is None:
            return self.reduce(cost.sum() / counted.sum().clamp(min=1) * len(matrix.anchor), matrix)
        empty = cost.new_zeros(len(matrix.anchor))
        total = empty.index_add(0, words.anchor, cost)
        count = empty.index_add(0, words.anchor, counted.to(cost.dtype))
        return self.reduce((total / count.clamp(min=1)).sum(), matrix)

    def costs(self, words: WordTask) -> Tensor:
        """Return (M,) weighted cross entropies; arbitrary where the label is -1."""
        # -1 is no column to gather from: class 0 stands in, and `forward` masks the result
        labels, classes = words.labels.clamp(min=0), words.logits.shape[1]
        cost = -words.logits.log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
        if not self.weights:
            return cost
        if len(self.weights) != classes:
            raise ValueError(
                f"{len(self.weights)} weights were given for the {classes} classes of the word "
                f"task {self.task!r}; give one for each, or none"
            )
        return cost * torch.tensor(self.weights, dtype=cost.dtype, device=cost.device)[labels]
