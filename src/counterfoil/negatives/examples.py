"""Anchors with their online and offline negatives, to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.relation import Relation
from counterfoil.engine.tiles import Member
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.online_rank import anchor_scores, places


@final
@dataclass(frozen=True, slots=True)
class Listed:
    """Some counterparts of an anchor, hardest first.

    Attributes:
        rows: of texts or images.
        places: rank of each among all wrong counterparts, from 1; for a true one, before how many
            wrong ones it is preceded, plus one.
        scores: of the pairs.
    """

    rows: tuple[int, ...]
    places: tuple[int, ...]
    scores: tuple[float, ...]


@final
@dataclass(frozen=True, slots=True)
class Example:
    """One side of an anchor pair.

    Attributes:
        row: the image or the text that asks.
        true: its true counterparts.
        online: the hardest negatives of random batches, each once.
        offline: drawn uniformly from the hardest of all.
    """

    row: int
    true: Listed
    online: Listed
    offline: Listed


@final
@dataclass(frozen=True, kw_only=True)
class Kinds:
    """How negatives are chosen.

    Attributes:
        batch: captions in a batch, the anchor among them.
        texts: draw offline from the so many hardest texts of an image.
        images: draw offline from the so many hardest images of a text.
        shown: how many of each kind, at most.
    """

    batch: int
    texts: int
    images: int
    shown: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """All that could be counterparts of one anchor."""

    row: int
    scores: Tensor
    wrong: Tensor
    true: Tensor

    def listed(self, rows: Tensor) -> Listed:
        """These rows, hardest first."""
        place = places(self.scores, self.wrong)
        rows = rows[self.scores[rows].argsort(descending=True, stable=True)]
        ahead = [
            int(place[row])
            if self.wrong[row]
            else 1 + int((self.wrong & (self.scores > self.scores[row])).sum())
            for row in rows
        ]
        return Listed(tuple(rows.tolist()), tuple(ahead), tuple(self.scores[rows].tolist()))

    def example(self, batches: Tensor, mined: Tensor, shown: int, rng: torch.Generator) -> Example:
        """The hardest of each batch of counterparts, and a draw from the list."""
        place = places(self.scores, self.wrong)
        hardest = batches.gather(1, place[batches].argmin(1, keepdim=True)).squeeze(1)
        hardest = torch.tensor(sorted({*hardest[self.wrong[hardest]].tolist()}), dtype=torch.long)
        drawn = mined[torch.randperm(len(mined), generator=rng)[:shown]]
        return Example(self.row, *(self.listed(rows) for rows in (self.true, hardest, drawn)))


def examples(
    members: Sequence[Member],
    relation: Relation,
    *,
    kinds: Kinds,
    anchors: int,
    rng: torch.Generator,
    lists: Lists | None = None,
) -> list[tuple[Example, Example]]:
    """Images and one caption of each, with online and offline negatives (AOQ, Fig. 3).

    Args:
        members: models with what they encoded; several are an ensemble.
        relation: who describes whom.
        kinds: how negatives are chosen.
        anchors: how many images, at most.
        rng: of anchors, batches and draws.
        lists: mined before, perhaps by others; without them the members' own hardest.

    Returns:
        For each anchor pair the image's side and the text's side.

    Raises:
        ValueError: no two images are described.
    """
    described = (relation.counts > 0).nonzero().squeeze(1)
    if len(described) < 2:
        raise ValueError(f"{len(described)} images have captions; negatives need at least 2")
    images = described[torch.randperm(len(described), generator=rng)[:anchors]]
    texts = relation.random_caption(images, rng)
    found = []
    for image, text, row, column in zip(images, texts, *anchor_scores(members, relation, texts)):
        owner = relation.owner
        left = _Side(int(image), row, (owner >= 0) & (owner != image), _at(owner == image))
        wrong = (relation.counts > 0) & (relation.rows() != image)
        right = _Side(int(text), column, wrong, image.unsqueeze(0))
        batches = _batches(relation, int(text), kinds, rng)
        mined = (
            _hardest(left, kinds.texts, lists.texts[image] if lists else None),
            _hardest(right, kinds.images, lists.images[text] if lists else None),
        )
        found.append(
            (
                left.example(batches, mined[0], kinds.shown, rng),
                right.example(owner[batches], mined[1], kinds.shown, rng),
            )
        )
    return found


def _at(chosen: Tensor) -> Tensor:
    return chosen.nonzero().squeeze(1)


def _batches(relation: Relation, text: int, kinds: Kinds, rng: torch.Generator) -> Tensor:
    """(shown, B - 1) the other captions of as many batches."""
    others = _at(relation.owner >= 0)
    others = others[others != text]
    rest = min(kinds.batch, len(others) + 1) - 1
    drawn = [torch.randperm(len(others), generator=rng)[:rest] for _ in range(kinds.shown)]
    return others[torch.stack(drawn)]


def _hardest(side: _Side, count: int, mined: Tensor | None) -> Tensor:
    """The hardest wrong rows: as mined, or by the side's own scores."""
    if mined is not None:
        return mined[mined >= 0][:count].long()
    place = places(side.scores, side.wrong)
    return _at(side.wrong & (place <= count))
