"""How well a model doubts and corrects the words of written captions, in every reading of it.

TAGS-DC (https://arxiv.org/abs/2111.03349), section 4.4, reports 66.5 % for word discrimination with
a threshold of 0.5 and 87.3 % for word correction, and does not say over which words; here are all
readings, each beside what a model gets right that finds no word wrong.
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
    """What a model says of the tokens of W written captions.

    Attributes:
        original: (W, L) long, the captions that they were made of, token by token.
        written: (W, L) long.
        mask: (W, L) bool, tokens that are there.
        said: (W, L) bool, those of them that are no special ones.
        slots: (W, L) bool, those that were hidden when the caption was written.
        right: (W, L) how likely each is the original's; None where the model does not doubt.
        better: (W, L) long, what the model would have in its place; None where it corrects nothing.
        words: (W, L) long, which word each is a piece of; None where every token is a word.
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
        """Some of the captions."""
        some = (
            getattr(self, name) if getattr(self, name) is None else getattr(self, name)[index]
            for name in self.__slots__
        )
        return WordsRead(*some)


def joined(parts: Sequence[WordsRead]) -> WordsRead:
    """One after the other, the shorter ones padded with tokens that are not there."""
    longest = max(part.original.shape[1] for part in parts)

    def stacked(some: Sequence[Tensor | None], value: float = 0) -> Tensor | None:
        padded = [pad(t, (0, longest - t.shape[1]), value=value) for t in some if t is not None]
        return torch.cat(padded) if len(padded) == len(some) else None

    def needed(some: Sequence[Tensor]) -> Tensor:
        found = stacked(some)
        assert found is not None
        return found

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
class Read:
    """One reading of an accuracy.

    Attributes:
        task: "doubt" or "correct".
        of: what is counted.
        found: (W,) what the model gets right of each caption.
        idle: (W,) what a model would that doubts and changes nothing.
    """

    task: Task
    of: str
    found: Counted
    idle: Counted


def readings(read: WordsRead) -> tuple[Read, ...]:
    """Every reading that the model has an answer for."""
    return (*_doubted(read), *_corrected(read))


def _doubted(read: WordsRead) -> Iterator[Read]:
    """Word discrimination; a token is doubted where it is right with at most `THRESHOLD`."""
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
        yield Read("doubt", of, _of(hit, among), _of(same, among))
    wrong, doubted = (_words(read, ~one & read.said) for one in (same, trusts))
    words = _words(read, read.said)
    for of, among in (
        ("words", words),
        ("wrong words", words & wrong),
        ("right words", words & ~wrong),
    ):
        yield Read("doubt", of, _of(doubted == wrong, among), _of(~wrong, among))
    sides = read.said & ~same, read.said & same
    found, idle = (_beside([_of(one, side) for side in sides]) for one in (hit, same))
    yield Read("doubt", "tokens, mean of wrong and right", found, idle)
    found, idle = (Counted.where((one | ~read.said).all(1)) for one in (hit, same))
    yield Read("doubt", "captions, every word", found, idle)
    some = (~trusts & read.said).any(1)
    never = Counted.where(torch.zeros_like(some))
    yield Read("doubt", "captions with any doubt", Counted.where(some), never)


def _corrected(read: WordsRead) -> Iterator[Read]:
    """Word correction; the original's token has to be the likeliest of all."""
    if read.better is None:
        return
    same, hit = read.written == read.original, read.better == read.original
    for of, among in (
        ("tokens that were hidden", read.slots & read.said),
        ("wrong tokens", read.said & ~same),
        ("hidden tokens that are right", read.slots & read.said & same),
        ("tokens", read.said),
    ):
        yield Read("correct", of, _of(hit, among), _of(same, among))
    wrong, missed = (_words(read, one & read.said) for one in (~same, ~same & ~hit))
    never = torch.zeros_like(wrong)
    yield Read("correct", "wrong words", _of(~missed, wrong), _of(never, wrong))
    whole = Counted.where((same | hit | ~read.said).all(1))
    kept = Counted.where((same | ~read.said).all(1))
    yield Read("correct", "captions, only wrong words replaced", whole, kept)
    if read.right is not None:
        after = read.written.where(read.right > THRESHOLD, read.better)
        found = Counted.where(((after == read.original) | ~read.said).all(1))
        yield Read("correct", "captions, doubted words replaced", found, kept)


def _of(right: Tensor, among: Tensor) -> Counted:
    """(W,) how many of some places are right."""
    return Counted((right & among).sum(1).double(), among.sum(1).double())


def _beside(columns: list[Counted]) -> Counted:
    return Counted(
        torch.stack([one.gained for one in columns], 1),
        torch.stack([one.possible for one in columns], 1),
    )


def _words(read: WordsRead, tokens: Tensor) -> Tensor:
    """(W, L) bool, words of which some token is among these, by their number."""
    if read.words is None:
        return tokens
    place = read.words.clamp(min=0)
    return (
        torch.zeros_like(tokens, dtype=torch.int8).scatter_reduce(
            1, place, (tokens & (read.words >= 0)).to(torch.int8), "amax"
        )
        > 0
    )
