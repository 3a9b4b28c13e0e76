"""A reducer that sees only what may be a negative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.engine.modes import evaluating
from counterfoil.engine.sweep import Reducer
from counterfoil.engine.tiles import Member, Side, Tile, not_a_number, pick
from counterfoil.engine.topk import TopK
from counterfoil.negatives.exclusions import Exclusions


@final
@dataclass(frozen=True, slots=True)
class Window:
    """Between which scores a negative may lie; see `counterfoil.negatives.filters.FilterPlan`."""

    lowest: float | None = None
    highest: float | None = None
    below_positive: float | None = None
    below_share: float | None = None
    guided: float | None = None

    @property
    def relative(self) -> bool:
        """Whether it depends on the anchors' positives."""
        return any(x is not None for x in (self.below_positive, self.below_share, self.guided))

    def limits(self, positive: Tensor) -> Tensor | None:
        """(Q,) the highest scores allowed.

        Args:
            positive: (Q,) of each anchor, infinite where it has none.
        """
        none = torch.full_like(positive, torch.inf)
        limits = []
        if self.highest is not None:
            limits.append(torch.full_like(positive, self.highest))
        if self.below_positive is not None:
            limits.append((positive - self.below_positive).where(positive.isfinite(), none))
        if self.below_share is not None:
            part = positive - (1 - self.below_share) * positive.abs()
            limits.append(part.where(positive.isfinite(), none))
        return torch.stack(limits).amin(0) if limits else None

    def guide_limits(self, positive: Tensor) -> Tensor:
        """(Q,) the highest scores of the guide allowed, as `limits`."""
        assert self.guided is not None
        limits = positive - self.guided
        return limits.where(positive.isfinite(), torch.full_like(positive, torch.inf))


