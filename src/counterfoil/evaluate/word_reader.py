"""What a model with heads for words says of sentences, part by part and without a graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.words import Tokenizer
from counterfoil.data.caption_edits import PIECE, token_text
from counterfoil.engine.modes import evaluating
from counterfoil.matcher import Matcher
from counterfoil.reading import Reading, ReadsWords, Slots, Want
from counterfoil.records import Encoded, Items

AT_ONCE = {"cpu": 64, "cuda": 1024}  # sentences read together


@final
@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences with the images that they are shown with.

    Attributes:
        ids: (N, L) long tokens.
        mask: (N, L) bool, True where one is real.
        image: (N,) long, which image goes with each.
    """

    ids: Tensor
    mask: Tensor
    image: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, rows: Tensor) -> Sentences:
        """Some of them."""
        return Sentences(self.ids[rows], self.mask[rows], self.image[rows])

    def saying(self, ids: Tensor) -> Sentences:
        """The same with other tokens."""
        return replace(self, ids=ids)


@final
@dataclass(frozen=True, slots=True)
class Offers:
    """The likeliest tokens at M places.

    Attributes:
        ids: (M, K) long, the likeliest first.
        logs: (M, K) their log probabilities among all tokens that may stand there.
        own: (M,) that of the token that does.
    """

    ids: Tensor
    logs: Tensor
    own: Tensor


@final
class WordReader:
    """A model with heads for words before some images.

    Args:
        matcher: reads words.
        tokenizer: its own.
        images: those that sentences are shown with.
    """

    def __init__(self, matcher: Matcher, tokenizer: Tokenizer, images: Encoded) -> None:
        assert isinstance(matcher, ReadsWords)
        self.matcher: ReadsWords = matcher
        self.encoder, self.tokenizer = matcher, tokenizer
        self.device = next(matcher.parameters()).device
        self.images = images.to(self.device)

    def scores(self, told: Sentences) -> Tensor:
        """(N,) how well each fits its image."""
        return torch.cat([_there(one.score) for one in self._read(told, Want.SCORE)]).double()

    def doubts(self, told: Sentences) -> tuple[Tensor, Tensor]:
        """(N,) scores, and (N, L) how likely each token is wrong."""
        parts = self._read(told, Want.SCORE, Want.DOUBT)
        doubts = [_there(one.doubt).double().softmax(2)[..., 0] for one in parts]
        return torch.cat([_there(one.score) for one in parts]).double(), torch.cat(doubts)

    def offers(self, told: Sentences, slots: Slots, begins: Tensor, most: int) -> Offers:
        """The likeliest tokens at some places of sentences that stand there as they are.

        Special tokens and punctuation are none of them; where a word begins, neither are pieces
        that go on with one.

        Args:
            told: the sentences.
            slots: M places, in the order of the sentences.
            begins: (M,) bool, whether a word begins there.
            most: K; fewer where the vocabulary is smaller.
        """
        found = []
        for start, one in zip(self._starts(told), self._read(told, Want.CORRECT, slots=slots)):
            inside = _within(slots.pair, start, self._at_once)
            logits = _there(one.correct).double().cpu()
            barred = self._barred(logits.shape[1])
            logits = logits.masked_fill(barred[begins[inside].long()], -torch.inf)
            logs = logits.log_softmax(1)
            own = told.ids[slots.pair[inside], slots.place[inside]]
            best = logs.topk(min(most, self.tokenizer.size), dim=1)
            found.append((best.indices, best.values, logs.gather(1, own.unsqueeze(1)).squeeze(1)))
        ids, logs, own = (torch.cat(part) for part in zip(*found, strict=True))
        return Offers(ids, logs, own)

    @property
    def _at_once(self) -> int:
        return AT_ONCE.get(self.device.type, AT_ONCE["cuda"])

    def _starts(self, told: Sentences) -> range:
        return range(0, len(told), self._at_once)

    def _read(self, told: Sentences, *want: Want, slots: Slots | None = None) -> list[Reading]:
        """The readings of parts of the sentences."""
        readings = []
        with evaluating([self.encoder]):
            for start in self._starts(told):
                part = told.rows(torch.arange(start, min(start + self._at_once, len(told))))
                long = int(part.mask.sum(1).max())
                texts = Items(torch.full((len(part),), -1), part.ids[:, :long], part.mask[:, :long])
                asked = None if slots is None else self._asked(slots, start)
                readings.append(
                    self.matcher.read(
                        self.images.rows(part.image),
                        self.encoder.encode_texts(texts.to(self.device)),
                        frozenset(want),
                        asked,
                    )
                )
        width = told.ids.shape[1]
        return [_moved(one, width) for one in readings]

    def _asked(self, slots: Slots, start: int) -> Slots:
        inside = _within(slots.pair, start, self._at_once)
        pair, place = slots.pair[inside] - start, slots.place[inside]
        return Slots(pair.to(self.device), place.to(self.device))

    def _barred(self, width: int) -> Tensor:
        """(2, V) bool: what never stands inside a word, and where one begins."""
        special, goes_on = self._kinds
        barred = torch.ones(2, width, dtype=torch.bool)
        known = min(width, self.tokenizer.size)
        barred[0, :known], barred[1, :known] = special[:known], (special | goes_on)[:known]
        return barred

    @cached_property
    def _kinds(self) -> tuple[Tensor, Tensor]:
        """(V,) bool each: what is part of no word, and pieces that go on with one."""
        spelt = self.tokenizer.tokens(range(self.tokenizer.size))
        special = torch.tensor([not any(map(str.isalnum, token_text(one))) for one in spelt])
        special[list(self.tokenizer.wordless)] = True
        return special, torch.tensor([one.startswith(PIECE) for one in spelt])


def _within(pair: Tensor, start: int, many: int) -> Tensor:
    """(M,) bool, the places in the sentences from `start` on."""
    return (pair >= start) & (pair < start + many)


def _there(answer: Tensor | None) -> Tensor:
    assert answer is not None, "it was asked for"
    return answer


def _moved(reading: Reading, width: int) -> Reading:
    """The answers on the CPU, doubts as wide as all sentences."""
    doubt = reading.doubt
    if doubt is not None:
        room = doubt.new_zeros(len(doubt), width, 2, device="cpu")
        room[:, : doubt.shape[1]] = doubt.cpu()
        doubt = room
    score, correct = (
        None if one is None else one.cpu() for one in (reading.score, reading.correct)
    )
    return Reading(score=score, doubt=doubt, correct=correct)
