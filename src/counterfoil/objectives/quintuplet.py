"""Offline hard negatives in the loss (AOQ, https://arxiv.org/abs/2003.03669).

Of each anchor pair (i, t) the in-batch block gives the online hard negatives t_on and i_on, and the
mined lists give t_off and i_off with their companions: the image of t_off and a caption of i_off.
With N mined negatives per anchor every offline hinge, and the online weight, is a mean over them;
N = 1 is the paper's.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from counterfoil.objectives.block import Hardest, hardest, hinge, positives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Grid, Role, Scores

OFFLINE = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE})
DERIVED = frozenset({Role.CROSS, Role.COMPANION})


@final
class Weights(NamedTuple):
    """(B, N) weight of the online hinge against a wrong text and against a wrong image."""

    text: Tensor
    image: Tensor


@final
class OfflineTriplet(Term):
    """Online hardest triplets plus a hinge against each mined negative (AOQ, Eq. 3, "OffTri").

    The authors released Eq. 5 only; this is the formula. Negatives are told by id.

    Args:
        online: margin of the in-batch hinges.
        offline: margin of the mined hinges.
        reduction: see `Term`.

    >>> grid = Grid(torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.eye(2).bool(),
    ...             anchor=torch.tensor([0.9, 0.7]))
    >>> pairs = {Role.HARD_TEXT: torch.tensor([[0.95], [0.6]]),
    ...          Role.HARD_IMAGE: torch.tensor([[0.8], [0.8]])}
    >>> round(OfflineTriplet()(Scores({"inference": grid}, pairs)).item(), 3)
    0.55
    """

    needs = OFFLINE

    def __init__(
        self, *, online: float = 0.2, offline: float = 0.0, reduction: Reduction = "sum"
    ) -> None:
        super().__init__(reduction=reduction)
        self.online, self.offline = online, offline

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        online = _in_batch(grid, _online(grid), self.online, None)
        return self.reduced(online + _mined(scores, grid, OFFLINE, self.offline), grid)


@final
class OfflineQuintuplet(Term):
    """`OfflineTriplet` plus two hinges against mined pairs that share nothing with the anchor.

    AOQ, Eq. 4, "OffQuin". The authors released Eq. 5 only; this is the formula, with the second
    derived pair being the image of t_off with a caption of i_off.

    Args:
        online: margin of the in-batch hinges.
        offline: margin of the mined hinges.
        reduction: see `Term`.

    >>> grid = Grid(torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.eye(2).bool(),
    ...             anchor=torch.tensor([0.9, 0.7]))
    >>> pairs = {role: torch.tensor([[0.95], [0.6]]) for role in OfflineQuintuplet().needs}
    >>> round(OfflineQuintuplet()(Scores({"inference": grid}, pairs)).item(), 3)
    0.6
    """

    needs = OFFLINE | DERIVED

    def __init__(
        self, *, online: float = 0.2, offline: float = 0.0, reduction: Reduction = "sum"
    ) -> None:
        super().__init__(reduction=reduction)
        self.online, self.offline = online, offline

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        online = _in_batch(grid, _online(grid), self.online, None)
        return self.reduced(online + _mined(scores, grid, self.needs, self.offline), grid)


@final
class AdaptiveQuintuplet(Term):
    """`OfflineQuintuplet` whose online hinges are weighted by how hard the mined negatives are.

    AOQ, Eq. 5, "AdapOffQuin"; the weight is beta - (offline score - online score) / alpha, and the
    gradient passes through it (Eq. 6). Departs from the authors' code in: negatives are told by
    id; the online negative is always the hardest; an anchor may have several mined negatives.

    Args:
        online: margin of the in-batch hinges.
        offline: margin of the mined hinges.
        alpha: score difference that changes the weight by one.
        beta: weight when both negatives are equally hard.
        clamp: whether a weight stops at 0; the authors let it become negative.
        detach: whether the weight counts as a constant in the gradient, unlike Eq. 6.
        reduction: see `Term`.

    Raises:
        ValueError: an alpha that is not positive.

    >>> grid = Grid(torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.eye(2).bool(),
    ...             anchor=torch.tensor([0.9, 0.7]))
    >>> pairs = {role: torch.tensor([[0.95], [0.6]]) for role in AdaptiveQuintuplet().needs}
    >>> round(AdaptiveQuintuplet()(Scores({"inference": grid}, pairs)).item(), 3)
    0.95
    """

    needs = OFFLINE | DERIVED

    def __init__(
        self,
        *,
        online: float = 0.2,
        offline: float = 0.0,
        alpha: float = 0.3,
        beta: float = 1.5,
        clamp: bool = False,
        detach: bool = False,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not alpha > 0:
            raise ValueError(f"an alpha of {alpha} was given; it must be positive")
        self.online, self.offline, self.alpha, self.beta = online, offline, alpha, beta
        self.clamp, self.detach = clamp, detach

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        hard = _online(grid)
        online = _in_batch(grid, hard, self.online, self._weights(scores, hard))
        return self.reduced(online + _mined(scores, grid, self.needs, self.offline), grid)

    def weights(self, scores: Scores) -> Weights:
        """The weights of the online hinges; beta where the batch has no negative."""
        return self._weights(scores, _online(self.grid(scores)))

    def _weights(self, scores: Scores, hard: Hardest) -> Weights:
        return Weights(
            self._weight(scores.pairs[Role.HARD_TEXT], hard.text),
            self._weight(scores.pairs[Role.HARD_IMAGE], hard.image),
        )

    def _weight(self, offline: Tensor, online: Tensor) -> Tensor:
        present = (online != -torch.inf).unsqueeze(1)
        gap = torch.where(present, offline - online.unsqueeze(1), 0.0)
        weight = self.beta - gap / self.alpha
        weight = weight.clamp(min=0) if self.clamp else weight
        return weight.detach() if self.detach else weight


def _online(grid: Grid) -> Hardest:
    """(B,) online hard negatives of the anchor pairs."""
    true = positives(grid)
    assert len(true.text) == len(grid.anchor), "every text of the block is one anchor's"
    return hardest(grid, true)


def _in_batch(grid: Grid, hard: Hardest, margin: float, weights: Weights | None) -> Tensor:
    texts = hinge(hard.text, grid.anchor, margin)
    images = hinge(hard.image, grid.anchor, margin)
    if weights is not None:
        texts, images = texts * weights.text.mean(1), images * weights.image.mean(1)
    return (texts + images).sum()


def _mined(scores: Scores, grid: Grid, roles: frozenset[Role], margin: float) -> Tensor:
    """Hinges of mined pairs against their anchors; members of an enum keep the order fixed."""
    anchor = grid.anchor.unsqueeze(1)
    parts = [hinge(scores.pairs[role], anchor, margin).mean(1) for role in Role if role in roles]
    return torch.stack(parts).sum()
