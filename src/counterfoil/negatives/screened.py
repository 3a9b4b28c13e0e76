"""The hardest of many candidates, told by the model in training (UNITER's hard negatives)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.engine.items import everywhere
from counterfoil.engine.modes import evaluating
from counterfoil.matcher import Matcher
from counterfoil.negatives.proposal import Proposal, existing
from counterfoil.records import Batch, Encoded, Items, Pairs, Role, Views


@final
class Screened:
    """Keeps the hardest candidates of every anchor, in both directions.

    UNITER (Chen et al., "UNITER: universal image-text representation learning", ECCV 2020,
    https://arxiv.org/abs/1909.11740) and TAGS: of 399 random wrong images of a caption, and of as
    many wrong captions of an image, the 31 that score highest are trained on. All are scored in
    evaluation mode and without a graph; what is kept is encoded once more, as in training, where
    the batch does not hold it already. A candidate that is offered twice counts once. Where fewer
    are offered than are kept, the rest are none. Several processes screen the candidates of their
    own anchors; of equal scores the candidate offered first is harder.

    Departs from the authors' code in: images and captions are put together rightly (theirs shows
    captions' candidates a few of the regions only); each anchor may have both directions.

    Args:
        keep: how many of an anchor's candidates are trained on, in each direction.
        at_once: how many items are encoded, and pairs scored, at a time; memory grows with it.

    Raises:
        ValueError: a number below 1.
    """

    provides = screens = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE})
    provides_words = frozenset[str]()
    anchors_only = True

    def __init__(self, *, keep: int = 31, at_once: int = 512) -> None:
        for name, given in (("keep", keep), ("at_once", at_once)):
            if given < 1:
                raise ValueError(f"{name}={given}: at least 1 is needed")
        self.keep, self.at_once = keep, at_once

    def propose(
        self, matcher: Matcher, batch: Batch, views: Views, grid: Tensor, rng: torch.Generator
    ) -> Proposal:
        """The hardest candidates of the batch, the same on every process.

        Raises:
            ValueError: there are no candidates.
        """
        if batch.offered is None:
            raise ValueError(
                "there are no candidates to screen; say how many texts and images are offered for "
                "an anchor, as in texts=399, images=399"
            )
        kept = self._kept(matcher, batch, batch.offered)
        images = _Side.of(
            batch.image_rows, batch.offered[0], {r: pair.image for r, pair in kept.items()}
        )
        texts = _Side.of(
            batch.text_rows, batch.offered[1], {r: pair.text for r, pair in kept.items()}
        )
        pairs = {role: Pairs(images.places[role], texts.places[role]) for role in kept}
        return Proposal(images=images.new, texts=texts.new, pairs=pairs)

    def _kept(
        self, matcher: Matcher, batch: Batch, offered: tuple[Items, Items]
    ) -> dict[Role, Pairs]:
        """(B, k) corpus rows of what is kept, -1 for none; each process asks for its anchors."""
        count = len(batch.anchors.image)
        mine, kept = world.share(count), {}
        with evaluating([matcher]):
            images = self._encoded(matcher.encode_images, offered[0])
            texts = self._encoded(matcher.encode_texts, offered[1])
            for role, pairs in batch.candidates.items():
                share = torch.arange(mine.start, mine.stop, device=pairs.image.device)
                share = share.clamp(max=count - 1)
                some = distinct(Pairs(pairs.image[share], pairs.text[share]))
                at = Pairs(places(some.image, offered[0].ids), places(some.text, offered[1].ids))
                scores = self._offered_scores(matcher, images, texts, role, at)
                best = hardest(some, scores.view(some.shape), self.keep)
                kept[role] = Pairs(*(world.gather(s).flatten(0, 1)[:count] for s in best))
        return kept

    def _offered_scores(
        self, matcher: Matcher, images: Encoded, texts: Encoded, role: Role, at: Pairs
    ) -> Tensor:
        """Scores of the candidates of a role, -inf where there is none."""
        return existing(at.flatten(), lambda pairs: self._scores(matcher, images, texts, pairs))

    def _encoded(self, encode: Callable[[Items], Encoded], items: Items) -> Encoded:
        starts = range(0, len(items), self.at_once)
        return Encoded.cat([encode(items.rows(slice(s, s + self.at_once))) for s in starts])

    def _scores(self, matcher: Matcher, images: Encoded, texts: Encoded, pairs: Pairs) -> Tensor:
        """(P,) scores, a few pairs with what they are made of at a time."""
        found = []
        for start in range(0, len(pairs.image), self.at_once):
            part = slice(start, start + self.at_once)
            image, left = torch.unique(pairs.image[part], return_inverse=True)
            text, right = torch.unique(pairs.text[part], return_inverse=True)
            some = images.rows(image), texts.rows(text)
            found.append(matcher.listed(*some, Pairs(left, right)).float())
        return torch.cat(found)


@final
@dataclass(frozen=True, slots=True)
class _Side:
    """Where the images, or the texts, of what is kept stand.

    Attributes:
        places: by role, in the pool and the new items behind it; -1 for none.
        new: what the pool does not hold, if anything.
    """

    places: Mapping[Role, Tensor]
    new: Items | None

    @classmethod
    def of(cls, pool: Tensor, offered: Items, kept: Mapping[Role, Tensor]) -> Self:
        """Collect what is kept from the processes to which it was offered.

        Args:
            pool: (P,) corpus rows of the batch's pool.
            offered: this process's items.
            kept: (B, k) corpus rows by role, the same on every process.
        """
        rows = torch.cat(list(kept.values()), 1)
        pool = pool.to(rows.device)
        wanted = torch.unique(rows)
        wanted = wanted[(wanted >= 0) & ~torch.isin(wanted, pool)]
        known = torch.cat([pool, wanted])
        found = {role: places(some, known) for role, some in kept.items()}
        if not len(wanted):
            return cls(found, None)
        return cls(found, _collected(wanted, rows, offered))


def distinct(pairs: Pairs) -> Pairs:
    """(B, N) pairs, both sides -1 where one is or where the same one stands further left."""
    rows = pairs.image * (pairs.text.amax() + 2) + pairs.text
    ordered, order = rows.sort(dim=1, stable=True)
    again = torch.zeros_like(rows, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    none = torch.zeros_like(again).scatter(1, order, again) | (pairs.image < 0) | (pairs.text < 0)
    return Pairs(pairs.image.masked_fill(none, -1), pairs.text.masked_fill(none, -1))


def hardest(pairs: Pairs, scores: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """(B, k) image and text of the pairs that score highest, -1 where the score is -inf."""
    ranked, order = scores.sort(dim=1, descending=True, stable=True)
    order, none = order[:, :keep], ranked[:, :keep].isneginf()
    image, text = pairs.image.gather(1, order), pairs.text.gather(1, order)
    return image.masked_fill(none, -1), text.masked_fill(none, -1)


def places(rows: Tensor, known: Tensor) -> Tensor:
    """Where rows stand among those that are known, for the first time; -1 where a row is -1."""
    ordered, order = known.sort(stable=True)
    found = order[torch.searchsorted(ordered, rows.contiguous()).clamp(max=len(known) - 1)]
    return found.masked_fill(rows < 0, -1)


def _collected(wanted: Tensor, kept: Tensor, offered: Items) -> Items:
    """The items of rows that some process was offered, on every process.

    Args:
        wanted: (U,) corpus rows, ascending.
        kept: (B, N) which anchors keep them.
        offered: this process's items.
    """
    each = -(-len(kept) // world.size())
    anchor = torch.arange(len(kept), device=kept.device).unsqueeze(1).expand_as(kept)
    at = torch.searchsorted(wanted, kept.contiguous()).clamp(max=len(wanted) - 1)
    there = wanted[at] == kept
    first = torch.full_like(wanted, len(kept)).scatter_reduce(0, at[there], anchor[there], "amin")
    holder = first // each
    most = int(holder.bincount(minlength=world.size()).max())
    own = wanted[holder == world.rank()]
    own = torch.cat([own, offered.ids[:1].expand(most - len(own))])
    whole = everywhere(offered.rows(places(own, offered.ids)), most * world.size())
    return whole.rows(places(wanted, whole.ids))
