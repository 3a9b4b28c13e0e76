"""What a training says of itself beside its losses: of its guide, and of written captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from counterfoil.objectives.guided import agreement
from counterfoil.records import INFERENCE, Grid, Role
from counterfoil.train.difficulty import difficulty

DISAGREE, DIVERGENCE, OUTRANKED = "guide_disagree", "guide_kl", "guide_outranked"
SHARE = "share_"  # begins the names of the terms' shares of the gradient, in percent


@final
class Watch:
    """Looks at steps when it is told to, and at no others: what it costs is then nothing.

    Attributes:
        wanted: whether the next step is to be looked at.
        seen: figures of the last one that was, by name, see `guided` and `difficulty`.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.seen: dict[str, Tensor] = {}

    def look(
        self,
        grids: Mapping[str, Grid],
        losses: Mapping[str, Tensor],
        pairs: Mapping[Role, Tensor] | None = None,
    ) -> None:
        """Note the figures of a step, if they are wanted and it has a guide or written captions."""
        if not self.wanted:
            return
        grid, written = grids[INFERENCE], (pairs or {}).get(Role.WRITTEN)
        self.seen = {} if grid.guide is None else guided(grids, losses)
        if written is not None:
            self.seen |= difficulty(written, grid)

    def take(self) -> dict[str, float]:
        """The figures as numbers, once."""
        seen, self.seen = self.seen, {}
        return {name: round(value.item(), 6) for name, value in seen.items()}


def guided(grids: Mapping[str, Grid], losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Figures of one guided step.

    Args:
        grids: what was judged by name, the inference grid with its guide among it.
        losses: weighted losses by name, whose graph is kept.

    Returns:
        Percent of anchors whose hardest negative is another one for the guide, the mean divergence,
        percent of anchors whose positive some negative outranks in the guide (an alarm for false
        negatives), and each term's share, in percent, of the norms of the gradients that reach
        the scores of all grids.
    """
    found = agreement(grids[INFERENCE])
    scores = [grid.scores for grid in grids.values() if grid.scores.requires_grad]
    norms = {name: _pull(loss, scores) for name, loss in losses.items()}
    total = torch.stack(list(norms.values())).sum().clamp(min=1e-30)
    return {
        DISAGREE: found.disagree,
        DIVERGENCE: found.divergence,
        OUTRANKED: found.outranked,
        **{f"{SHARE}{name}": 100 * norm / total for name, norm in norms.items()},
    }


def in_words(figures: Mapping[str, float]) -> str:
    """The same in a few words, for a line of progress; "" where nothing was seen."""
    if DISAGREE not in figures:
        return ""
    shares = " ".join(
        f"{name.removeprefix(SHARE)} {share:.0f} %"
        for name, share in figures.items()
        if name.startswith(SHARE)
    )
    return (
        f"{figures[DISAGREE]:.0f} % of hardest negatives differ from the guide's, "
        f"KL {figures[DIVERGENCE]:.2g}, gradient {shares}"
    )


def _pull(loss: Tensor, scores: Sequence[Tensor]) -> Tensor:
    """Norm of a loss's gradient with respect to the scores."""
    if not (loss.requires_grad and scores):
        return loss.new_zeros(())
    found = torch.autograd.grad(loss, scores, retain_graph=True, materialize_grads=True)
    norm: Tensor = torch.cat([gradient.flatten().float() for gradient in found]).norm()
    return norm