@final
class Guides:
    """Models that score the tiles of another one's sweep; each tile once for both directions.

    Args:
        members: with what they have encoded; their mean counts.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self._last: tuple[Tile, Tensor] | None = None

    def scores(self, tile: Tile) -> Tensor:
        """(i, t) float32 mean scores of the tile's pairs.

        Raises:
            ValueError: one is not a number.
        """
        if self._last is None or self._last[0] is not tile:
            with evaluating(member.matcher for member in self.members):
                each = [self._one(member, tile) for member in self.members]
            found = each[0] if len(each) == 1 else torch.stack(each).mean(0)
            if bool(found.amax().isnan()):
                row, column = found.isnan().nonzero()[0].tolist()
                known = not_a_number(int(tile.images[row]), int(tile.texts[column]))
                raise ValueError(f"of the guide, {known}")
            self._last = tile, found
        return self._last[1]

    def _one(self, member: Member, tile: Tile) -> Tensor:
        where = tile.scores.device
        images = pick(member.images, tile.images.cpu(), len(tile.images), where)
        texts = pick(member.texts, tile.texts.cpu(), len(tile.texts), where)
        return member.matcher.grid(images, texts).float()


@final
class Filtered(Reducer):
    """Shows a reducer copies of the tiles with -inf in place of what is left out.

    Anchors' positives are read off the tiles with true pairs before the pass and exchanged, so
    they have the very bits of the pass on every process.

    Attributes:
        inner: the reducer that sees what is left.
    """

    def __init__(
        self,
        side: Side,
        reducer: Reducer,
        owner: Tensor,
        window: Window,
        *,
        excluded: Exclusions | None = None,
        guides: Guides | None = None,
        reduce: Literal["amin", "amax"] = "amin",
        skip: int = 0,
    ) -> None:
        """A filter for one direction.

        Args:
            side: who asks.
            reducer: where results go.
            owner: (T,) image row that each text describes, -1 for none.
            window: scores allowed.
            excluded: pairs that are no negatives.
            guides: models that judge too.
            reduce: which of an image's positives counts.
            skip: how many of the hardest to leave out; `reducer` is a `TopK` then.
        """
        self.side, self.window, self.skip = side, window, skip
        self.inner, self._given = _wider(reducer, skip), reducer
        self._owner, self._excluded, self._guides = owner, excluded, guides
        self._reduce: Literal["amin", "amax"] = reduce
        self.ahead = owner if window.relative else None

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Make room for the positives."""
        self.inner.start(images, texts, device)
        self._owner = self._owner.to(device)
        self.ahead = None if self.ahead is None else self._owner
        if self._excluded is not None:
            self._excluded.to(device)
        nothing = torch.inf if self._reduce == "amin" else -torch.inf
        anchors = images if self.side == "image" else texts
        self._positive = torch.full((2, anchors), nothing, device=device)  # the model's, a guide's
        self._settle()

    def look(self, tile: Tile) -> None:
        """Remember the scores of true pairs."""
        row, column = tile.true(self._owner)
        asked = tile.images[row] if self.side == "image" else tile.texts[column]
        views = [tile.scores] if self._guides is None else [tile.scores, self._guides.scores(tile)]
        for positive, scores in zip(self._positive, views):
            positive.scatter_reduce_(0, asked, scores[row, column], self._reduce)

    def agree(self) -> None:
        """Take the positives of all processes."""
        everybody = world.gather(self._positive)
        self._positive = everybody.amin(0) if self._reduce == "amin" else everybody.amax(0)
        self._settle()

    def update(self, tile: Tile) -> None:
        """Pass on what is left."""
        scores = tile.scores.clone()
        if self._limits is not None:
            _keep(scores, torch.le(tile.scores, self._of(self._limits, tile), out=_like(scores)))
        if self.window.lowest is not None:
            _keep(scores, torch.ge(tile.scores, self.window.lowest, out=_like(scores)))
        if self._guides is not None:
            guide, limits = self._guides.scores(tile), self._of(self._guide_limits, tile)
            _keep(scores, torch.le(guide, limits, out=_like(scores)))
        if self._excluded is not None:
            scores[self._excluded.places(tile)] = -torch.inf
        scores[tile.true(self._owner)] = -torch.inf
        self.inner.update(Tile(scores, tile.images, tile.texts))

    def merge(self) -> None:
        """Merge, and leave out the hardest."""
        self.inner.merge()
        if self.skip:
            assert isinstance(self.inner, TopK)
            assert isinstance(self._given, TopK)
            self._given.rows = self.inner.rows[:, self.skip :].contiguous()
            self._given.scores = self.inner.scores[:, self.skip :].contiguous()

    def state(self) -> Tensor:
        """What the inner reducer has kept; positives are looked at again."""
        assert isinstance(self.inner, TopK)
        return self.inner.state()

    def absorb(self, state: Tensor) -> None:
        """Let the inner reducer take up what another one has kept."""
        assert isinstance(self.inner, TopK)
        self.inner.absorb(state)

    def _settle(self) -> None:
        """Limits from positives, once for the whole pass."""
        self._limits = self.window.limits(self._positive[0])
        if self._guides is not None:
            self._guide_limits = self.window.guide_limits(self._positive[1])

    def _of(self, limits: Tensor, tile: Tile) -> Tensor:
        """The tile's limits, along its rows or its columns."""
        if self.side == "image":
            return limits[tile.images].unsqueeze(1)
        return limits[tile.texts].unsqueeze(0)


def _like(scores: Tensor) -> Tensor:
    return torch.empty_like(scores)


def _keep(scores: Tensor, within: Tensor) -> None:
    """Put -inf where `within` is 0 and leave what is there where it is 1.

    On the CPU a masked fill takes ten times as long.
    """
    torch.minimum(scores, within.sub_(0.5).div_(0.0), out=scores)


def _wider(reducer: Reducer, skip: int) -> Reducer:
    """The reducer, or one like it with room for what is skipped."""
    if not skip:
        return reducer
    assert isinstance(reducer, TopK)
    return TopK(reducer.query, reducer.queries, reducer.k + skip, reducer.owner)
