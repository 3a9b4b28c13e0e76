"""Samplers of negatives that are chosen before anything is encoded.

Uniform ones (`RandomNegativeSampler`), those of mined lists with AOQ's derived pairs
(`OfflineNegativeSampler`), NegCLIP's hard images for the batch (`NeighbourImages`), and many
candidates for an online miner to choose from (`CandidateConfig`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, final

import torch
from torch import Tensor

from counterfoil.core.config import parse_literal
from counterfoil.core.console import warn
from counterfoil.core.types import Pairs, Role
from counterfoil.data.batching import conflicts_of, separate_texts
from counterfoil.data.dataset import Relation
from counterfoil.negatives.store import HardNegativeLists, degenerate_anchors, usable_entries

AGAIN = 100  # redraws of a pair that is no negative, at most


class NegativeSampler(Protocol):
    """Draws pairs of data set rows for anchor captions."""

    @property
    def provides(self) -> frozenset[Role]:
        """The roles it draws."""
        ...

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw pairs of data set rows for (B,) text rows, by role, each (B, N).

        Depends on `texts` and the state of `rng` only.
        """
        ...


@final
class RoleSubset:
    """A sampler restricted to the roles that a loss needs, so that nothing unused is encoded.

    Raises:
        ValueError: the loss needs none of the sampler's roles.
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
        """Draw, without the roles that are not needed."""
        pairs = self.draws.draw(texts, rng)
        return {role: pair for role, pair in pairs.items() if role in self.provides}


@final
class RandomNegativeSampler:
    """Draws wrong texts and wrong images uniformly from the whole data set, with replacement.

    These are `texts` and `images` for each anchor. Extra positives, ambiguous pairs and texts that
    say what a caption of the image says are drawn again. Texts that describe no image are drawn
    like any other.

    Raises:
        ValueError: no wrong pair exists, a number below 0, or both are 0.

    >>> negatives = RandomNegativeSampler(relation=Relation(torch.tensor([0, 0, 1]), images=2))
    >>> pairs = negatives.draw(torch.tensor([0, 1]), torch.Generator().manual_seed(0))
    >>> pairs[Role.HARD_TEXT].text.flatten(), pairs[Role.HARD_IMAGE].image.flatten()
    (tensor([2, 2]), tensor([1, 1]))
    """

    def __init__(self, *, relation: Relation, texts: int = 1, images: int = 1) -> None:
        most = int(relation.counts.max()) if relation.images else 0
        if relation.images < 2 or most == len(relation.text_to_image):
            raise ValueError(
                f"{relation.images} images with {len(relation.text_to_image)} texts leave no wrong "
                "pair to draw; at least two described images are needed"
            )
        if min(texts, images) < 0 or not texts + images:
            raise ValueError(
                f"texts={texts} and images={images}: neither may be below 0, nor both be 0"
            )
        self.relation, self.counts = relation, {Role.HARD_TEXT: texts, Role.HARD_IMAGE: images}
        self.provides = frozenset(role for role, count in self.counts.items() if count)
        self._order = relation.text_to_image.argsort(stable=True)  # text rows, by their image
        self._sorted_images = relation.text_to_image[self._order].contiguous()

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw (B, texts) wrong texts of the anchors' images and (B, images) wrong images."""
        return {role: self._pairs(role, texts, rng) for role in self.counts if self.counts[role]}

    def _pairs(self, role: Role, texts: Tensor, rng: torch.Generator) -> Pairs:
        anchor = texts.unsqueeze(1).expand(-1, self.counts[role])
        pairs = self._draw(role, anchor, rng)
        for _ in range(AGAIN):
            if not self.relation.spares_pairs:
                break
            true = self.relation.exempt_weight(pairs.image, pairs.text) >= 0
            if not bool(true.any()):
                break
            # Whole batches are drawn, of which only the entries at true pairs are used.
            other = self._draw(role, anchor, rng)
            pairs = Pairs(other.image.where(true, pairs.image), other.text.where(true, pairs.text))
        return pairs

    def _draw(self, role: Role, anchor: Tensor, rng: torch.Generator) -> Pairs:
        own = self.relation.text_to_image[anchor]
        if role is Role.HARD_IMAGE:
            # One of I - 1 numbers; those from the own image on are moved up by one, past it.
            number = random_below(torch.full_like(own, self.relation.images - 1), rng)
            return Pairs(number + (number >= own), anchor)
        # The same with the texts in order of their image, where the own captions are one run.
        start = torch.searchsorted(self._sorted_images, own)
        count = self.relation.counts[own]
        number = random_below(len(self._order) - count, rng)
        return Pairs(own, self._order[number + torch.where(number >= start, count, 0)])


