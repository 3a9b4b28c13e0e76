"""A language model that has seen captions and no picture.

Interpolated Kneser-Ney smoothing: Kneser and Ney, "Improved backing-off for m-gram language
modeling", ICASSP 1995, in the form of Chen and Goodman, "An empirical study of smoothing techniques
for language modeling", 1999, section 2.7, one discount an order.

>>> model = NGrams.of(["a dog runs", "a dog sleeps", "a cat sleeps"])
>>> model.scores(["a dog sleeps", "sleeps dog a"]).round(decimals=2).tolist()
[-0.55, -2.52]
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from counterfoil.corpus.words import END, START, split

Gram: TypeAlias = tuple[str, ...]
ORDER = 3
DISCOUNT = 0.5  # where too few n-grams are seen once and twice to estimate one


@final
@dataclass(frozen=True, slots=True)
class _Level:
    """Counts of the n-grams of one length, and what follows each context.

    Attributes:
        counts: of each n-gram: how often it stands there; below the longest, after how many words.
        totals: their sum over the last word.
        kinds: how many last words there are.
        discount: taken off every count.
    """

    counts: Counter[Gram]
    totals: Counter[Gram]
    kinds: Counter[Gram]
    discount: float


@final
class NGrams:
    """Probability of each word of a caption given the words before it; see the module.

    Attributes:
        order: words of the longest n-gram.
        words: how many different ones it has seen, the end of a caption among them.
        captions: how many it has seen.
    """

    def __init__(self, levels: Sequence[_Level], captions: int) -> None:
        self._levels = tuple(levels)
        self.order, self.captions = len(levels), captions
        self.words = len(levels[0].counts)

    @staticmethod
    def of(captions: Iterable[str], *, order: int = ORDER) -> NGrams:
        """The model of these captions.

        Raises:
            ValueError: there is no caption, or the order is below 1.
        """
        if order < 1:
            raise ValueError(f"n-grams of {order} words cannot be counted; at least 1 is needed")
        raw: list[Counter[Gram]] = [Counter() for _ in range(order)]
        many = 0
        for caption in captions:
            words = _ended(caption)
            many += 1
            for length in range(1, order + 1):
                grams = zip(*(words[start:] for start in range(length)))
                raw[length - 1].update(grams)
        if not many:
            raise ValueError("a language model needs at least one caption to learn from; none came")
        del raw[0][(START,)]  # nothing begins a caption twice
        return NGrams(_levels(raw), many)

    def scores(self, captions: Sequence[str]) -> Tensor:
        """(N,) double, mean log probability of the words of each caption and of its end."""
        found = [sum(logs) / len(logs) for logs in map(self._logs, captions)]
        return torch.tensor(found, dtype=torch.double)

    def perplexity(self, captions: Sequence[str]) -> float:
        """Of all words of these captions and their ends together.

        Raises:
            ValueError: there is no caption.
        """
        logs = [log for caption in captions for log in self._logs(caption)]
        if not logs:
            raise ValueError("a perplexity needs at least one caption; none came")
        return math.exp(-sum(logs) / len(logs))

    def probability(self, word: str, before: Sequence[str]) -> float:
        """Of a word after others, the first of which may be `START`."""
        found = 1 / (self.words + 1)  # one share for all that was never seen
        for length, level in enumerate(self._levels):
            if length > len(before):
                break
            context = tuple(before[len(before) - length :])
            total = level.totals[context]
            if not total:
                break
            kept = max(level.counts[(*context, word)] - level.discount, 0.0)
            found = (kept + level.discount * level.kinds[context] * found) / total
        return found

    def _logs(self, caption: str) -> list[float]:
        words = _ended(caption)
        return [
            math.log(self.probability(words[at], words[max(0, at - self.order + 1) : at]))
            for at in range(1, len(words))
        ]


def _ended(caption: str) -> Gram:
    return START, *split(caption), END


def _levels(raw: Sequence[Counter[Gram]]) -> list[_Level]:
    found = []
    for place, counts in enumerate(raw):
        if place + 1 < len(raw):
            counts = _preceded(counts, raw[place + 1])
        totals: Counter[Gram] = Counter()
        kinds: Counter[Gram] = Counter()
        for gram, count in counts.items():
            totals[gram[:-1]] += count
            kinds[gram[:-1]] += 1
        seen = Counter(counts.values())
        once, twice = seen[1], seen[2]
        discount = once / (once + 2 * twice) if once and twice else DISCOUNT
        found.append(_Level(counts, totals, kinds, discount))
    return found


def _preceded(counts: Counter[Gram], longer: Counter[Gram]) -> Counter[Gram]:
    """After how many words each n-gram stands; how often, where it begins a caption."""
    words: defaultdict[Gram, int] = defaultdict(int)
    for gram in longer:
        words[gram[1:]] += 1
    return Counter({g: count if g[0] == START else words[g] for g, count in counts.items()})
