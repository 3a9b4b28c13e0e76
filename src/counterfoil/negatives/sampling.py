"""Negatives that are known before anything is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, final, get_args

import torch
from torch import Tensor

from counterfoil.core.config import unknown_name
from counterfoil.core.types import Pairs, Role
from counterfoil.data.batching import conflicts_of, separate_texts
from counterfoil.data.dataset import Relation
from counterfoil.negatives.store import HardNegativeLists, never_negative, usable_entries

AGAIN = 100  # times a pair that was judged true is drawn anew, where others are few


class NegativeSampler(Protocol):
    """Draws pairs of data set rows for anchor captions.

    Attributes:
        provides: the roles it draws.
    """

    @property
    def provides(self) -> frozenset[Role]:
        """The roles it draws."""
        ...

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """For (B,) text rows, pairs of data set rows by role, each (B, N); the same from one
        rng.
        """
        ...


@final
class RoleSubset:
    """Only the roles that an objective needs, so that nothing is encoded for nobody.

    Args:
        draws: the source.
        needs: what the objective needs.

    Raises:
        ValueError: the objective needs nothing of what is drawn.
    """

    def __init__(self, draws: NegativeSampler, needs: frozenset[Role]) -> None:
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
class RandomNegativeSampler:
    """Wrong texts and wrong images drawn uniformly from the whole data set, with replacement.

    A pair that was judged true is drawn again.

    Args:
        relation: who describes whom. Texts that describe no image are drawn like any.
        texts: how many texts for an anchor.
        images: how many images for an anchor.

    Raises:
        ValueError: there is nothing wrong to draw, or a number below 0, or none of either.

    >>> negatives = RandomNegativeSampler(relation=Relation(torch.tensor([0, 0, 1]), images=2))
    >>> drawn = negatives.draw(torch.tensor([0, 1]), torch.Generator().manual_seed(0))
    >>> drawn[Role.HARD_TEXT].text.flatten(), drawn[Role.HARD_IMAGE].image.flatten()
    (tensor([2, 2]), tensor([1, 1]))
    """

    def __init__(self, *, relation: Relation, texts: int = 1, images: int = 1) -> None:
        most = int(relation.counts.max()) if relation.images else 0
        if relation.images < 2 or most == len(relation.text_to_image):
            raise ValueError(
                f"{relation.images} images with {len(relation.text_to_image)} texts leave no "
                f"wrong pair "
                "to draw; at least two described images are needed"
            )
        if min(texts, images) < 0 or not texts + images:
            raise ValueError(
                f"texts={texts} and images={images}: neither may be below 0, nor both be 0"
            )
        self.relation, self.counts = relation, {Role.HARD_TEXT: texts, Role.HARD_IMAGE: images}
        self.provides = frozenset(role for role, count in self.counts.items() if count)
        self._order = relation.text_to_image.argsort(stable=True)
        self._owners = relation.text_to_image[self._order].contiguous()
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
        own = self.relation.text_to_image[anchor]
        if role is Role.HARD_TEXT:
            return Pairs(own, self._wrong_text(own, rng))
        return Pairs(self._wrong_image(own, rng), anchor)

    def _true(self, drawn: Pairs) -> Tensor:
        """Which pairs were judged true."""
        assert self._besides is not None
        return torch.isin(self._key(drawn), self._besides)

    def _key(self, pairs: Pairs) -> Tensor:
        return pairs.image * len(self.relation.text_to_image) + pairs.text

    def _wrong_image(self, own: Tensor, rng: torch.Generator) -> Tensor:
        drawn = random_below(torch.full_like(own, self.relation.images - 1), rng)
        return drawn + (drawn >= own)

    def _wrong_text(self, own: Tensor, rng: torch.Generator) -> Tensor:
        """Texts in order of their image, those of the own image stepped over."""
        start, count = torch.searchsorted(self._owners, own), self.relation.counts[own]
        drawn = random_below(len(self._order) - count, rng)
        return self._order[drawn + torch.where(drawn >= start, count, 0)]


def random_below(counts: Tensor, rng: torch.Generator) -> Tensor:
    """A uniform whole number from 0 to count - 1 for each count."""
    return (torch.rand(counts.shape, generator=rng, dtype=torch.float64) * counts).long()


# Offline hard negatives, drawn from lists of the whole data set while training.


_ROUNDS = 16  # of drawing again before all pairs of the two lists are looked at


@final
@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
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
class OfflineNegativeSampler:
    """Draws mined negatives of each anchor, and the two pairs derived from them.

    AOQ, sections 3.2 and 4.1: HARD_TEXT and HARD_IMAGE are uniform over the lists; CROSS is the
    negative image with the negative text; COMPANION is the image of the negative text with a
    random caption of the negative image. When the negative text describes the negative image, both
    derived pairs are true and both negatives are drawn again; after 16 rounds the draw is from all
    pairs of the two lists that do not correspond, tied or not.
    Texts that describe nothing and images that nothing describes have no companion and are not
    drawn.

    Args:
        lists: the negatives of this data set.
        relation: who describes whom.
        plan: how to draw.

    Attributes:
        lengths: of the lists of texts and of images that were given.

    Raises:
        ValueError: lists of another data set, shorter than the plan asks for, or anchors for which
            nothing can be drawn.

    >>> relation = Relation(torch.tensor([0, 1, 2]), images=3)
    >>> rows = torch.tensor([[1, 2], [2, 0], [0, 1]], dtype=torch.int32)
    >>> mined = OfflineNegativeSampler(lists=HardNegativeLists(rows, rows), relation=relation)
    >>> drawn = mined.draw(torch.tensor([0]), torch.Generator().manual_seed(0))
    >>> {role.value: (pair.image.item(), pair.text.item()) for role, pair in drawn.items()}
    {'hard text': (0, 1), 'hard image': (2, 0), 'cross': (2, 1), 'companion': (1, 2)}
    """

    provides = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE, Role.CROSS, Role.COMPANION})

    def __init__(
        self, *, lists: HardNegativeLists, relation: Relation, plan: SamplingConfig | None = None
    ) -> None:
        self.plan, self.relation = plan or SamplingConfig(), relation
        lists.check(relation)
        self.lengths = lists.texts.shape[1], lists.images.shape[1]
        texts = head_of_lists(lists.texts, self.plan.texts, "texts of an image")
        hardest = self.plan.images
        if hardest is None:
            hardest = images_per_batch(texts.shape[1], relation)
        images = head_of_lists(lists.images, hardest, "images of a text")
        self._texts, self._text_counts = usable_entries(texts, relation.text_to_image >= 0)
        self._images, self._image_counts = usable_entries(images, relation.counts > 0)
        self._check()

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """For (B,) anchor texts, pairs of data set rows by role, each (B, count)."""
        anchor = texts.unsqueeze(1).expand(-1, self.plan.count)
        hard_text, hard_image = self._draw(anchor.flatten(), rng)
        hard_text, hard_image = hard_text.view(anchor.shape), hard_image.view(anchor.shape)
        text_to_image = self.relation.text_to_image
        caption = self.relation.random_caption(hard_image, rng)
        return {
            Role.HARD_TEXT: Pairs(text_to_image[anchor], hard_text),
            Role.HARD_IMAGE: Pairs(hard_image, anchor),
            Role.CROSS: Pairs(hard_image, hard_text),
            Role.COMPANION: Pairs(text_to_image[hard_text], caption),
        }

    def ranks(self, texts: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """For anchor texts of any shape, a rank in their image's list and one in their own."""
        text_rank = random_below(self._text_counts[self.relation.text_to_image[texts]], rng)
        if self.plan.tied_rank:
            return text_rank, self.tied(texts, text_rank)
        return text_rank, random_below(self._image_counts[texts], rng)

    def tied(self, texts: Tensor, text_rank: Tensor) -> Tensor:
        """The rank in the anchors' own lists that goes with one in their images' (AOQ's code)."""
        text_counts = self._text_counts[self.relation.text_to_image[texts]]
        return text_rank * self._image_counts[texts] // text_counts

    def at(self, texts: Tensor, text_rank: Tensor, image_rank: Tensor) -> tuple[Tensor, Tensor]:
        """The negative text and the negative image of anchor texts at these ranks."""
        hard_text = self._texts[self.relation.text_to_image[texts], text_rank].long()
        return hard_text, self._images[texts, image_rank].long()

    def corresponds(self, hard_text: Tensor, hard_image: Tensor) -> Tensor:
        """Whether negative text and image belong together, which makes both derived pairs true."""
        return self.relation.text_to_image[hard_text] == hard_image

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
        for row, image in zip(anchor.tolist(), self.relation.text_to_image[anchor].tolist()):
            texts = self._texts[image, : self._text_counts[image]].long()
            images = self._images[row, : self._image_counts[row]].long()
            wrong = ~self.corresponds(texts.unsqueeze(1), images.unsqueeze(0))
            place = wrong.flatten().nonzero().squeeze(1)
            place = place[random_below(torch.tensor([len(place)]), rng)]
            drawn.append(torch.cat([texts[place // len(images)], images[place % len(images)]]))
        hard_text, hard_image = torch.stack(drawn).unbind(1)
        return hard_text, hard_image

    def _check(self) -> None:
        """Whether something can be drawn for every anchor."""
        anchors = (self.relation.text_to_image >= 0).nonzero().squeeze(1)
        text_counts = self._text_counts[self.relation.text_to_image[anchors]]
        empty = int(((text_counts == 0) | (self._image_counts[anchors] == 0)).sum())
        if empty:
            raise ValueError(
                f"{empty} of {len(anchors)} captions have no mined negative to draw; mine again "
                "from a corpus of at least two described images"
            )
        if not self.plan.resample:
            return
        counts = self._text_counts, self._image_counts
        if stuck := len(never_negative(self._texts, self._images, self.relation, counts)):
            raise ValueError(
                f"all negatives of {stuck} of {len(anchors)} captions describe each other; keep "
                "longer lists, or draw with resample=False"
            )


def images_per_batch(texts: int, relation: Relation) -> int:
    """How many images go with so many texts: fewer by the captions of a described image, mean.

    AOQ keeps h texts and h / 5 images of data with five captions an image. At least 1, at most all.

    >>> images_per_batch(300, Relation(torch.arange(500) // 5, images=100))
    60
    """
    described = int((relation.counts > 0).sum())
    captions = int(relation.counts.sum())
    return max(1, min(-(-texts * described // max(captions, 1)), relation.images))


def head_of_lists(lists: Tensor, count: int, what: str) -> Tensor:
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


# Mined hard images that join a batch together with captions of their own.


_NOBODY = frozenset[int]()


@final
class NeighbourImages:
    """Brings one mined hard image of each anchor into the batch, by one of its captions.

    NegCLIP (https://arxiv.org/abs/2210.01936), section 4: a batch of B pairs becomes one of 2B, in
    which every image and every caption is a negative of the others, and whatever is written for
    captions is written for those of the neighbours too. The image is drawn uniformly from the list
    of the anchor caption, the caption uniformly from those of the image.

    Departs from the authors' code in: neighbours are the wrong images that score highest with the
    anchor caption, not the nearest to its image; a caption that is in the batch already does not
    come again, nor does one where something in the batch was judged true that would be a negative,
    so there may be fewer than 2B; two captions of one image are both true of it.

    Args:
        lists: mined from this data set; only those of texts are read.
        relation: who describes whom. Images that nothing describes are not drawn.

    Raises:
        ValueError: lists of another data set, or no anchor has a neighbour.

    >>> relation = Relation(torch.tensor([0, 1, 2]), images=3)
    >>> rows = torch.tensor([[1], [2], [0]], dtype=torch.int32)
    >>> neighbours = NeighbourImages(lists=HardNegativeLists(rows, rows), relation=relation)
    >>> neighbours.joined(torch.tensor([0, 1]), torch.Generator().manual_seed(0))
    tensor([0, 1, 2])
    """

    def __init__(self, *, lists: HardNegativeLists, relation: Relation) -> None:
        lists.check(relation)
        self.relation = relation
        self._against = conflicts_of(separate_texts(relation))
        self._images, self._counts = usable_entries(lists.images, relation.counts > 0)
        if not bool((self._counts[relation.text_to_image >= 0] > 0).any()):
            raise ValueError(
                "no caption has a mined image that could join it in a batch; mine again from a "
                "corpus of at least two described images"
            )

    def joined(self, texts: Tensor, rng: torch.Generator) -> Tensor:
        """(B + N,) text rows: the (B,) anchors, and behind them N <= B captions of neighbours."""
        anchors = texts[self._counts[texts] > 0]
        images = self._images[anchors, random_below(self._counts[anchors], rng)].long()
        found = dict.fromkeys(texts.tolist())
        for text in self.relation.random_caption(images, rng).tolist():
            if self._against.get(text, _NOBODY).isdisjoint(found):
                found[text] = None
        return torch.tensor(list(found))


# What is offered to a proposer that screens: many wrong texts and images for each anchor.


Source = Literal["random", "mined"]
Streams = Literal["one", "two"]


@final
@dataclass(frozen=True, kw_only=True)
class CandidateConfig:
    """What is offered for an anchor; nothing where both numbers are 0.

    UNITER and TAGS offer 399 random texts and as many images.

    Attributes:
        texts: wrong texts of each anchor's image.
        images: wrong images of each anchor text.
        source: "random" draws from the whole data set, with replacement; "mined" from mined lists,
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
                raise ValueError(unknown_name(value, list(get_args(known)), what))

    @property
    def provides(self) -> frozenset[Role]:
        """Roles of what is offered."""
        counts = ((Role.HARD_TEXT, self.texts), (Role.HARD_IMAGE, self.images))
        return frozenset(role for role, count in counts if count)

    def draws(
        self,
        relation: Relation,
        lists: HardNegativeLists | None = None,
        plan: SamplingConfig | None = None,
    ) -> NegativeSampler:
        """The draws of a data set.

        Args:
            relation: who describes whom.
            lists: mined lists, where `source` is "mined".
            plan: how far down to draw from them.

        Raises:
            ValueError: there is nothing wrong to draw, or the lists are short or of another data
                set.
        """
        drawn: NegativeSampler
        if self.source == "random":
            drawn = RandomNegativeSampler(relation=relation, texts=self.texts, images=self.images)
        else:
            assert lists is not None
            drawn = ListedCandidates(lists=lists, relation=relation, offer=self, plan=plan)
        return drawn if self.streams == "one" else AlternatingCandidates(drawn)


@final
class ListedCandidates:
    """Candidates drawn from mined lists without replacement; -1 where a list is short.

    Texts that describe nothing and images that nothing describes are not drawn.

    Args:
        lists: the negatives of this data set.
        relation: who describes whom.
        offer: how many of each for an anchor.
        plan: how far down to draw; its `count` and its rules for pairs of negatives are not used.

    Raises:
        ValueError: lists of another data set, or shorter than is asked for.
    """

    def __init__(
        self,
        *,
        lists: HardNegativeLists,
        relation: Relation,
        offer: CandidateConfig,
        plan: SamplingConfig | None = None,
    ) -> None:
        plan = plan or SamplingConfig()
        lists.check(relation)
        texts = head_of_lists(lists.texts, plan.texts, "texts of an image")
        down = images_per_batch(texts.shape[1], relation) if plan.images is None else plan.images
        images = head_of_lists(lists.images, down, "images of a text")
        for count, kept, what in ((offer.texts, texts, "texts"), (offer.images, images, "images")):
            if count > kept.shape[1]:
                raise ValueError(
                    f"{count} {what} are to be offered from the {kept.shape[1]} hardest; offer "
                    "fewer, draw from further down, or mine longer lists"
                )
        self.relation, self.offer, self.provides = relation, offer, offer.provides
        self._texts = usable_entries(texts, relation.text_to_image >= 0)
        self._images = usable_entries(images, relation.counts > 0)

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """For (B,) anchor texts, pairs of data set rows by role, each (B, texts) or (B, images)."""
        own, drawn = self.relation.text_to_image[texts], {}
        if self.offer.texts:
            found = _some(self.offer.texts, *self._texts, own, rng)
            drawn[Role.HARD_TEXT] = Pairs(own.unsqueeze(1).expand_as(found), found)
        if self.offer.images:
            found = _some(self.offer.images, *self._images, texts, rng)
            drawn[Role.HARD_IMAGE] = Pairs(found, texts.unsqueeze(1).expand_as(found))
        return drawn


@final
class AlternatingCandidates:
    """Texts for every second anchor of a batch and images for the others; chance begins.

    Args:
        draws: the source.
    """

    def __init__(self, draws: NegativeSampler) -> None:
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
