"""Coarse to fine: one matcher proposes the k best, others put them in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from counterfoil.engine.scored import score_pairs
from counterfoil.engine.select import NOTHING, descending, rank_keys, rows_of, scores_of
from counterfoil.engine.tiles import Member, Side


@final
class Rescored:
    """Scores of all pairs in two sets of lists; a pair that stands in both is scored once.

    Args:
        members: matchers with what they encoded; their mean counts.
        texts: (I, h) proposed text rows, -1 for none.
        images: (T, h') proposed image rows, -1 for none.
        device: where to compute, see `sweep`.
    """

    def __init__(
        self,
        members: Sequence[Member],
        texts: Tensor,
        images: Tensor,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        self._lists: dict[Side, Tensor] = {"image": texts.cpu(), "text": images.cpu()}
        self._count = max(1, len(images))
        places = [self._places(side)[self._lists[side] >= 0] for side in self._lists]
        self._pairs = torch.cat(places).unique()  # type: ignore[no-untyped-call]
        image = torch.div(self._pairs, self._count, rounding_mode="floor")
        text = self._pairs - image * self._count
        self._scores = score_pairs(members, image, text, device=device)

    def __len__(self) -> int:
        return len(self._pairs)

    def scores(self, side: Side) -> Tensor:
        """(Q, h) float32 scores of the proposals of one side, -inf where there is none."""
        none = self._lists[side] < 0
        if not len(self._pairs):
            return torch.full(none.shape, -torch.inf)
        place = torch.searchsorted(self._pairs, self._places(side)).clamp_(max=len(self) - 1)
        return self._scores[place].masked_fill_(none, -torch.inf)

    def best(self, side: Side, k: int) -> tuple[Tensor, Tensor]:
        """(Q, k) int32 rows and (Q, k) scores, best first; ties to the lower row, -1 where short.

        Args:
            side: who asks.
            k: how many to keep, at most the length of the proposals.
        """
        scores, rows = self.scores(side), self._lists[side].long()
        keys = rank_keys(scores, rows.clamp(min=0)).masked_fill_(scores.isneginf(), NOTHING)
        keys = descending(keys)[:, :k].contiguous()
        return rows_of(keys).int(), scores_of(keys)

    def _places(self, side: Side) -> Tensor:
        """(Q, h) a number for each pair, ascending by image and then by text."""
        rows = self._lists[side].long()
        query = torch.arange(len(rows)).unsqueeze(1)
        return query * self._count + rows if side == "image" else rows * self._count + query
