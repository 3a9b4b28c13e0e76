"""The rank of every true pair among the wrong counterparts that share its image."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.engine.sweep import Reducer
from counterfoil.engine.tiles import Tile


@final
class PairRanks(Reducer):
    """Counts, for every text, the wrong texts that its image prefers to it.

    `Ranks` looks at the best true text of an image; here each of them has a rank of its own, and
    the others count neither for nor against it. The wrong images that a text prefers to its own are
    what ``Ranks("text", ...)`` counts, since a text has one image.
    """

    def __init__(self, owner: Tensor) -> None:
        """A count for every text.

        Args:
            owner: (T,) image row that each text describes, -1 for none.
        """
        self.ahead = owner

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Allocate the counts, and group the texts by their image."""
        assert self.ahead is not None
        assert len(self.ahead) == texts
        owner = self.ahead = self.ahead.to(device)
        self._level = torch.full((texts,), -torch.inf, device=device)
        self._count = torch.zeros(texts, dtype=torch.long, device=device)
        self._many = torch.bincount(owner[owner >= 0], minlength=images)
        self._order = owner.argsort(stable=True)
        self._first = self._many.cumsum(0) - self._many + (owner < 0).sum()

    def look(self, tile: Tile) -> None:
        """Remember the scores of true pairs, with the very bits they have in the pass."""
        row, column = tile.true(self._owner)
        self._level[tile.texts[column]] = tile.scores[row, column]

    def agree(self) -> None:
        """Take the levels of whoever saw them."""
        self._level = world.gather(self._level).amax(0)

    def update(self, tile: Tile) -> None:
        """Count what is above each true text of the tile's images, and level with a lower row."""
        true = tile.true(self._owner)
        hidden = tile.scores[true]
        tile.scores[true] = -torch.inf
        many = self._many[tile.images]
        for place in range(int(many.max())):
            rows = (many > place).nonzero().squeeze(1)
            self._add(tile, rows, self._order[self._first[tile.images[rows]] + place])
        tile.scores[true] = hidden

    def merge(self) -> None:
        """Add the counts of all processes."""
        self._count = world.gather(self._count).sum(0)

    def ranks(self) -> Tensor:
        """(T,) long 0-based rank of each text among its image's wrong texts, -1 for one of none.

        Of equal scores the lower row comes first, as in `TopK`.
        """
        return self._count.masked_fill(self._owner < 0, -1)

    @property
    def _owner(self) -> Tensor:
        assert self.ahead is not None
        return self.ahead

    def _add(self, tile: Tile, rows: Tensor, text: Tensor) -> None:
        """Count for one text of each of these rows of the tile."""
        level, scores = self._level[text].unsqueeze(1), tile.scores[rows]
        before = scores > level
        before |= (scores == level) & (tile.texts < text.unsqueeze(1))
        before &= scores > -torch.inf  # a level of -inf must not count the true texts hidden here
        self._count[text] += before.sum(1)
