"""Negatives that are known before anything is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, final

import torch
from torch import Tensor

from counterfoil.corpus.relation import Relation
from counterfoil.records import Pairs, Role

AGAIN = 100  # times a pair that was judged true is drawn anew, where others are few


class Draws(Protocol):
    """Draws pairs of corpus rows for anchor captions.

    Attributes:
        provides: the roles it draws.
    """

    @property
    def provides(self) -> frozenset[Role]:
        """The roles it draws."""
        ...

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """For (B,) text rows, pairs of corpus rows by role, each (B, N); the same from one rng."""
        ...


@final
class Needed:
    """Only the roles that an objective needs, so that nothing is encoded for nobody.

    Args:
        draws: the source.
        needs: what the objective needs.

    Raises:
        ValueError: the objective needs nothing of what is drawn.
    """

    def __init__(self, draws: Draws, needs: frozenset[Role]) -> None:
        self.draws, self.provides = draws, draws.provides & needs
        if not self.provides:
            offered = ", ".join(sorted(repr(role.value) for role in draws.provides))
            raise ValueError(
                f"negatives are drawn in the roles {offered}, and no term of the objective needs "
                "any of them; choose another objective or train without negatives"
            )

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """The source's draw, without the roles that nobody needs."""
        drawn = self.draws.draw(texts, rng)
        return {role: pair for role, pair in drawn.items() if role in self.provides}


@final
class RandomNegatives:
    """Wrong texts and wrong images drawn uniformly from the whole corpus, with replacement.

    A pair that was judged true is drawn again.

    Args:
        relation: who describes whom. Texts that describe no image are drawn like any.
        texts: how many texts for an anchor.
        images: how many images for an anchor.

    Raises:
        ValueError: there is nothing wrong to draw, or a number below 0, or none of either.

    >>> negatives = RandomNegatives(relation=Relation(torch.tensor([0, 0, 1]), images=2))
    >>> drawn = negatives.draw(torch.tensor([0, 1]), torch.Generator().manual_seed(0))
    >>> drawn[Role.HARD_TEXT].text.flatten(), drawn[Role.HARD_IMAGE].image.flatten()
    (tensor([2, 2]), tensor([1, 1]))
    """

    def __init__(self, *, relation: Relation, texts: int = 1, images: int = 1) -> None:
        most = int(relation.counts.max()) if relation.images else 0
        if relation.images < 2 or most == len(relation.owner):
            raise ValueError(
                f"{relation.images} images with {len(relation.owner)} texts leave no wrong pair "
                "to draw; at least two described images are needed"
            )
        if min(texts, images) < 0 or not texts + images:
            raise ValueError(
                f"texts={texts} and images={images}: neither may be below 0, nor both be 0"
            )
        self.relation, self.counts = relation, {Role.HARD_TEXT: texts, Role.HARD_IMAGE: images}
        self.provides = frozenset(role for role, count in self.counts.items() if count)
        self._order = relation.owner.argsort(stable=True)
        self._owners = relation.owner[self._order].contiguous()
        self._besides = self._key(relation.besides) if relation.besides else None

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """(B, texts) wrong texts of the anchors' images and (B, images) wrong images of them."""
        return {
            role: self._pairs(role, texts, rng) for role in self.counts if role in self.provides
        }

    def _pairs(self, role: Role, texts: Tensor, rng: torch.Generator) -> Pairs:
        anchor = texts.unsqueeze(1).expand(-1, self.counts[role])
        drawn = self._once(role, anchor, rng)
        for _ in range(AGAIN):
            if self._besides is None or not bool((true := self._true(drawn)).any()):
                break
            other = self._once(role, anchor, rng)
            drawn = Pairs(other.image.where(true, drawn.image), other.text.where(true, drawn.text))
        return drawn

    def _once(self, role: Role, anchor: Tensor, rng: torch.Generator) -> Pairs:
        own = self.relation.owner[anchor]
        if role is Role.HARD_TEXT:
            return Pairs(own, self._wrong_text(own, rng))
        return Pairs(self._wrong_image(own, rng), anchor)

    def _true(self, drawn: Pairs) -> Tensor:
        """Which pairs were judged true."""
        assert self._besides is not None
        return torch.isin(self._key(drawn), self._besides)

    def _key(self, pairs: Pairs) -> Tensor:
        return pairs.image * len(self.relation.owner) + pairs.text

    def _wrong_image(self, own: Tensor, rng: torch.Generator) -> Tensor:
        drawn = below(torch.full_like(own, self.relation.images - 1), rng)
        return drawn + (drawn >= own)

    def _wrong_text(self, own: Tensor, rng: torch.Generator) -> Tensor:
        """Texts in order of their image, those of the own image stepped over."""
        start, count = torch.searchsorted(self._owners, own), self.relation.counts[own]
        drawn = below(len(self._order) - count, rng)
        return self._order[drawn + torch.where(drawn >= start, count, 0)]


def below(counts: Tensor, rng: torch.Generator) -> Tensor:
    """A uniform whole number from 0 to count - 1 for each count."""
    return (torch.rand(counts.shape, generator=rng, dtype=torch.float64) * counts).long()
