"""How captions are written: what is hidden of them, and what is put in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.core.literals import parse_choice
from counterfoil.matcher import Matcher
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.masks import (
    SHARE,
    SINGLES,
    Masked,
    Singles,
    chosen,
    masked,
    with_singles,
)
from counterfoil.negatives.refills import drawn, probabilities, refilled
from counterfoil.negatives.saliency import words_of
from counterfoil.reading import ReadsWords, Want
from counterfoil.records import Items


@final
@dataclass(frozen=True, slots=True)
class Hidden:
    """B captions of which some words are hidden.

    Attributes:
        texts: the captions as they are.
        slots: (B, K, L) bool, the slots of each masking.
        masked: the B * K masked captions.
    """

    texts: Items
    slots: Tensor
    masked: Masked


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Hand:
    """K maskings of a caption, C refills of each (TAGS, section 2.1).

    Attributes:
        masks: K, maskings of each caption.
        refills: C, refills of each masking.
        temperature: of the draw of words.
        share: of the tokens that are hidden, roughly.
        singles: "only" hides single words (UNITER's way) instead of phrases; "always" hides them
            besides phrases.
        specials: special tokens may be written, as in the authors' code (T4).

    Raises:
        ValueError: a number that is not possible, or an unknown way to hide single words.
    """

    masks: int = 20
    refills: int = 20
    temperature: float = 1.5
    share: float = SHARE
    singles: Singles = "without phrases"
    specials: bool = False

    def __post_init__(self) -> None:
        at_least_one({"masks": self.masks, "refills": self.refills})
        if not self.temperature > 0 or not 0 < self.share <= 1:
            raise ValueError(
                f"temperature={self.temperature} and share={self.share} are not possible; a "
                "temperature is above 0, a share above 0 and at most 1"
            )
        parse_choice(SINGLES, self.singles, "a way to hide single words")

    def hidden(
        self, desk: Desk, rows: Tensor, *, mask: int, rng: torch.Generator, device: torch.device
    ) -> Hidden:
        """K masked forms of captions.

        Args:
            desk: where they lie.
            rows: (B,) which captions of the corpus.
            mask: id of the token that hides a word.
            rng: of what is hidden, and how.
            device: where the captions go.
        """
        texts = desk.texts(rows)
        words = texts.mask & ~desk.banned[texts.values]
        phrases = with_singles(desk.phrases(rows, texts.mask.shape[1]), words, singles=self.singles)
        slots = chosen(
            phrases, times=self.masks, rng=rng, share=self.share, first=self.singles == "only"
        )
        texts = texts.to(device)
        some = masked(texts, slots, mask=mask, words=desk.words, rng=rng)
        return Hidden(texts, slots.to(device), some)

    def written(self, desk: Desk, of: Hidden, logits: Tensor, rng: torch.Generator) -> Tensor:
        """(B, K * C, L) long, the captions with new words in their slots.

        Args:
            desk: where they lie.
            of: what is hidden of them.
            logits: (M, V) what the writer makes of the slots.
            rng: of the draw of words.
        """
        banned = desk.banned_of(logits.shape[1], specials=self.specials).to(logits.device)
        chances = probabilities(logits, temperature=self.temperature, banned=banned)
        new = refilled(of.masked.texts.values, of.masked.slots, drawn(chances, self.refills, rng))
        return new.view(len(of.texts), -1, new.shape[1])


def at_least_one(numbers: Mapping[str, int]) -> None:
    """Refuse numbers below 1, by name.

    Raises:
        ValueError: one is.
    """
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}={number} is not possible; it must be at least 1")


def able(matcher: Matcher, asked: set[Want], what: str, instead: str) -> None:
    """Whether a model has heads for what is asked of it.

    Args:
        matcher: the model.
        asked: what is asked; nothing asks nothing of it.
        what: the model in words, as in "the filler".
        instead: what to do where it does not read words at all.

    Raises:
        ValueError: it has not.
    """
    if not asked:
        return
    if not isinstance(matcher, ReadsWords):
        raise ValueError(f"{what} {type(matcher).__name__} does not read words; {instead}")
    if missing := sorted(want.value for want in asked - matcher.wants):
        raise ValueError(
            f"{what} {type(matcher).__name__} has no heads for {', '.join(missing)}; it has "
            f"{', '.join(sorted(want.value for want in matcher.wants))}: name them in its outputs"
        )


def mask_of(desk: Desk, writer: Matcher) -> int:
    """The token that hides a word.

    Raises:
        ValueError: nobody has one.
    """
    if desk.mask is not None:
        return desk.mask
    own = words_of(writer).mask_word
    found = desk.tokenizer.mask if own is None else own
    if found is None:
        raise ValueError(
            "neither the writer nor its tokenizer has a token that hides a word; give its id "
            "to the desk as mask, such as 3 for <unk>"
        )
    return found
