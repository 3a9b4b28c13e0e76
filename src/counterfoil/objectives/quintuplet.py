"""Offline hard negatives in the loss (AOQ, https://arxiv.org/abs/2003.03669).

Of each anchor pair (i, t) the in-batch block gives the online hard negatives t_on and i_on, and the
mined lists give t_off and i_off with their companions: the image of t_off and a caption of i_off.
With N mined negatives per anchor every offline hinge, and the online weight, is a mean over them;
N = 1 is the paper's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from counterfoil.core.literals import parse_literal
from counterfoil.objectives.block import Hardest
from counterfoil.objectives.offline import DERIVED, OFFLINE, in_batch, mined, online_negatives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Role, Scores

Reference = Literal["offline", "positive"]


@final
class Weights(NamedTuple):
    """Weights of the online hinges against a wrong text and against a wrong image.

    (B, N), or (B, 1) where the positive is the reference.
    """

    text: Tensor
    image: Tensor


@final
class OfflineTriplet(Term):
    """Online hardest triplets plus a hinge against each mined negative (AOQ, Eq. 3, "OffTri").

    The authors released Eq. 5 only; this is the formula. Negatives are told by id.

    Args:
        online: margin of the in-batch hinges; None leaves them out ("OnlyOffline" of Table 3).
        offline: margin of the mined hinges.
        squared: whether every hinge is squared, the alternative that section 3.3 names.
        reduction: see `Term`.

    >>> from counterfoil.records import Grid
    >>> grid = Grid(torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.eye(2).bool(),
    ...             anchor=torch.tensor([0.9, 0.7]))
    >>> pairs = {Role.HARD_TEXT: torch.tensor([[0.95], [0.6]]),
    ...          Role.HARD_IMAGE: torch.tensor([[0.8], [0.8]])}
    >>> round(OfflineTriplet()(Scores({"inference": grid}, pairs)).item(), 3)
    0.55
    """

    needs = OFFLINE

    def __init__(
        self,
        *,
        online: float | None = 0.2,
        offline: float = 0.0,
        squared: bool = False,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        self.online, self.offline, self.squared = online, offline, squared

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        return _hinged(self, scores)


@final
class OfflineQuintuplet(Term):
    """`OfflineTriplet` plus two hinges against mined pairs that share nothing with the anchor.

    AOQ, Eq. 4, "OffQuin". The authors released Eq. 5 only; this is the formula, with the second
    derived pair being the image of t_off with a caption of i_off.

    Args:
        online: margin of the in-batch hinges; None leaves them out ("OnlyOffline" of Table 3).
        offline: margin of the mined hinges.
        squared: whether every hinge is squared, the alternative that section 3.3 names.
        reduction: see `Term`.

    >>> from counterfoil.records import Grid
    >>> grid = Grid(torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.eye(2).bool(),
    ...             anchor=torch.tensor([0.9, 0.7]))
    >>> pairs = {role: torch.tensor([[0.95], [0.6]]) for role in OfflineQuintuplet().needs}
    >>> round(OfflineQuintuplet()(Scores({"inference": grid}, pairs)).item(), 3)
    0.6
    """

    needs = OFFLINE | DERIVED

    def __init__(
        self,
        *,
        online: float | None = 0.2,
        offline: float = 0.0,
        squared: bool = False,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        self.online, self.offline, self.squared = online, offline, squared

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        return _hinged(self, scores)


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
        reference: whose score the online score is compared with: the "offline" negative's, or the
            "positive" pair's, which is "w/o OfflineAdap" of Table 3; alpha and beta then have to
            be found anew.
        clamp: whether a weight stops at 0; the authors let it become negative.
        detach: whether the weight counts as a constant in the gradient, unlike Eq. 6.
        reduction: see `Term`.

    Raises:
        ValueError: an alpha that is not positive, or an unknown reference.

    >>> from counterfoil.records import Grid
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
        reference: Reference = "offline",
        clamp: bool = False,
        detach: bool = False,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not alpha > 0:
            raise ValueError(f"an alpha of {alpha} was given; it must be positive")
        parse_literal(Reference, reference, "a reference")
        self.online, self.offline, self.alpha, self.beta = online, offline, alpha, beta
        self.reference, self.clamp, self.detach = reference, clamp, detach

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        hard = online_negatives(grid)
        weights = self._weights(scores, hard)
        online = in_batch(grid, hard, self.online, text=weights.text, image=weights.image)
        return self.reduced(online + mined(scores, grid, self.needs, self.offline), grid)

    def weights(self, scores: Scores) -> Weights:
        """The weights of the online hinges; beta where the batch has no negative."""
        return self._weights(scores, online_negatives(self.grid(scores)))

    def _weights(self, scores: Scores, hard: Hardest) -> Weights:
        if self.reference == "positive":
            harder = self.grid(scores).anchor.unsqueeze(1)
            return Weights(self._weight(harder, hard.text), self._weight(harder, hard.image))
        texts, images = scores.pairs[Role.HARD_TEXT], scores.pairs[Role.HARD_IMAGE]
        return Weights(self._weight(texts, hard.text), self._weight(images, hard.image))

    def _weight(self, harder: Tensor, online: Tensor) -> Tensor:
        present = (online != -torch.inf).unsqueeze(1)
        gap = torch.where(present, harder - online.unsqueeze(1), 0.0)
        weight = self.beta - gap / self.alpha
        weight = weight.clamp(min=0) if self.clamp else weight
        return weight.detach() if self.detach else weight


def _hinged(term: OfflineTriplet | OfflineQuintuplet, scores: Scores) -> Tensor:
    """Hinges in the batch and against all mined pairs that a term needs."""
    grid = term.grid(scores)
    online = in_batch(grid, online_negatives(grid), term.online, squared=term.squared)
    offline = mined(scores, grid, term.needs, term.offline, squared=term.squared)
    return term.reduced(online + offline, grid)
