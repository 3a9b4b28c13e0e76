"""What is offered to a proposer that screens: many wrong texts and images for each anchor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from counterfoil.corpus.relation import Relation
from counterfoil.negatives.draws import Draws, RandomNegatives
from counterfoil.negatives.lists import Lists, usable
from counterfoil.negatives.mined import MinedPlan, as_many_images, head
from counterfoil.records import Pairs, Role
from counterfoil.spec import unknown

Source = Literal["random", "mined"]
Streams = Literal["one", "two"]


@final
@dataclass(frozen=True, kw_only=True)
class CandidatePlan:
    """What is offered for an anchor; nothing where both numbers are 0.

    UNITER and TAGS offer 399 random texts and as many images.

    Attributes:
        texts: wrong texts of each anchor's image.
        images: wrong images of each anchor text.
        source: "random" draws from the whole corpus, with replacement; "mined" from mined lists,
            without, and from as far down as the plan of their draws says.
        streams: "one" offers both for every anchor. "two" offers texts for every second anchor and
            images for the others, so that the two directions are trained on other pairs: the form
            of UNITER's authors, for half as many anchors a direction. A term's mean over the batch
            then counts a direction half; terms that weigh 2 are the authors' sum.

    Raises:
        ValueError: a number below 0, an unknown source or unknown streams.
    """

    texts: int = 0
    images: int = 0
    source: Source = "random"
    streams: Streams = "one"

    def __post_init__(self) -> None:
        if min(self.texts, self.images) < 0:
            raise ValueError(f"texts={self.texts} and images={self.images}: neither may be below 0")
        for value, known, what in (
            (self.source, Source, "a source of candidates"),
            (self.streams, Streams, "a form of streams"),
        ):
            if value not in get_args(known):
                raise ValueError(unknown(value, list(get_args(known)), what))

    @property
    def provides(self) -> frozenset[Role]:
        """Roles of what is offered."""
        counts = ((Role.HARD_TEXT, self.texts), (Role.HARD_IMAGE, self.images))
        return frozenset(role for role, count in counts if count)

    def draws(
        self, relation: Relation, lists: Lists | None = None, plan: MinedPlan | None = None
    ) -> Draws:
        """The draws of a corpus.

        Args:
            relation: who describes whom.
            lists: mined lists, where `source` is "mined".
            plan: how far down to draw from them.

        Raises:
            ValueError: there is nothing wrong to draw, or the lists are short or of another corpus.
        """
        drawn: Draws
        if self.source == "random":
            drawn = RandomNegatives(relation=relation, texts=self.texts, images=self.images)
        else:
            assert lists is not None
            drawn = Listed(lists=lists, relation=relation, offer=self, plan=plan)
        return drawn if self.streams == "one" else Alternate(drawn)


@final
class Listed:
    """Candidates drawn from mined lists without replacement; -1 where a list is short.

    Texts that describe nothing and images that nothing describes are not drawn.

    Args:
        lists: the negatives of this corpus.
        relation: who describes whom.
        offer: how many of each for an anchor.
        plan: how far down to draw; its `count` and its rules for pairs of negatives are not used.

    Raises:
        ValueError: lists of another corpus, or shorter than is asked for.
    """

    def __init__(
        self,
        *,
        lists: Lists,
        relation: Relation,
        offer: CandidatePlan,
        plan: MinedPlan | None = None,
    ) -> None:
        plan = plan or MinedPlan()
        lists.check(relation)
        texts = head(lists.texts, plan.texts, "texts of an image")
        down = as_many_images(texts.shape[1], relation) if plan.images is None else plan.images
        images = head(lists.images, down, "images of a text")
        for count, kept, what in ((offer.texts, texts, "texts"), (offer.images, images, "images")):
            if count > kept.shape[1]:
                raise ValueError(
                    f"{count} {what} are to be offered from the {kept.shape[1]} hardest; offer "
                    "fewer, draw from further down, or mine longer lists"
                )
        self.relation, self.offer, self.provides = relation, offer, offer.provides
        self._texts = usable(texts, relation.owner >= 0)
        self._images = usable(images, relation.counts > 0)

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """For (B,) anchor texts, pairs of corpus rows by role, each (B, texts) or (B, images)."""
        own, drawn = self.relation.owner[texts], {}
        if self.offer.texts:
            found = _some(self.offer.texts, *self._texts, own, rng)
            drawn[Role.HARD_TEXT] = Pairs(own.unsqueeze(1).expand_as(found), found)
        if self.offer.images:
            found = _some(self.offer.images, *self._images, texts, rng)
            drawn[Role.HARD_IMAGE] = Pairs(found, texts.unsqueeze(1).expand_as(found))
        return drawn


@final
class Alternate:
    """Texts for every second anchor of a batch and images for the others; chance begins.

    Args:
        draws: the source.
    """

    def __init__(self, draws: Draws) -> None:
        self.draws, self.provides = draws, draws.provides

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """The source's draw, -1 where an anchor is of the other stream."""
        first = int(torch.randint(2, (1,), generator=rng))
        other = (torch.arange(len(texts)) % 2 == first).unsqueeze(1)
        drawn = dict(self.draws.draw(texts, rng))
        if pair := drawn.get(Role.HARD_TEXT):
            drawn[Role.HARD_TEXT] = Pairs(pair.image, pair.text.masked_fill(other, -1))
        if pair := drawn.get(Role.HARD_IMAGE):
            drawn[Role.HARD_IMAGE] = Pairs(pair.image.masked_fill(~other, -1), pair.text)
        return drawn


def check(offered: frozenset[Role], screened: frozenset[Role], needs: frozenset[Role]) -> None:
    """Refuse candidates that nobody screens, and screening without candidates.

    Args:
        offered: roles of the candidates that are drawn.
        screened: roles that the proposer chooses among.
        needs: roles that the objective needs.

    Raises:
        ValueError: so it is.
    """
    if offered - screened:
        raise ValueError(
            "candidates are drawn, and the proposer screens none; set it to Screened, or leave the "
            "candidates out"
        )
    if missing := (needs & screened) - offered:
        roles = " and ".join(sorted(repr(role.value) for role in missing))
        raise ValueError(
            f"candidates in the role of {roles} are to be screened, and none are drawn; say how "
            "many texts and images are offered for an anchor, as in texts=399, images=399"
        )


def _some(count: int, lists: Tensor, lengths: Tensor, rows: Tensor, rng: torch.Generator) -> Tensor:
    """(B, count) long, drawn from lists without replacement; -1 where they are shorter."""
    beyond = torch.arange(lists.shape[1]) >= lengths[rows].unsqueeze(1)
    dice = torch.rand(beyond.shape, generator=rng, dtype=torch.float64).masked_fill(beyond, 2)
    place = dice.argsort(1)[:, :count]
    return lists[rows].gather(1, place).long().masked_fill(beyond.gather(1, place), -1)
