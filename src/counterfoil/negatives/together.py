"""Several proposers in one step."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.engine.items import joined
from counterfoil.matcher import Matcher
from counterfoil.negatives.proposal import Choosy, Proposal, Proposer, reads_block, screened
from counterfoil.records import Batch, Items, Pairs, Role, Views, WordTask


@final
class Together:
    """What several proposers propose for the same batch, as TAGS screens and writes at once.

    Args:
        proposers: in the order in which they draw.

    Raises:
        ValueError: there are none, or two provide the same role or word task.
    """

    def __init__(self, *, proposers: tuple[Proposer, ...]) -> None:
        if not proposers:
            raise ValueError("proposers=() propose nothing; name at least one")
        self.proposers = proposers
        self.provides, self.screens = frozenset[Role](), frozenset[Role]()
        self.provides_words = frozenset[str]()
        for one in proposers:
            twice = [role.value for role in self.provides & one.provides]
            twice += self.provides_words & one.provides_words
            if twice:
                raise ValueError(
                    f"{type(one).__name__} and another proposer both provide "
                    f"{', '.join(repr(name) for name in sorted(twice))}; drop one of the two"
                )
            self.provides |= one.provides
            self.provides_words |= one.provides_words
            self.screens |= screened(one)
        self.anchors_only = not any(reads_block(one) for one in proposers)

    def check(self, matcher: Matcher) -> None:
        """Whether all of them go with a model.

        Raises:
            ValueError: one does not.
        """
        for one in self.proposers:
            if isinstance(one, Choosy):
                one.check(matcher)

    def propose(
        self, matcher: Matcher, batch: Batch, views: Views, grid: Tensor, rng: torch.Generator
    ) -> Proposal:
        """All proposals as one."""
        images: list[Items] = []
        texts: list[Items] = []
        pairs: dict[Role, Pairs] = {}
        words: dict[str, WordTask] = {}
        scores: dict[Role, Tensor] = {}
        pools = len(batch.image_rows), len(batch.text_rows)
        for one in self.proposers:
            found = one.propose(matcher, batch, views, grid, rng)
            for role, pair in found.pairs.items():
                pairs[role] = Pairs(
                    _behind(pair.image, pools[0], images), _behind(pair.text, pools[1], texts)
                )
            words.update(found.words)
            scores.update(found.scores)
            images += [found.images] if found.images else []
            texts += [found.texts] if found.texts else []
        return Proposal(
            texts=joined(texts) if texts else None,
            pairs=pairs,
            words=words,
            images=joined(images) if images else None,
            scores=scores,
        )


def _behind(place: Tensor, pool: int, before: list[Items]) -> Tensor:
    """Places in which new items stand behind those that were proposed before."""
    return torch.where(place >= pool, place + sum(len(items) for items in before), place)