def random_below(counts: Tensor, rng: torch.Generator) -> Tensor:
    """Draw a uniform whole number from 0 to count - 1 for each count."""
    return (torch.rand(counts.shape, generator=rng, dtype=torch.float64) * counts).long()


_RANDOM = 16  # negatives of a list that filters left empty
_REDRAWS = 16  # of a pair of negatives that belong together, before the exact draw


@final
@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How negatives are drawn from mined lists, by `OfflineNegativeSampler`.

    Attributes:
        texts: draw from this many of the hardest texts of an image; 0 for the whole list.
        images: draw from this many of the hardest images of a text; 0 for the whole list, None for
            `texts` (or the whole list) divided by the mean number of captions of an image: AOQ's
            300 texts and 60 images.
        count: number of draws for an anchor.
        tied_rank: draw one rank for both, the image's scaled to the length of its list: the
            authors' code. The paper draws them independently.
        resample: draw again while the negative text describes the negative image, as in the paper;
            the authors' code does not.
        ambiguity: above 0, negatives that score about as high as the true pair are drawn more
            often: with weights exp(-a (s - p - b)^2), where a is this, s the score of a listed
            pair, p that of the anchor's true pair, and b is `centre` (SimANS,
            https://arxiv.org/abs/2210.11773, whose a is 0.5). Scores are in units of the
            standard deviation of those listed, where the authors take inner products as they are,
            so that a fits any model. 0 draws uniformly.
        centre: how far above the true pair the most frequent ones are, in the same unit; below 0
            for easier ones.

    Raises:
        ValueError: a number out of range, a `centre` without `ambiguity`, or `ambiguity` with
            `tied_rank`.
    """

    texts: int = 0
    images: int | None = 0
    count: int = 1
    tied_rank: bool = False
    resample: bool = True
    ambiguity: float = 0.0
    centre: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("texts", 0), ("images", 0), ("count", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name}={value}: at least {least} is needed")
        if not 0 <= self.ambiguity < math.inf or not math.isfinite(self.centre):
            raise ValueError(
                f"ambiguity={self.ambiguity}, centre={self.centre}: give an ambiguity of 0 or "
                "more, as 0.5, and any finite centre"
            )
        if self.centre and not self.ambiguity:
            raise ValueError(
                f"centre={self.centre} says which negatives are drawn most often, and ambiguity=0 "
                "draws all alike; set ambiguity=0.5, or leave centre out"
            )
        if self.ambiguity and self.tied_rank:
            raise ValueError(
                f"tied_rank takes one rank for both lists, and ambiguity={self.ambiguity} draws "
                "each by its scores; leave one of them out"
            )


@final
class OfflineNegativeSampler:
    """Draws mined negatives of each anchor, and the two pairs derived from them.

    AOQ, sections 3.2 and 4.1: HARD_TEXT and HARD_IMAGE are uniform over the lists, or drawn by
    their scores, see `SamplingConfig.ambiguity`; CROSS is the
    negative image with the negative text; COMPANION is the image of the negative text with a
    random caption of the negative image. Texts of no image and images without captions have no
    companion and are not drawn.

    When the negative text describes the negative image, both derived pairs are true, and both
    negatives are drawn again. With lists of some hundreds this is rare and a second draw suffices;
    but for an anchor whose lists are nearly all of one image redraws may never end. So after
    16 redraws the remaining anchors are drawn exactly: all pairs of their two lists that do not
    belong together are enumerated, and one of them is drawn. For independent ranks this changes
    only the time: redrawing until a pair is wrong draws from the wrong pairs with the weights of
    all, and so does the exact draw. For tied ranks, whose few pairs may all be true, the exact draw
    includes untied pairs. The constructor checks that every anchor has a wrong pair. Where filters
    left the lists of a tenth of the anchors, or fewer, empty, random negatives fill them, with a
    warning.

    Attributes:
        lengths: of the given lists of texts and of images.

    Raises:
        ValueError: lists of another data set or shorter than the plan needs, or anchors without a
            pair to draw.

    >>> relation = Relation(torch.tensor([0, 1, 2]), images=3)
    >>> rows = torch.tensor([[1, 2], [2, 0], [0, 1]], dtype=torch.int32)
    >>> mined = OfflineNegativeSampler(lists=HardNegativeLists(rows, rows), relation=relation)
    >>> pairs = mined.draw(torch.tensor([0]), torch.Generator().manual_seed(0))
    >>> {role.value: (pair.image.item(), pair.text.item()) for role, pair in pairs.items()}
    {'hard text': (0, 1), 'hard image': (2, 0), 'cross': (2, 1), 'companion': (1, 2)}
    """

    provides = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE, Role.CROSS, Role.COMPANION})

    def __init__(
        self, *, lists: HardNegativeLists, relation: Relation, plan: SamplingConfig | None = None
    ) -> None:
        self.plan, self.relation = plan or SamplingConfig(), relation
        self.lengths = lists.texts.shape[1], lists.images.shape[1]
        texts, images = hardest_entries(lists, relation, self.plan)
        of_texts: Tensor | None = None
        of_images: Tensor | None = None
        if self.plan.ambiguity:
            of_texts, of_images, self._true_scores = _listed_scores(
                lists.checked(relation), texts.shape[1], images.shape[1]
            )
        self._texts, self._text_counts, of_texts = usable_entries(
            texts, relation.text_to_image >= 0, of_texts
        )
        self._images, self._image_counts, of_images = usable_entries(
            images, relation.counts > 0, of_images
        )
        if of_texts is not None and of_images is not None:
            self._text_weights = _Ambiguity(of_texts, self._text_counts, self.plan)
            self._image_weights = _Ambiguity(of_images, self._image_counts, self.plan)
        self._fill_empty_lists()
        self._check()

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw pairs of data set rows for (B,) anchor texts, by role, each (B, count)."""
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
        """Draw a rank in each anchor's image's list and one in its own; texts of any shape."""
        if self.plan.ambiguity:
            true = self._true_scores[texts]
            images = self.relation.text_to_image[texts]
            return (
                self._text_weights.ranks(images, true, self._text_counts, rng),
                self._image_weights.ranks(texts, true, self._image_counts, rng),
            )
        text_rank = random_below(self._text_counts[self.relation.text_to_image[texts]], rng)
        if self.plan.tied_rank:
            return text_rank, self.tied(texts, text_rank)
        return text_rank, random_below(self._image_counts[texts], rng)

    def tied(self, texts: Tensor, text_rank: Tensor) -> Tensor:
        """Scale ranks in the images' lists to the anchors' own lists, as AOQ's code does."""
        text_counts = self._text_counts[self.relation.text_to_image[texts]]
        return text_rank * self._image_counts[texts] // text_counts

    def at(self, texts: Tensor, text_rank: Tensor, image_rank: Tensor) -> tuple[Tensor, Tensor]:
        """Return the negative text and the negative image of anchor texts at these ranks."""
        hard_text = self._texts[self.relation.text_to_image[texts], text_rank].long()
        return hard_text, self._images[texts, image_rank].long()

    def corresponds(self, hard_text: Tensor, hard_image: Tensor) -> Tensor:
        """Return True where the text is true of the image, which makes a derived pair true."""
        describes = self.relation.text_to_image[hard_text] == hard_image
        equal = self.relation.equal
        return describes if equal is None else describes | equal.contains(hard_image, hard_text)

    def _draw(self, anchor: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        hard_text, hard_image = self.at(anchor, *self.ranks(anchor, rng))
        if not self.plan.resample:
            return hard_text, hard_image
        for attempt in range(_REDRAWS + 1):
            true = self.corresponds(hard_text, hard_image).nonzero().squeeze(1)
            if not len(true):
                break
            if attempt < _REDRAWS:
                redrawn = self.at(anchor[true], *self.ranks(anchor[true], rng))
            else:
                redrawn = self._draw_exactly(anchor[true], rng)
            hard_text[true], hard_image[true] = redrawn
        return hard_text, hard_image

    def _draw_exactly(self, anchor: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw from all pairs of each anchor's lists that do not correspond."""
        negatives = []
        for row, image in zip(anchor.tolist(), self.relation.text_to_image[anchor].tolist()):
            texts = self._texts[image, : self._text_counts[image]].long()
            images = self._images[row, : self._image_counts[row]].long()
            wrong = ~self.corresponds(texts.unsqueeze(1), images.unsqueeze(0))
            place = wrong.flatten().nonzero().squeeze(1)
            if self.plan.ambiguity:
                true = self._true_scores[[row]]
                by_text = self._text_weights.log_weights(torch.tensor([image]), true)[0]
                by_image = self._image_weights.log_weights(torch.tensor([row]), true)[0]
                both = by_text[: len(texts)].unsqueeze(1) + by_image[: len(images)]
                place = place[_drawn_by(both.flatten()[place].unsqueeze(0), rng)]
            else:
                place = place[random_below(torch.tensor([len(place)]), rng)]
            negatives.append(torch.cat([texts[place // len(images)], images[place % len(images)]]))
        hard_text, hard_image = torch.stack(negatives).unbind(1)
        return hard_text, hard_image

    def _fill_empty_lists(self) -> None:
        """Give anchors whose lists are empty random negatives, if they are at most a tenth.

        A filter that compares with the true pair's score leaves nothing of a caption that fits its
        own image worse than all others.
        """
        text_to_image, counts = self.relation.text_to_image, self.relation.counts
        anchors, described = self.relation.owned, self.relation.described
        images = ((self._text_counts == 0) & (counts > 0)).nonzero().squeeze(1)
        texts = anchors[self._image_counts[anchors] == 0]
        empty = int(((counts > 0) & (self._text_counts == 0))[text_to_image[anchors]].sum())
        if not 0 < empty + len(texts) <= len(anchors) / 10:
            return
        rng = torch.Generator().manual_seed(0)

        def draw(of: Tensor, length: int) -> Pairs:
            own = torch.searchsorted(described, of).unsqueeze(1)
            steps = random_below(torch.full((len(of), length), len(described) - 1), rng)
            other = described[(own + 1 + steps) % len(described)]
            return Pairs(other, self.relation.random_caption(other, rng))

        def draw_wrong(of: Tensor, length: int, pairs: Callable[[Pairs], Pairs]) -> Pairs:
            """Draw again what is true or unclear."""
            drawn = draw(of, length)
            for _ in range(AGAIN):
                checked = pairs(drawn)
                true = self.relation.exempt_weight(checked.image, checked.text) >= 0
                if not bool(true.any()):
                    break
                again = draw(of, length)
                drawn = Pairs(
                    *(
                        getattr(again, side).where(true, getattr(drawn, side))
                        for side in ("image", "text")
                    )
                )
            return drawn

        self._texts, self._images = self._texts.clone(), self._images.clone()
        shown, listed = (min(_RANDOM, lists.shape[1]) for lists in (self._texts, self._images))
        other = draw_wrong(images, shown, lambda drawn: Pairs(images.unsqueeze(1), drawn.text))
        self._texts[images, :shown] = other.text.to(self._texts.dtype)
        own = text_to_image[texts]
        other = draw_wrong(own, listed, lambda drawn: Pairs(drawn.image, texts.unsqueeze(1)))
        self._images[texts, :listed] = other.image.to(self._images.dtype)
        self._text_counts[images], self._image_counts[texts] = shown, listed
        warn(
            f"the mined lists leave nothing to {empty + len(texts):,} of {len(anchors):,} captions;"
            " random negatives take their place"
        )

    def _check(self) -> None:
        """Check that every anchor has a pair to draw."""
        anchors = self.relation.owned
        text_counts = self._text_counts[self.relation.text_to_image[anchors]]
        empty = int(((text_counts == 0) | (self._image_counts[anchors] == 0)).sum())
        if empty:
            raise ValueError(
                f"{empty} of {len(anchors)} captions have no mined negative to draw; mine again "
                "with fewer filters, or from a corpus of at least two described images"
            )
        if not self.plan.resample:
            return
        counts = self._text_counts, self._image_counts
        if stuck := len(degenerate_anchors(self._texts, self._images, self.relation, counts)):
            raise ValueError(
                f"all negatives of {stuck} of {len(anchors)} captions describe each other; keep "
                "longer lists, or draw with resample=False"
            )


@final
class _Ambiguity:
    """How often the entries of each list are drawn, by their scores; see `SamplingConfig`.

    Args:
        scores: (Q, k) of the entries, the usable ones first.
        counts: (Q,) number of usable ones. Others, which fill an empty list, have no score.
        plan: how to draw.
    """

    def __init__(self, scores: Tensor, counts: Tensor, plan: SamplingConfig) -> None:
        listed = torch.arange(scores.shape[1]) < counts.unsqueeze(1)
        self.scores, self.plan = scores.masked_fill(~listed, torch.nan), plan
        known = scores[listed].double()
        unit = known.std(correction=0).item() if len(known) else 0.0
        self._unit = unit or 1.0  # where all scores are equal, all are drawn alike

    def log_weights(self, lists: Tensor, true: Tensor) -> Tensor:
        """(B, k) float64 for (B,) lists and scores of true pairs; 0 where there is no score."""
        gap = (self.scores[lists].double() - true.double().unsqueeze(1)) / self._unit
        weights = -self.plan.ambiguity * (gap - self.plan.centre).square()
        return weights.masked_fill(gap.isnan(), 0.0)

    def ranks(self, lists: Tensor, true: Tensor, counts: Tensor, rng: torch.Generator) -> Tensor:
        """Draw a rank in lists, of any shape, of (Q,) `counts` entries, with their true scores."""
        rows = lists.flatten()
        beyond = torch.arange(self.scores.shape[1]) >= counts[rows].unsqueeze(1)
        weights = self.log_weights(rows, true.flatten()).masked_fill(beyond, -torch.inf)
        return _drawn_by(weights, rng).view(lists.shape)


def _drawn_by(log_weights: Tensor, rng: torch.Generator) -> Tensor:
    """Draw a column of each row of (B, k) logarithms of weights, which are not all -inf."""
    top = log_weights.amax(1, keepdim=True)
    sums = (log_weights - top).exp().cumsum(1)
    drawn = torch.rand(len(sums), 1, generator=rng, dtype=torch.float64) * sums[:, -1:]
    # the first column whose sum is above the number, never one of weight 0; the product may round
    # up to the whole sum
    last = (sums < sums[:, -1:]).sum(1)
    return torch.searchsorted(sums, drawn, right=True).squeeze(1).minimum(last)


def _listed_scores(
    lists: HardNegativeLists, texts: int, images: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of the first entries of the lists of images and of texts, and of true pairs.

    Raises:
        ValueError: see `check_listed_scores`.
    """
    check_listed_scores(
        lists,
        "ambiguity draws negatives by their scores and those of true pairs",
        "mine them with `counterfoil mine`, or leave ambiguity out",
    )
    assert lists.text_scores is not None
    assert lists.image_scores is not None
    assert lists.true_scores is not None
    return lists.text_scores[:, :texts], lists.image_scores[:, :images], lists.true_scores


def check_listed_scores(lists: HardNegativeLists, reason: str, instead: str) -> None:
    """Check that lists hold scores of listed and of true pairs, which float16 can tell apart.

    Args:
        lists: the lists.
        reason: what the scores are for.
        instead: what to do where there are none.

    Raises:
        ValueError: they do not.
    """
    stored = lists.text_scores, lists.image_scores, lists.true_scores
    known = [scores for scores in stored if scores is not None]
    if len(known) < len(stored):
        what = "scores" if lists.text_scores is None else "scores of the true pairs"
        raise ValueError(f"{reason}, and these lists hold no {what}; {instead}")
    largest = torch.finfo(torch.half).max  # of a larger one this is stored
    beyond = sum(int((scores.isfinite() & (scores.abs() >= largest)).sum()) for scores in known)
    finite = torch.cat([scores[scores.isfinite()] for scores in known])
    if beyond or (len(finite) and bool(finite.min() == finite.max())):
        fault = f"{beyond:,} are beyond {largest:,.0f}" if beyond else "all are equal"
        raise ValueError(
            f"{reason}; of the scores of these lists {fault}, so that they cannot be told apart in "
            "float16; mine with a model of other scores, as one trained with another scale"
        )


def hardest_entries(
    lists: HardNegativeLists, relation: Relation, plan: SamplingConfig
) -> tuple[Tensor, Tensor]:
    """Return the part of the lists of texts and of images that a plan draws from.

    Raises:
        ValueError: lists of another data set, or shorter than the plan needs.
    """
    lists = lists.checked(relation)

    def first(entries: Tensor, count: int, noun: str) -> Tensor:
        if count > entries.shape[1]:
            raise ValueError(
                f"{count} {noun} are wanted, but the lists hold {entries.shape[1]}; ask for "
                "fewer or mine longer lists"
            )
        return entries[:, :count] if count else entries

    texts = first(lists.texts, plan.texts, "texts of an image")
    count = images_for_texts(texts.shape[1], relation) if plan.images is None else plan.images
    return texts, first(lists.images, count, "images of a text")


def images_for_texts(texts: int, relation: Relation) -> int:
    """Return the number of images for a number of texts.

    AOQ keeps h texts and h / 5 images of data with five captions an image; here h is divided by the
    mean number of captions of a described image. At least 1, at most all images.

    >>> images_for_texts(300, Relation(torch.arange(500) // 5, images=100))
    60
    """
    described = int((relation.counts > 0).sum())
    captions = int(relation.counts.sum())
    return max(1, min(-(-texts * described // max(captions, 1)), relation.images))


_NO_TEXTS = frozenset[int]()


@final
class NeighbourImages:
    """Brings one mined hard image of each anchor into the batch, by one of its captions.

    NegCLIP (https://arxiv.org/abs/2210.01936), section 4: a batch of B pairs becomes one of 2B, in
    which every image and every caption is a negative of the others; false captions are generated
    for those of the neighbours, too. The image is drawn uniformly from the list of the anchor
    caption, the caption uniformly from those of the image.

    Departs from the authors' code in: neighbours are the wrong images that score highest with the
    anchor caption, not the nearest to its image; a caption that is in the batch already is left
    out, and so is one that an extra positive connects with the batch, so there may be fewer than
    2B; two captions of one image are both true of it. Of the lists only those of texts are read;
    images without captions are not drawn.

    Raises:
        ValueError: lists of another data set, or no anchor has a neighbour.

    >>> relation = Relation(torch.tensor([0, 1, 2]), images=3)
    >>> rows = torch.tensor([[1], [2], [0]], dtype=torch.int32)
    >>> neighbours = NeighbourImages(lists=HardNegativeLists(rows, rows), relation=relation)
    >>> neighbours.joined(torch.tensor([0, 1]), torch.Generator().manual_seed(0))
    tensor([0, 1, 2])
    """

    def __init__(self, *, lists: HardNegativeLists, relation: Relation) -> None:
        lists = lists.checked(relation)
        self.relation = relation
        self._conflicts = conflicts_of(separate_texts(relation))
        self._images, self._counts, _ = usable_entries(lists.images, relation.counts > 0)
        if not bool((self._counts[relation.text_to_image >= 0] > 0).any()):
            raise ValueError(
                "no caption has a mined image that could join it in a batch; mine again from a "
                "corpus of at least two described images"
            )

    def joined(self, texts: Tensor, rng: torch.Generator) -> Tensor:
        """Return (B + N,) text rows: the (B,) anchors, then N <= B captions of neighbours."""
        anchors = texts[self._counts[texts] > 0]
        images = self._images[anchors, random_below(self._counts[anchors], rng)].long()
        batch = dict.fromkeys(texts.tolist())  # a set that keeps its order
        for text in self.relation.random_caption(images, rng).tolist():
            if self._conflicts.get(text, _NO_TEXTS).isdisjoint(batch):
                batch[text] = None
        return torch.tensor(list(batch))


Source = Literal["random", "mined"]
Streams = Literal["one", "two"]


@final
@dataclass(frozen=True, kw_only=True)
class CandidateConfig:
    """Numbers of candidates that an online miner gets for each anchor; none if both are 0.

    UNITER and TAGS use 399 random texts and as many images.

    Attributes:
        texts: wrong texts of each anchor's image.
        images: wrong images of each anchor text.
        source: "random" draws from the whole data set, with replacement; "mined" from mined lists,
            without, and as far down as `SamplingConfig` says.
        streams: "one" draws both for every anchor. "two" draws texts for every second anchor and
            images for the others, so that the two directions are trained on different pairs: the
            form of UNITER's authors, for half as many anchors a direction. The mean of a loss over
            the batch then counts a direction half; a weight of 2 gives the authors' sum.

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
        parse_literal(Source, self.source, "a source of candidates")
        parse_literal(Streams, self.streams, "a form of streams")

    @property
    def provides(self) -> frozenset[Role]:
        """Roles of the candidates."""
        counts = ((Role.HARD_TEXT, self.texts), (Role.HARD_IMAGE, self.images))
        return frozenset(role for role, count in counts if count)

    def draws(
        self,
        relation: Relation,
        lists: HardNegativeLists | None = None,
        plan: SamplingConfig | None = None,
    ) -> NegativeSampler:
        """Create the sampler for a data set; `lists` and `plan` are for the source "mined".

        Raises:
            ValueError: no wrong pair exists, or the lists are too short or of another data set.
        """
        sampler: NegativeSampler
        if self.source == "random":
            sampler = RandomNegativeSampler(relation=relation, texts=self.texts, images=self.images)
        else:
            assert lists is not None
            sampler = ListedCandidates(lists=lists, relation=relation, offer=self, plan=plan)
        return sampler if self.streams == "one" else AlternatingCandidates(sampler)


@final
class ListedCandidates:
    """Draws candidates from mined lists without replacement; -1 where a list is short.

    Texts of no image and images without captions are not drawn. Of the plan, neither `count` nor
    the rules for pairs of negatives are used.

    Raises:
        ValueError: lists of another data set, or too short, or a plan that draws by scores.
    """

    def __init__(
        self,
        *,
        lists: HardNegativeLists,
        relation: Relation,
        offer: CandidateConfig,
        plan: SamplingConfig | None = None,
    ) -> None:
        if plan is not None and plan.ambiguity:
            raise ValueError(
                f"ambiguity={plan.ambiguity} draws single negatives by their scores, and the "
                "candidates of an online miner are drawn alike, as it keeps the hardest; leave "
                "ambiguity out, or draw with Mined"
            )
        texts, images = hardest_entries(lists, relation, plan or SamplingConfig())
        for count, rows, noun in ((offer.texts, texts, "texts"), (offer.images, images, "images")):
            if count > rows.shape[1]:
                raise ValueError(
                    f"{count} {noun} cannot be offered from the {rows.shape[1]} hardest; offer "
                    "fewer, draw from further down, or mine longer lists"
                )
        self.relation, self.offer, self.provides = relation, offer, offer.provides
        self._texts = usable_entries(texts, relation.text_to_image >= 0)[:2]
        self._images = usable_entries(images, relation.counts > 0)[:2]

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw pairs for (B,) anchor texts, by role, each (B, texts) or (B, images)."""
        own, pairs = self.relation.text_to_image[texts], {}
        if self.offer.texts:
            rows = _draw_distinct(self.offer.texts, *self._texts, own, rng)
            pairs[Role.HARD_TEXT] = Pairs(own.unsqueeze(1).expand_as(rows), rows)
        if self.offer.images:
            rows = _draw_distinct(self.offer.images, *self._images, texts, rng)
            pairs[Role.HARD_IMAGE] = Pairs(rows, texts.unsqueeze(1).expand_as(rows))
        return pairs


@final
class AlternatingCandidates:
    """Draws texts for every second anchor of a batch and images for the others.

    Which direction comes first is random.
    """

    def __init__(self, draws: NegativeSampler) -> None:
        self.draws, self.provides = draws, draws.provides

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        """Draw; -1 in the roles of the other direction."""
        first = int(torch.randint(2, (1,), generator=rng))
        other = (torch.arange(len(texts)) % 2 == first).unsqueeze(1)
        pairs = dict(self.draws.draw(texts, rng))
        if pair := pairs.get(Role.HARD_TEXT):
            pairs[Role.HARD_TEXT] = Pairs(pair.image, pair.text.masked_fill(other, -1))
        if pair := pairs.get(Role.HARD_IMAGE):
            pairs[Role.HARD_IMAGE] = Pairs(pair.image.masked_fill(~other, -1), pair.text)
        return pairs


def _draw_distinct(
    count: int, lists: Tensor, lengths: Tensor, rows: Tensor, rng: torch.Generator
) -> Tensor:
    """Draw (B, count) long rows from lists without replacement; -1 where they are shorter."""
    beyond = torch.arange(lists.shape[1]) >= lengths[rows].unsqueeze(1)
    # A random order of each list: sort uniform numbers, with those beyond its end (2 > 1) last.
    order = torch.rand(beyond.shape, generator=rng, dtype=torch.float64).masked_fill(beyond, 2)
    place = order.argsort(1)[:, :count]
    return lists[rows].gather(1, place).long().masked_fill(beyond.gather(1, place), -1)
