"""Accuracy of doubt and correction heads on generated captions, under every plausible definition.

TAGS-DC (https://arxiv.org/abs/2111.03349), section 4.4, reports 66.5 % for word discrimination with
a threshold of 0.5 and 87.3 % for word correction, but not over which words. Each definition comes
with a baseline: the accuracy of a model that trusts every word and changes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.evaluation.bootstrap import Counted

Task = Literal["doubt", "correct"]
THRESHOLD = 0.5


@final
@dataclass(frozen=True, slots=True, eq=False)
class WordsRead:
    """Predictions of a model for the tokens of W generated captions.

    Attributes:
        original: (W, L) long, tokens of the captions they were generated from.
        written: (W, L) long.
        mask: (W, L) bool, real tokens.
        said: (W, L) bool, real tokens without the special ones.
        slots: (W, L) bool, tokens masked during generation.
        right: (W, L) probability of being the original's token; None without a doubt head.
        better: (W, L) long, predicted tokens; None without a correction head.
        words: (W, L) long, word of each token; None where every token is a word.
    """

    original: Tensor
    written: Tensor
    mask: Tensor
    said: Tensor
    slots: Tensor
    right: Tensor | None
    better: Tensor | None
    words: Tensor | None = None

    def rows(self, index: Tensor) -> WordsRead:
        """A subset of the captions."""
        some = (
            getattr(self, name) if getattr(self, name) is None else getattr(self, name)[index]
            for name in self.__slots__
        )
        return WordsRead(*some)


def joined(parts: Sequence[WordsRead]) -> WordsRead:
    """Concatenate captions; shorter ones are padded with masked tokens."""
    longest = max(part.original.shape[1] for part in parts)

    def stacked(tensors: Sequence[Tensor | None], value: float = 0) -> Tensor | None:
        padded = [pad(t, (0, longest - t.shape[1]), value=value) for t in tensors if t is not None]
        return torch.cat(padded) if len(padded) == len(tensors) else None

    def needed(tensors: Sequence[Tensor]) -> Tensor:
        tensor = stacked(tensors)
        assert tensor is not None
        return tensor

    return WordsRead(
        original=needed([part.original for part in parts]),
        written=needed([part.written for part in parts]),
        mask=needed([part.mask for part in parts]),
        said=needed([part.said for part in parts]),
        slots=needed([part.slots for part in parts]),
        right=stacked([part.right for part in parts]),
        better=stacked([part.better for part in parts]),
        words=stacked([part.words for part in parts], -1),
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class WordAccuracy:
    """Accuracy under one definition.

    Attributes:
        task: "doubt" or "correct".
        of: counted units, as text.
        found: (W,) correct units of each caption.
        idle: (W,) the same for a model that doubts and changes nothing.
    """

    task: Task
    of: str
    found: Counted
    idle: Counted


def readings(read: WordsRead) -> tuple[WordAccuracy, ...]:
    """Accuracies under every definition that the model's heads allow."""
    return (*_doubted(read), *_corrected(read))


def _doubted(read: WordsRead) -> Iterator[WordAccuracy]:
    """Word discrimination; a token is doubted if its `right` is at most `THRESHOLD`."""
    if read.right is None:
        return
    same, trusts = read.written == read.original, read.right > THRESHOLD
    hit = trusts == same
    for of, among in (
        ("tokens, special ones too", read.mask),
        ("tokens", read.said),
        ("wrong tokens", read.said & ~same),
        ("right tokens", read.said & same),
        ("tokens that were hidden", read.slots & read.said),
    ):
        yield WordAccuracy("doubt", of, _of(hit, among), _of(same, among))
    wrong, doubted = (_words(read, ~one & read.said) for one in (same, trusts))
    words = _words(read, read.said)
    for of, among in (
        ("words", words),
        ("wrong words", words & wrong),
        ("right words", words & ~wrong),
    ):
        yield WordAccuracy("doubt", of, _of(doubted == wrong, among), _of(~wrong, among))
    sides = read.said & ~same, read.said & same
    found, idle = (_beside([_of(one, side) for side in sides]) for one in (hit, same))
    yield WordAccuracy("doubt", "tokens, mean of wrong and right", found, idle)
    found, idle = (Counted.where((one | ~read.said).all(1)) for one in (hit, same))
    yield WordAccuracy("doubt", "captions, every word", found, idle)
    some = (~trusts & read.said).any(1)
    never = Counted.where(torch.zeros_like(some))
    yield WordAccuracy("doubt", "captions with any doubt", Counted.where(some), never)


def _corrected(read: WordsRead) -> Iterator[WordAccuracy]:
    """Word correction; the original token must have the highest probability."""
    if read.better is None:
        return
    same, hit = read.written == read.original, read.better == read.original
    for of, among in (
        ("tokens that were hidden", read.slots & read.said),
        ("wrong tokens", read.said & ~same),
        ("hidden tokens that are right", read.slots & read.said & same),
        ("tokens", read.said),
    ):
        yield WordAccuracy("correct", of, _of(hit, among), _of(same, among))
    wrong, missed = (_words(read, one & read.said) for one in (~same, ~same & ~hit))
    never = torch.zeros_like(wrong)
    yield WordAccuracy("correct", "wrong words", _of(~missed, wrong), _of(never, wrong))
    whole = Counted.where((same | hit | ~read.said).all(1))
    kept = Counted.where((same | ~read.said).all(1))
    yield WordAccuracy("correct", "captions, only wrong words replaced", whole, kept)
    if read.right is not None:
        after = read.written.where(read.right > THRESHOLD, read.better)
        found = Counted.where(((after == read.original) | ~read.said).all(1))
        yield WordAccuracy("correct", "captions, doubted words replaced", found, kept)


def _of(right: Tensor, among: Tensor) -> Counted:
    """(W,) correct units among some."""
    return Counted((right & among).sum(1).double(), among.sum(1).double())


def _beside(columns: list[Counted]) -> Counted:
    return Counted(
        torch.stack([one.gained for one in columns], 1),
        torch.stack([one.possible for one in columns], 1),
    )


def _words(read: WordsRead, tokens: Tensor) -> Tensor:
    """(W, L) bool, at each word's number whether any of its tokens is among these."""
    if read.words is None:
        return tokens
    place = read.words.clamp(min=0)
    return (
        torch.zeros_like(tokens, dtype=torch.int8).scatter_reduce(
            1, place, (tokens & (read.words >= 0)).to(torch.int8), "amax"
        )
        > 0
    )
