"""Mined negatives that may be true: what to show to somebody who can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.tiles import Member
from counterfoil.negatives.diagnosis import pair_scores
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.suspects import Looked, Suspects, above, by_words
from counterfoil.records import Pairs

TEXTS, IMAGES = 20, 5  # the hardest of each list, which are looked at


@final
@dataclass(frozen=True, slots=True)
class Doubtful:
    """A listed pair that may be true.

    Attributes:
        image: its row.
        text: its row.
        reasons: names of the estimates that suspect it.
        gap: its score less that of the anchor's positive, the greater where it is listed on both
            sides; None where no model was asked.
    """

    image: int
    text: int
    reasons: tuple[str, ...]
    gap: float | None


def too_true(
    lists: Lists, corpus: Corpus, members: Sequence[Member], *, alike: float
) -> list[Doubtful]:
    """Listed pairs that are suspected, those suspected for most reasons first, then by score.

    An image's positive is the lowest score of its own captions, as in `FilterPlan`.

    Args:
        lists: mined from this corpus.
        corpus: the split that was mined.
        members: models with what they encoded, whose mean score is compared; none for no scores.
        alike: TF-IDF cosine that makes a text suspect.

    Raises:
        ValueError: the lists are not of this corpus, or `alike` out of range.
    """
    lists.check(corpus.relation)
    sides = _sides(lists, corpus)
    limits = _limits(corpus, members, sides)
    found: dict[tuple[int, int], Doubtful] = {}
    for looked, limit, worded in zip(sides, limits, by_words(corpus, sides, least=alike)):
        scores = _listed(members, looked) if members else None
        estimates = [*worded, *([above(looked, scores, limit)] if scores is not None else [])]
        for one in _doubtful(looked, estimates, scores, limit):
            known = found.get((one.image, one.text))
            found[one.image, one.text] = one if known is None else _both(known, one)
    return sorted(found.values(), key=lambda d: (-len(d.reasons), -(d.gap or 0.0), d.image, d.text))


def _sides(lists: Lists, corpus: Corpus) -> tuple[Looked, Looked]:
    """The hardest texts of every image that has a caption, and the hardest images of every text."""
    relation = corpus.relation
    images = (relation.counts > 0).nonzero().squeeze(1)
    texts = (corpus.owner >= 0).nonzero().squeeze(1)
    captions, counts = relation.captions(images)
    first = captions[counts.cumsum(0) - counts]
    hard_texts = lists.texts[images, :TEXTS].long()
    hard_images = lists.images[texts, :IMAGES].long()
    return (
        Looked(
            Pairs(images, first),
            Pairs(images.unsqueeze(1).expand_as(hard_texts), hard_texts),
            hard_texts >= 0,
        ),
        Looked(
            Pairs(corpus.owner[texts], texts),
            Pairs(hard_images, texts.unsqueeze(1).expand_as(hard_images)),
            hard_images >= 0,
        ),
    )


def _limits(
    corpus: Corpus, members: Sequence[Member], sides: tuple[Looked, Looked]
) -> tuple[Tensor, Tensor]:
    """(S,) what the anchors' positives score: the lowest of an image's, a text's own."""
    own = sides[1].anchors
    if not members:
        return torch.zeros(len(sides[0].anchors.image)), torch.zeros(len(own.image))
    scores = pair_scores(members, own)
    lowest = torch.full((len(corpus),), torch.inf).scatter_reduce(0, own.image, scores, "amin")
    return lowest[sides[0].anchors.image], scores


def _listed(members: Sequence[Member], looked: Looked) -> Tensor:
    pairs, listed = looked.pairs, looked.listed
    found = torch.full(listed.shape, -torch.inf)
    found[listed] = pair_scores(members, Pairs(pairs.image[listed], pairs.text[listed]))
    return found


def _doubtful(
    looked: Looked, estimates: Sequence[Suspects], scores: Tensor | None, limit: Tensor
) -> list[Doubtful]:
    if not estimates:
        return []
    some = torch.stack([estimate.found for estimate in estimates]).any(0)
    found = []
    for line, place in some.nonzero().tolist():
        reasons = tuple(one.name for one in estimates if bool(one.found[line, place]))
        gap = None if scores is None else float(scores[line, place] - limit[line])
        image, text = int(looked.pairs.image[line, place]), int(looked.pairs.text[line, place])
        found.append(Doubtful(image, text, reasons, gap))
    return found


def _both(one: Doubtful, other: Doubtful) -> Doubtful:
    reasons = tuple(dict.fromkeys((*one.reasons, *other.reasons)))
    gaps = [gap for gap in (one.gap, other.gap) if gap is not None]
    return Doubtful(one.image, one.text, reasons, max(gaps, default=None))
