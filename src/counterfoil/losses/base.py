"""Losses are pure functions of `Scores`; an objective is their weighted sum.

>>> from counterfoil.losses.triplet import HardestTripletLoss
>>> from counterfoil.core.config import lazy
>>> objective = total(triplet=(0.5, part(HardestTriplet, margin=0.2))).build()
>>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
>>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
>>> losses = objective(Scores({"inference": grid}))
>>> {name: round(loss.item(), 3) for name, loss in losses.items()}
{'triplet': 0.2}
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Literal, NamedTuple, cast, final

import torch
from torch import Tensor, nn

from counterfoil.core.config import Config, config
from counterfoil.core.types import INFERENCE, Role, ScoreMatrix, Scores

Reduction = Literal["sum", "mean"]


class Loss(nn.Module, ABC):
    """One scalar loss.

    Args:
        reduction: "sum" over the anchor pairs of the batch, as the field does it, or their "mean".

    Attributes:
        needs: roles that must be scored.
        needs_guide: whether its grid must carry a guide.
        needs_words: names of the word tasks that must be there.
        needs_grid: name of the grid it judges.
        needs_block: whether it looks at wrong pairs of that grid; else at the anchors alone.
        needs_guided: roles whose pairs must carry a guide too.
        begins: step up to which it is silent and its grid is not asked for.

    Raises:
        ValueError: another reduction.
    """

    needs: frozenset[Role] = frozenset()
    needs_guide: bool = False
    needs_words: frozenset[str] = frozenset()
    needs_grid: str = INFERENCE
    needs_block: bool = True
    needs_guided: frozenset[Role] = frozenset()
    begins: int = 0

    def __init__(self, *, reduction: Reduction = "sum") -> None:
        super().__init__()
        if reduction not in ("sum", "mean"):
            raise ValueError(f"reduction {reduction!r} is not known; use 'sum' or 'mean'")
        self.reduction = reduction

    @abstractmethod
    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""

    def grid(self, scores: Scores) -> ScoreMatrix:
        """The grid that this term judges."""
        return scores.grids[self.needs_grid]

    def reduced(self, total: Tensor, grid: ScoreMatrix) -> Tensor:
        """A sum over the batch, divided by its number of anchor pairs when the mean is wanted."""
        return total / len(grid.anchor) if self.reduction == "mean" else total


@final
class WeightedSum(nn.Module):
    """A named, weighted sum of terms.

    Args:
        terms: weight and term, by name.

    Raises:
        ValueError: no terms, a name that is no identifier, or a weight that is not finite.
    """

    def __init__(self, *, terms: Mapping[str, tuple[float, Loss]]) -> None:
        super().__init__()
        if not terms:
            raise ValueError("an objective needs at least one term")
        for name, (weight, _) in terms.items():
            if not name.isidentifier():
                raise ValueError(f"{name!r} cannot name a term; use letters, digits and _")
            if not math.isfinite(weight):
                raise ValueError(f"the weight of term {name!r} is {weight}; use a finite number")
        self.terms = nn.ModuleDict({name: term for name, (_, term) in terms.items()})
        self.weights = {name: float(weight) for name, (weight, _) in terms.items()}

    @property
    def needs(self) -> frozenset[Role]:
        """Roles that some term needs."""
        return frozenset[Role]().union(*(term.needs for term in self._terms()))

    @property
    def needs_guide(self) -> bool:
        """Whether some term needs a guide."""
        return any(term.needs_guide for term in self._terms())

    @property
    def needs_words(self) -> frozenset[str]:
        """Word tasks that some term needs."""
        return frozenset[str]().union(*(term.needs_words for term in self._terms()))

    @property
    def needs_grids(self) -> frozenset[str]:
        """Grids that some term judges."""
        return frozenset(term.needs_grid for term in self._terms())

    @property
    def needs_block(self) -> bool:
        """Whether some term looks at wrong pairs of the inference grid."""
        return any(term.needs_block and term.needs_grid == INFERENCE for term in self._terms())

    @property
    def needs_guided(self) -> frozenset[Role]:
        """Roles whose pairs some term wants guided."""
        return frozenset[Role]().union(*(term.needs_guided for term in self._terms()))

    def grids_at(self, step: int) -> frozenset[str]:
        """Grids that are judged at a step."""
        return frozenset(term.needs_grid for term in self._terms() if step >= term.begins)

    def forward(self, scores: Scores) -> dict[str, Tensor]:
        """Weighted losses by name; their sum is what is minimised.

        Scores in half precision are judged in float32: a sum over a batch needs it.
        """
        scores = _in_full_precision(scores)
        return {name: weight * self._loss(name, scores) for name, weight in self.weights.items()}

    def _loss(self, name: str, scores: Scores) -> Tensor:
        term = cast("Loss", self.terms[name])
        if scores.step < term.begins:
            return zero_loss(scores)
        loss: Tensor = term(scores)
        return loss

    def _terms(self) -> list[Loss]:
        return [cast("Loss", term) for term in self.terms.values()]


def weighted_sum(**terms: Loss | tuple[float, Loss]) -> Config[WeightedSum]:
    """An objective written down: `total(triplet=part(HardestTriplet), words=(0.1, part(...)))`.

    A term without a weight weighs 1.
    """
    weighted = {k: v if isinstance(v, tuple) else (1.0, v) for k, v in terms.items()}
    return config(WeightedSum, terms=weighted)


def _in_full_precision(scores: Scores) -> Scores:
    def grid(g: ScoreMatrix) -> ScoreMatrix:
        guide = None if g.guide is None else _full(g.guide)
        return replace(g, scores=_full(g.scores), anchor=_full(g.anchor), guide=guide)

    return replace(
        scores,
        grids={name: grid(g) for name, g in scores.grids.items()},
        pairs={role: _full(pair) for role, pair in scores.pairs.items()},
        guides={role: _full(guide) for role, guide in scores.guides.items()},
        words={n: replace(w, logits=_full(w.logits)) for n, w in scores.words.items()},
    )


def zero_loss(scores: Scores) -> Tensor:
    """A scalar loss of nothing."""
    return next(iter(scores.grids.values())).scores.new_zeros(())


def step_generator(scores: Scores, what: str) -> torch.Generator:
    """A generator for what a term draws at this step, the same on every process."""
    name = f"{scores.seed}/{what}".encode()
    return torch.Generator().manual_seed(int.from_bytes(sha256(name).digest()[:7], "big"))


def _full(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.half, torch.bfloat16) else tensor


# What is true and what is wrong in a block of scores: told by its mask, never by place.


@final
class PositiveScores(NamedTuple):
    """All P true pairs of a grid, text after text, and their scores.

    Where every text has one image, as in a batch of captions, these are the anchor pairs in order.
    """

    image: Tensor
    text: Tensor
    score: Tensor


@final
class HardestNegatives(NamedTuple):
    """(P,) highest score of a wrong text and of a wrong image; -inf where there is none."""

    text: Tensor
    image: Tensor


def hinge(negative: Tensor, positive: Tensor, margin: float) -> Tensor:
    """How far a negative is from staying `margin` below its positive, at least 0."""
    return (margin + negative - positive).clamp(min=0)


def positive_scores(grid: ScoreMatrix) -> PositiveScores:
    """The true pairs of a grid."""
    text, image = grid.positive.T.nonzero(as_tuple=True)
    return PositiveScores(image, text, grid.scores[image, text])


def negative_mask(grid: ScoreMatrix) -> Tensor:
    """(I, T) scores, -inf where the pair is true."""
    return grid.scores.masked_fill(grid.positive, -torch.inf)


def hardest_negatives(grid: ScoreMatrix, true: PositiveScores) -> HardestNegatives:
    """The online hard negatives of each true pair; equal ones share the gradient."""
    wrong = negative_mask(grid)
    return HardestNegatives(wrong.amax(1)[true.image], wrong.amax(0)[true.text])
