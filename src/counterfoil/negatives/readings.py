"""Readings of many pairs: without a graph in parts, and shared between processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil import world
from counterfoil.engine.modes import evaluating
from counterfoil.engine.shares import shared
from counterfoil.matcher import Matcher
from counterfoil.reading import Reading, ReadsWords, Slots, Want
from counterfoil.records import Encoded, Items, Pairs

TEXTS_AT_ONCE = 1024


@final
@dataclass(frozen=True, slots=True)
class Shown:
    """Texts with the images that they are shown with.

    Attributes:
        images: I of them.
        texts: P of them.
        image: (P,) which image goes with each text.
    """

    images: Encoded
    texts: Items
    image: Tensor


def scored(matcher: Matcher, shown: Shown) -> Tensor:
    """(P,) scores in evaluation mode without a graph; each process scores a share of the texts."""
    count, device = len(shown.texts), shown.image.device

    def score(rows: Tensor | slice) -> Tensor:
        texts, image = shown.texts.rows(rows), shown.image[rows]
        parts = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = slice(start, start + TEXTS_AT_ONCE)
            some = matcher.encode_texts(texts.rows(part))
            pairs = Pairs(image[part], torch.arange(len(some), device=device))
            parts.append(matcher.listed(shown.images, some, pairs))
        return torch.cat(parts)

    if not count:
        return torch.zeros(0, device=device)
    with evaluating([matcher]):
        return shared(count, score, device)


def read(matcher: Matcher, shown: Shown, want: frozenset[Want], slots: Slots) -> Reading:
    """What is wanted of all texts, alike on all processes, each of which reads a share of them.

    Args:
        matcher: reads words.
        shown: P texts, at least one, with their images.
        want: what is asked.
        slots: M places in the texts, in the order of the texts.
    """
    assert isinstance(matcher, ReadsWords), "the step checks that it reads words"
    count, device = len(shown.texts), shown.image.device
    begin, end = _bounds(count, world.rank())
    rows = torch.arange(begin, end, device=device)
    inside = (slots.pair >= begin) & (slots.pair < end)
    here = Slots(slots.pair[inside] - begin, slots.place[inside])
    texts = matcher.encode_texts(shown.texts.rows(rows))
    found = matcher.read(shown.images.rows(shown.image[rows]), texts, want, here)
    if world.size() == 1:
        return found
    by_text, by_slot = _order(count, slots)
    return Reading(
        score=_together(found.score, by_text),
        fill=_together(found.fill, by_slot),
        doubt=_together(found.doubt, by_text),
        correct=_together(found.correct, by_slot),
    )


def _bounds(count: int, rank: int) -> tuple[int, int]:
    """First row of a process's share and the one after its last; the last row if it has none."""
    each = -(-count // world.size())
    begin = min(rank * each, count - 1)
    return begin, max(min((rank + 1) * each, count), begin + 1)


@final
@dataclass(frozen=True, slots=True)
class _Order:
    """How the rows of all processes lie when each sends `most` of them.

    Attributes:
        most: rows that each process sends.
        places: (n,) where the rows that count stand among what was sent.
    """

    most: int
    places: Tensor


def _order(count: int, slots: Slots) -> tuple[_Order, _Order]:
    """Of the texts, and of the slots."""
    each = -(-count // world.size())
    texts, words = [], []
    for rank in range(world.size()):
        begin, end = _bounds(count, rank)
        real = rank * each < count
        many = int(((slots.pair >= begin) & (slots.pair < end)).sum())
        texts.append((end - begin, real))
        words.append((many, real))
    return _placed(texts, slots.pair.device), _placed(words, slots.pair.device)


def _placed(sent: list[tuple[int, bool]], device: torch.device) -> _Order:
    most = max(many for many, _ in sent)
    places = [
        torch.arange(rank * most, rank * most + many, device=device)
        for rank, (many, real) in enumerate(sent)
        if real
    ]
    return _Order(most, torch.cat(places))


def _together(share: Tensor | None, order: _Order) -> Tensor | None:
    """The rows of all processes, with their gradients."""
    if share is None:
        return None
    room = pad(share, (0, 0) * (share.dim() - 1) + (0, order.most - len(share)))
    return world.gather_rows(room)[order.places]
