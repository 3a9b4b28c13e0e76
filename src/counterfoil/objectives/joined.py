"""Contrastive cross-entropy over the block and over candidates from elsewhere."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterfoil.objectives.block import negatives, positives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Role, Scores
from counterfoil.spec import unknown


@final
class JoinedInfoNCE(Term):
    """`InfoNCE` in which candidates of some roles stand beside the wrong ones of the block.

    NegCLIP (https://arxiv.org/abs/2210.01936), section 4: written captions are appended to the
    texts of a batch and images choose among all of them, while texts choose among images alone.
    Which captions an image is asked about is up to what proposes them, see
    `counterfoil.negatives.written.Written`. NegCLIP's hard images are in the block itself, see
    `counterfoil.negatives.neighbours.Neighbours`; those of `images` have no captions of their own
    and compete for their anchor's alone.

    Args:
        texts: roles whose texts join the wrong texts of an anchor's image.
        images: roles whose images join the wrong images of an anchor's text.
        temperature: scores are divided by it.
        reduction: see `Term`.

    Raises:
        ValueError: a temperature that is not positive, no role at all, or an unknown one.

    >>> from counterfoil.records import Grid
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> loss = JoinedInfoNCE(temperature=0.1, reduction="mean")
    >>> none = {Role.WRITTEN: torch.tensor([[-torch.inf], [-torch.inf]])}
    >>> round(loss(Scores({"inference": grid}, none)).item(), 4)
    0.4073
    >>> foils = {Role.WRITTEN: torch.tensor([[0.9], [0.6]])}
    >>> round(loss(Scores({"inference": grid}, foils)).item(), 4)
    0.6227
    """

    def __init__(
        self,
        *,
        texts: tuple[str, ...] = ("written",),
        images: tuple[str, ...] = (),
        temperature: float = 0.07,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not temperature > 0:
            raise ValueError(f"a temperature of {temperature} was given; it must be positive")
        known = [role.value for role in Role]
        for role in (*texts, *images):
            if role not in known:
                raise ValueError(unknown(role, known, "a role of a pair"))
        if not (texts or images):
            raise ValueError("no role joins the block; name one in texts or images, or use InfoNCE")
        self.temperature = temperature
        self.texts, self.images = tuple(map(Role, texts)), tuple(map(Role, images))
        self.needs = frozenset({*self.texts, *self.images})

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        true, wrong = positives(grid), negatives(grid)
        assert len(true.text) == len(grid.anchor), "every text of the block is one anchor's"
        chosen = (
            (wrong[true.image], self.texts),
            (wrong.T[true.text], self.images),
        )
        costs = [
            softplus(self._logit(torch.cat([block, *(scores.pairs[r] for r in roles)], 1), true[2]))
            for block, roles in chosen
        ]
        return self.reduced(torch.stack(costs).sum() / 2, grid)

    def _logit(self, wrong: Tensor, true: Tensor) -> Tensor:
        """(B,) of all wrong ones together, above the true one."""
        return (wrong / self.temperature).logsumexp(1) - true / self.temperature
