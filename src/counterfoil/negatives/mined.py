"""Offline hard negatives, drawn from lists of the whole corpus while training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.relation import Relation
from counterfoil.negatives.draws import below
from counterfoil.negatives.lists import Lists, never, usable
from counterfoil.records import Pairs, Role

_ROUNDS = 16  # of drawing again before all pairs of the two lists are looked at


@final
@dataclass(frozen=True, kw_only=True)
class MinedPlan:
    """How to draw from mined lists.

    Attributes:
        texts: draw from the so many hardest texts of an image; 0 for all that are listed.
        images: draw from the so many hardest images of a text; 0 for all that are listed, None for
            `texts` (or all that are listed) divided by the captions that an image has on average:
            AOQ's 300 texts and 60 images.
        count: how many to draw for an anchor.
        tied_rank: draw one rank for both, the image's scaled to the length of its list: the
            authors' code. The paper draws them independently.
        resample: draw again while the negative text describes the negative image, as the paper
            has it; the authors' code does not.

    Raises:
        ValueError: a number out of range.
    """

    texts: int = 0
    images: int | None = 0
    count: int = 1
    tied_rank: bool = False
    resample: bool = True

    def __post_init__(self) -> None:
        for name, least in (("texts", 0), ("images", 0), ("count", 1)):
            if (given := getattr(self, name)) is not None and given < least:
                raise ValueError(f"{name}={given}: at least {least} is needed")


@final
class Mined:
    """Draws mined negatives of each anchor, and the two pairs derived from them.

    AOQ, sections 3.2 and 4.1: HARD_TEXT and HARD_IMAGE are uniform over the lists; CROSS is the
    negative image with the negative text; COMPANION is the image of the negative text with a
    random caption of the negative image. When the negative text describes the negative image, both
    derived pairs are true and both negatives are drawn again; after 16 rounds the draw is from all
    pairs of the two lists that do not correspond, tied or not.
    Texts that describe nothing and images that nothing describes have no companion and are not
    drawn.

    Args:
        lists: the negatives of this corpus.
        relation: who describes whom.
        plan: how to draw.

    Attributes:
        lengths: of the lists of texts and of images that were given.

    Raises:
        ValueError: lists of another corpus, shorter than the plan asks for, or anchors for which
            nothing can be drawn.

    >>> relation = Relation(torch.tensor([0, 1, 2]), images=3)
    >>> rows = torch.tensor([[1, 2], [2, 0], [0, 1]], dtype=torch.int32)
    >>> mined = Mined(lists=Lists(rows, rows), relation=relation)
    >>> drawn = mined.draw(torch.tensor([0]), torch.Generator().manual_seed(0))
    >>> {role.value: (pair.image.item(), pair.text.item()) for role, pair in drawn.items()}
    {'hard text': (0, 1), 'hard image': (2, 0), 'cross': (2, 1), 'companion': (1, 2)}
    """

    provides = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE, Role.CROSS, Role.COMPANION})

    def __init__(self, *, lists: Lists, relation: Relation, plan: MinedPlan | None = None) -> None:
        self.plan, self.relation = plan or MinedPlan(), relation
        lists.check(relation)
        self.lengths = lists.texts.shape[1], lists.images.shape[1]
        texts = head(lists.texts, self.plan.texts, "texts of an image")
        hardest = self.plan.images
        if hardest is None:
            hardest = as_many_images(texts.shape[1], relation)
        images = head(lists.images, hardest, "images of a text")
        self._texts, self._text_counts = usable(texts, relation.owner >= 0)
        self._images, self._image_counts = usable(images, relation.counts > 0)
        self._check()

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """For (B,) anchor texts, pairs of corpus rows by role, each (B, count)."""
        anchor = texts.unsqueeze(1).expand(-1, self.plan.count)
        hard_text, hard_image = self._draw(anchor.flatten(), rng)
        hard_text, hard_image = hard_text.view(anchor.shape), hard_image.view(anchor.shape)
        owner = self.relation.owner
        caption = self.relation.random_caption(hard_image, rng)
        return {
            Role.HARD_TEXT: Pairs(owner[anchor], hard_text),
            Role.HARD_IMAGE: Pairs(hard_image, anchor),
            Role.CROSS: Pairs(hard_image, hard_text),
            Role.COMPANION: Pairs(owner[hard_text], caption),
        }

    def ranks(self, texts: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """For anchor texts of any shape, a rank in their image's list and one in their own."""
        text_rank = below(self._text_counts[self.relation.owner[texts]], rng)
        if self.plan.tied_rank:
            return text_rank, self.tied(texts, text_rank)
        return text_rank, below(self._image_counts[texts], rng)

    def tied(self, texts: Tensor, text_rank: Tensor) -> Tensor:
        """The rank in the anchors' own lists that goes with one in their images' (AOQ's code)."""
        text_counts = self._text_counts[self.relation.owner[texts]]
        return text_rank * self._image_counts[texts] // text_counts

    def at(self, texts: Tensor, text_rank: Tensor, image_rank: Tensor) -> tuple[Tensor, Tensor]:
        """The negative text and the negative image of anchor texts at these ranks."""
        hard_text = self._texts[self.relation.owner[texts], text_rank].long()
        return hard_text, self._images[texts, image_rank].long()

    def corresponds(self, hard_text: Tensor, hard_image: Tensor) -> Tensor:
        """Whether negative text and image belong together, which makes both derived pairs true."""
        return self.relation.owner[hard_text] == hard_image

    def _draw(self, anchor: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        hard_text, hard_image = self.at(anchor, *self.ranks(anchor, rng))
        for again in range(_ROUNDS + 1 if self.plan.resample else 0):
            true = self.corresponds(hard_text, hard_image).nonzero().squeeze(1)
            if not len(true):
                break
            redrawn = (
                self.at(anchor[true], *self.ranks(anchor[true], rng))
                if again < _ROUNDS
                else self._any_wrong(anchor[true], rng)
            )
            hard_text[true], hard_image[true] = redrawn
        return hard_text, hard_image

    def _any_wrong(self, anchor: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """A uniform draw from all pairs of an anchor's lists that do not correspond."""
        drawn = []
        for row, image in zip(anchor.tolist(), self.relation.owner[anchor].tolist()):
            texts = self._texts[image, : self._text_counts[image]].long()
            images = self._images[row, : self._image_counts[row]].long()
            wrong = ~self.corresponds(texts.unsqueeze(1), images.unsqueeze(0))
            place = wrong.flatten().nonzero().squeeze(1)
            place = place[below(torch.tensor([len(place)]), rng)]
            drawn.append(torch.cat([texts[place // len(images)], images[place % len(images)]]))
        hard_text, hard_image = torch.stack(drawn).unbind(1)
        return hard_text, hard_image

    def _check(self) -> None:
        """Whether something can be drawn for every anchor."""
        anchors = (self.relation.owner >= 0).nonzero().squeeze(1)
        text_counts = self._text_counts[self.relation.owner[anchors]]
        empty = int(((text_counts == 0) | (self._image_counts[anchors] == 0)).sum())
        if empty:
            raise ValueError(
                f"{empty} of {len(anchors)} captions have no mined negative to draw; mine again "
                "from a corpus of at least two described images"
            )
        if not self.plan.resample:
            return
        counts = self._text_counts, self._image_counts
        if stuck := len(never(self._texts, self._images, self.relation, counts)):
            raise ValueError(
                f"all negatives of {stuck} of {len(anchors)} captions describe each other; keep "
                "longer lists, or draw with resample=False"
            )


def as_many_images(texts: int, relation: Relation) -> int:
    """How many images go with so many texts: fewer by the captions of a described image, mean.

    AOQ keeps h texts and h / 5 images of data with five captions an image. At least 1, at most all.

    >>> as_many_images(300, Relation(torch.arange(500) // 5, images=100))
    60
    """
    described = int((relation.counts > 0).sum())
    captions = int(relation.counts.sum())
    return max(1, min(-(-texts * described // max(captions, 1)), relation.images))


def head(lists: Tensor, count: int, what: str) -> Tensor:
    """The first `count` of every list, all where it is 0.

    Raises:
        ValueError: the lists are shorter.
    """
    if count > lists.shape[1]:
        raise ValueError(
            f"{count} {what} were asked for, but the lists keep {lists.shape[1]}; ask for fewer or "
            "mine longer lists"
        )
    return lists[:, :count] if count else lists
