"""Captions without their padding, and tiles of them that fit in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from counterfoil.records import Encoded

IMAGES_AT_ONCE = 128
CELLS_AT_ONCE = 1 << 24  # affinities in one product: 64 MB of float32


@final
@dataclass(frozen=True, slots=True)
class Run:
    """Captions of equal length among packed ones: n of them, L words each.

    Attributes:
        word: first row of their words.
        caption: place of the first caption.
        n: how many captions.
        length: words of each.
    """

    word: int
    caption: int
    n: int
    length: int

    @property
    def words(self) -> slice:
        """Rows of their words."""
        return slice(self.word, self.word + self.n * self.length)

    @property
    def captions(self) -> slice:
        """Places of the captions."""
        return slice(self.caption, self.caption + self.n)

    def cut(self, words: int) -> list[Run]:
        """The same captions, at most `words` words at a time, never less than one caption."""
        step = max(1, words // self.length)
        return [
            Run(self.word + c * self.length, self.caption + c, min(step, self.n - c), self.length)
            for c in range(0, self.n, step)
        ]


@final
@dataclass(frozen=True, slots=True)
class Packed:
    """Captions without padding, shortest first.

    Attributes:
        words: (W, D) their real words.
        lengths: words of each caption, ascending.
    """

    words: Tensor
    lengths: tuple[int, ...]

    def runs(self) -> list[Run]:
        """Captions of equal length."""
        runs: list[Run] = []
        word = 0
        for caption, length in enumerate(self.lengths):
            if runs and runs[-1].length == length:
                last = runs[-1]
                runs[-1] = Run(last.word, last.caption, last.n + 1, length)
            else:
                runs.append(Run(word, caption, 1, length))
            word += length
        return runs

    def gathered(self, rows: Tensor, gather: Callable[[Tensor], Tensor]) -> Tensor:
        """(T, I) what is made of the words of each caption.

        Args:
            rows: (W, I) a number for each word and image.
            gather: makes (n, I) of the (n, L, I) of captions of one length.
        """
        blocks = (rows[run.words].view(run.n, run.length, -1) for run in self.runs())
        return torch.cat([gather(block) for block in blocks])

    def parts(self, words: int) -> list[Packed]:
        """The same captions, at most `words` words at a time, never less than one caption."""
        cuts, total = [0], 0
        for caption, length in enumerate(self.lengths):
            if total + length > words and caption > cuts[-1]:
                cuts.append(caption)
                total = 0
            total += length
        return [self._part(a, b) for a, b in pairwise([*cuts, len(self.lengths)])]

    def padded(self) -> Tensor:
        """(T, L, D) with zeros behind each caption."""
        lengths = torch.tensor(self.lengths, device=self.words.device)
        longest = max(self.lengths, default=0)
        room = self.words.new_zeros(len(lengths), longest, self.words.shape[-1])
        real = torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)
        return room.masked_scatter(real.unsqueeze(-1), self.words)

    def _part(self, start: int, stop: int) -> Packed:
        first = sum(self.lengths[:start])
        lengths = self.lengths[start:stop]
        return Packed(self.words[first : first + sum(lengths)], lengths)


def pack(texts: Encoded) -> tuple[Packed, Tensor]:
    """Texts without padding, and (T,) where each of them stood before."""
    counts = texts.mask.sum(1)
    order = counts.argsort(stable=True)
    words = texts.tokens[order][texts.mask[order]]
    return Packed(words, tuple(counts[order].tolist())), order


def tiled(images: Encoded, texts: Encoded, score: Callable[[Encoded, Packed], Tensor]) -> Tensor:
    """(I, T) scores, from a function that gives (T, I) scores of a tile with packed texts.

    Raises:
        ValueError: a text has no words.
    """
    packed, order = pack(texts)
    if packed.lengths and not packed.lengths[0]:
        raise ValueError(f"text {int(order[0])} has no words; leave empty texts out")
    cells = max(1, min(len(images), IMAGES_AT_ONCE) * images.tokens.shape[1])
    columns = []
    for part in packed.parts(max(1, CELLS_AT_ONCE // cells)):
        rows = [
            score(images.rows(slice(first, first + IMAGES_AT_ONCE)), part)
            for first in range(0, len(images), IMAGES_AT_ONCE)
        ]
        columns.append(rows[0] if len(rows) == 1 else torch.cat(rows, 1))
    return torch.cat(columns).T[:, order.argsort()]
