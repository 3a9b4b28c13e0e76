"""Accuracy of doubt and correction heads on generated captions, under every plausible definition.

TAGS-DC (https://arxiv.org/abs/2111.03349), section 4.4, reports 66.5 % for word discrimination with
a threshold of 0.5 and 87.3 % for word correction, but not over which words. Each definition comes
with a baseline: the accuracy of a model that trusts every word and changes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.evaluation.bootstrap import Counted

Task = Literal["doubt", "correct"]
THRESHOLD = 0.5


@final
@dataclass(frozen=True, slots=True, eq=False)
class WordPredictions:
    """Predictions of a model for the tokens of W generated captions.

    Attributes:
        original: (W, L) long, tokens of the captions they were generated from.
        written: (W, L) long, tokens of the generated captions.
        mask: (W, L) bool, real tokens.
        counted: (W, L) bool, real tokens without the special ones: those that definitions count.
        slots: (W, L) bool, tokens masked during generation.
        right: (W, L) probability of being the original's token; None without a doubt head.
        better: (W, L) long, predicted tokens; None without a correction head.
        words: (W, L) long, word of each token; None where every token is a word.
    """

    original: Tensor
    written: Tensor
    mask: Tensor
    counted: Tensor
    slots: Tensor
    right: Tensor | None
    better: Tensor | None
    words: Tensor | None = None

    def rows(self, index: Tensor) -> WordPredictions:
        """A subset of the captions."""
        some = (
            getattr(self, name) if getattr(self, name) is None else getattr(self, name)[index]
            for name in self.__slots__
        )
        return WordPredictions(*some)


def concatenate(parts: Sequence[WordPredictions]) -> WordPredictions:
    """Concatenate captions; shorter ones are padded with masked tokens."""
    longest = max(part.original.shape[1] for part in parts)

    def stacked(name: str) -> Any:
        tensors = [getattr(part, name) for part in parts]
        if any(tensor is None for tensor in tensors):
            return None
        value = -1 if name == "words" else 0
        return torch.cat([pad(t, (0, longest - t.shape[1]), value=value) for t in tensors])

    return WordPredictions(*map(stacked, WordPredictions.__slots__))


@final
@dataclass(frozen=True, slots=True, eq=False)
class WordCounts:
    """Correct words of each caption, under one definition of the accuracy.

    Attributes:
        task: "doubt" or "correct".
        of: the units that count, in words.
        correct: (W,) correct units of each caption.
        unchanged: (W,) correct units of a model that doubts and changes nothing.
    """

    task: Task
    of: str
    correct: Counted
    unchanged: Counted


def word_counts(predictions: WordPredictions) -> tuple[WordCounts, ...]:
    """Accuracies under every definition that the model's heads allow."""
    return (*_doubted(predictions), *_corrected(predictions))


def _doubted(predictions: WordPredictions) -> Iterator[WordCounts]:
    """Word discrimination; a token is doubted if its `right` is at most `THRESHOLD`."""
    if predictions.right is None:
        return
    same, trusts = predictions.written == predictions.original, predictions.right > THRESHOLD
    hit = trusts == same
    for of, among in (
        ("tokens, special ones too", predictions.mask),
        ("tokens", predictions.counted),
        ("wrong tokens", predictions.counted & ~same),
        ("right tokens", predictions.counted & same),
        ("tokens that were hidden", predictions.slots & predictions.counted),
    ):
        yield WordCounts("doubt", of, _correct(hit, among), _correct(same, among))
    wrong, doubted = (_any_token(predictions, ~one & predictions.counted) for one in (same, trusts))
    words = _any_token(predictions, predictions.counted)
    for of, among in (
        ("words", words),
        ("wrong words", words & wrong),
        ("right words", words & ~wrong),
    ):
        yield WordCounts("doubt", of, _correct(doubted == wrong, among), _correct(~wrong, among))
    sides = predictions.counted & ~same, predictions.counted & same
    # The mean of two accuracies: shares of two columns are averaged, not pooled.
    correct, unchanged = (_columns([_correct(one, side) for side in sides]) for one in (hit, same))
    yield WordCounts("doubt", "tokens, mean of wrong and right", correct, unchanged)
    correct, unchanged = (Counted.where((one | ~predictions.counted).all(1)) for one in (hit, same))
    yield WordCounts("doubt", "captions, every word", correct, unchanged)
    some = (~trusts & predictions.counted).any(1)
    never = Counted.where(torch.zeros_like(some))
    yield WordCounts("doubt", "captions with any doubt", Counted.where(some), never)


def _corrected(predictions: WordPredictions) -> Iterator[WordCounts]:
    """Word correction; the original token must have the highest probability."""
    if predictions.better is None:
        return
    same, hit = (
        predictions.written == predictions.original,
        predictions.better == predictions.original,
    )
    for of, among in (
        ("tokens that were hidden", predictions.slots & predictions.counted),
        ("wrong tokens", predictions.counted & ~same),
        ("hidden tokens that are right", predictions.slots & predictions.counted & same),
        ("tokens", predictions.counted),
    ):
        yield WordCounts("correct", of, _correct(hit, among), _correct(same, among))
    wrong, missed = (
        _any_token(predictions, one & predictions.counted) for one in (~same, ~same & ~hit)
    )
    never = torch.zeros_like(wrong)
    yield WordCounts("correct", "wrong words", _correct(~missed, wrong), _correct(never, wrong))
    whole = Counted.where((same | hit | ~predictions.counted).all(1))
    kept = Counted.where((same | ~predictions.counted).all(1))
    yield WordCounts("correct", "captions, only wrong words replaced", whole, kept)
    if predictions.right is not None:
        after = predictions.written.where(predictions.right > THRESHOLD, predictions.better)
        correct = Counted.where(((after == predictions.original) | ~predictions.counted).all(1))
        yield WordCounts("correct", "captions, doubted words replaced", correct, kept)


def _correct(right: Tensor, among: Tensor) -> Counted:
    """(W,) correct units among some."""
    return Counted((right & among).sum(1).double(), among.sum(1).double())


def _columns(columns: list[Counted]) -> Counted:
    return Counted(
        torch.stack([one.gained for one in columns], 1),
        torch.stack([one.possible for one in columns], 1),
    )


def _any_token(predictions: WordPredictions, tokens: Tensor) -> Tensor:
    """(W, L) bool, True in column n where word n of the caption has one of these tokens."""
    if predictions.words is None:
        return tokens
    place = predictions.words.clamp(min=0)  # special tokens (-1) are masked out below
    return (
        torch.zeros_like(tokens, dtype=torch.int8).scatter_reduce(
            1, place, (tokens & (predictions.words >= 0)).to(torch.int8), "amax"
        )
        > 0
    )
