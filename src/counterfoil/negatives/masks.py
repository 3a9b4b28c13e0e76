"""Which words of a caption are hidden, so that other words can be written in their place.

TAGS (https://arxiv.org/abs/2111.03349, section 2.1.1) hides whole phrases: each is chosen with the
mean, over its tokens, of 0.15 divided by the number of phrases that a token is part of; where none
is chosen, any one of them. Word masking is UNITER's: each token by itself, the first where none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.core.literals import parse_choice
from counterfoil.reading import Slots
from counterfoil.records import Items

Singles = Literal["without phrases", "always", "only"]
SINGLES: tuple[Singles, ...] = ("without phrases", "always", "only")
HIDDEN, EXCHANGED = 0.8, 0.1  # of the slots; the others keep their word
SHARE = 0.15


@final
@dataclass(frozen=True, slots=True)
class Masked:
    """K masked forms of each of B texts.

    Attributes:
        texts: (B * K) texts, those of one text side by side.
        slots: (M,) the tokens that were hidden, text by text and from left to right.
        labels: (M,) long, what stood there.
    """

    texts: Items
    slots: Slots
    labels: Tensor


def table(phrases: Sequence[Sequence[Sequence[int]]], length: int) -> Tensor:
    """(B, N, L) bool, True where a token belongs to a phrase, from the places of its tokens.

    Phrases without a token before `length` are left out; a phrase that stands twice is two.
    """
    kept = [
        [inside for phrase in some if (inside := [p for p in phrase if p < length])]
        for some in phrases
    ]
    out = torch.zeros(len(kept), max(map(len, kept), default=0), length, dtype=torch.bool)
    for text, some in enumerate(kept):
        for number, places in enumerate(some):
            out[text, number, places] = True
    return out


def with_singles(phrases: Tensor, words: Tensor, *, singles: Singles) -> Tensor:
    """(B, N + L, L) phrases and, where they are wanted, every word as one.

    Args:
        phrases: (B, N, L) bool.
        words: (B, L) bool, tokens that are no special ones.
        singles: "without phrases" gives single words to texts without a phrase, "always" to all,
            and "only" gives nothing else: word masking.
    """
    parse_choice(SINGLES, singles, "a way to hide single words")
    one = torch.diag_embed(words)
    if singles == "without phrases":
        one = one & ~phrases.flatten(1).any(1)[:, None, None]
    return one if singles == "only" else torch.cat([phrases, one], 1)


def chances(phrases: Tensor, *, share: float = SHARE) -> Tensor:
    """(B, N) how likely each phrase is chosen, 0 for one without tokens.

    Args:
        phrases: (B, N, L) bool.
        share: how likely a token is hidden, divided by the number of phrases that it is part of.
    """
    many = phrases.sum(1, keepdim=True).clamp(min=1)
    return (phrases * (share / many.double())).sum(2) / phrases.sum(2).clamp(min=1)


def chosen(
    phrases: Tensor, *, times: int, rng: torch.Generator, share: float = SHARE, first: bool = False
) -> Tensor:
    """(B, K, L) bool, the tokens that are hidden in each of K maskings of each text.

    Nothing is hidden in a text that has no phrase at all.

    Args:
        phrases: (B, N, L) bool, on the CPU.
        times: K.
        rng: of the choice.
        share: see `chances`.
        first: force the first phrase where none was chosen, instead of any.
    """
    size = len(phrases), times, phrases.shape[1]
    there = phrases.any(2)
    if not size[2]:
        return torch.zeros(*size[:2], phrases.shape[2], dtype=torch.bool)
    picked = (
        torch.rand(size, generator=rng, dtype=torch.double) < chances(phrases, share=share)[:, None]
    )
    order = torch.rand(size, generator=rng).masked_fill(~there[:, None], 2.0)
    forced = there.int().argmax(1)[:, None].expand(size[:2]) if first else order.argmin(2)
    none = ~picked.any(2) & there.any(1, keepdim=True)
    picked[none] = torch.nn.functional.one_hot(forced, size[2]).bool()[none]
    return (picked.double() @ phrases.double()) > 0


def masked(
    texts: Items, slots: Tensor, *, mask: int, words: Tensor, rng: torch.Generator
) -> Masked:
    """Texts with what stands in the slots hidden (80 %), exchanged (10 %), or left (10 %).

    Args:
        texts: B of them.
        slots: (B, K, L) bool, on the CPU.
        mask: id of the token that hides a word.
        words: (W,) long, on the CPU, ids of all words that may stand there.
        rng: of what happens to each slot.
    """
    times, device = slots.shape[1], texts.values.device
    pair, place = slots.flatten(0, 1).nonzero(as_tuple=True)
    fate = torch.rand(len(pair), generator=rng)
    other = words[torch.randint(len(words), (len(pair),), generator=rng)]
    pair, place, fate, other = (t.to(device) for t in (pair, place, fate, other))
    several = repeated(texts, times)
    labels = several.values[pair, place]
    values = several.values.clone()
    new = other.where(fate >= HIDDEN, mask)
    values[pair, place] = new.where(fate < HIDDEN + EXCHANGED, labels)
    return Masked(replace(several, values=values), Slots(pair, place), labels)


def repeated(texts: Items, times: int) -> Items:
    """Each text so often, side by side, as texts that stand in no corpus."""
    row = torch.arange(len(texts), device=texts.values.device).repeat_interleave(times)
    some = texts.rows(row)
    return replace(some, ids=torch.full_like(some.ids, -1), targets=None)
