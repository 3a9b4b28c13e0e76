"""Captions of a corpus that use nearly the same words.

Two captions are compared by the cosine of their TF-IDF vectors: the set of their lower-cased words
without punctuation marks, each weighing ``1 + log((1 + T) / (1 + captions with the word))``.

>>> near = near_captions(["A dog runs.", "Two cats.", "a dog, runs", "A dog sleeps."], least=0.5)
>>> list(zip(near.left.tolist(), near.right.tolist()))
[(0, 2), (0, 3), (2, 3)]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from counterfoil import world
from counterfoil.core.console import progress
from counterfoil.corpus.words import split
from counterfoil.negatives.duplicates import Near, check_least, check_most, everybody

Array = npt.NDArray[Any]

_AT_ONCE = 2**21  # candidate pairs looked at together
_DENSE = 256  # captions whose words are spread out together
_SLACK = 1e-9  # rounding in sums of float64


@final
@dataclass(frozen=True, slots=True)
class Bags:
    """The words of T captions, rarest first.

    Attributes:
        starts: (T + 1,) where each caption's words begin.
        words: (n,) word ids, ascending within a caption; a lower id is a rarer word.
        weights: (n,) float64, of length 1 within a caption.
        vocabulary: how many different words there are.
    """

    starts: Array
    words: Array
    weights: Array
    vocabulary: int

    def __len__(self) -> int:
        return len(self.starts) - 1


def plain_words(text: str) -> set[str]:
    """Lower-cased words of a caption without punctuation marks.

    >>> sorted(plain_words("A man's dog, running."))
    ["'s", 'a', 'dog', 'man', 'running']
    """
    return {word for word in split(text) if any(sign.isalnum() for sign in word)}


def bags(texts: Sequence[str]) -> Bags:
    """TF-IDF vectors of captions; one without words is empty and like no other."""
    sets = [plain_words(text) for text in texts]
    counts = Counter(word for words in sets for word in words)
    rarest = sorted(counts, key=lambda word: (counts[word], word))
    number = {word: place for place, word in enumerate(rarest)}
    weight = np.array([1 + np.log((1 + len(texts)) / (1 + counts[word])) for word in rarest])
    lengths = np.array([len(words) for words in sets], np.int64)
    starts = np.concatenate([[0], lengths.cumsum()])
    words = np.array([n for bag in sets for n in sorted(number[w] for w in bag)], np.int64)
    weights = weight[words] if len(words) else np.zeros(0)
    owner = np.repeat(np.arange(len(sets)), lengths)
    norms = np.sqrt(np.bincount(owner, weights**2, minlength=len(sets)))
    return Bags(starts, words, weights / norms[owner], len(rarest))


def near_captions(texts: Sequence[str], *, least: float) -> Near:
    """Captions whose TF-IDF cosine is at least `least`.

    Exact: no word is too frequent to count. Words are looked up rarest first, and a caption is
    compared only with those whose words from the first shared one on can still reach the cosine
    (the prefix filter of Bayardo et al., "Scaling up all pairs similarity search", WWW 2007). All
    processes share the work, so all have to ask.

    Args:
        texts: captions; equal ones are near.
        least: cosine that counts as near, above 0 and at most 1.

    Raises:
        ValueError: `least` out of range, or more than 50 million pairs.
    """
    check_least("captions", least)
    found = bags(texts)
    index = _Index(found, least - _SLACK)
    left, right, score = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    total = 0
    with progress("captions compared", len(texts)) as advance:
        for captions, a, b in index.candidates():
            cosine = index.cosines(a, b)
            near = cosine >= least - _SLACK
            for column, part in ((left, a[near]), (right, b[near]), (score, cosine[near])):
                column.append(part)
            total += len(left[-1])
            check_most("captions", least, total)
            advance(captions)
    columns = (torch.from_numpy(np.concatenate(column)) for column in (left, right, score))
    return everybody(*columns)


@final
class _Index:
    """Captions by word, those whose remaining words weigh most first.

    Args:
        found: the captions.
        least: cosine to reach.
    """

    def __init__(self, found: Bags, least: float) -> None:
        self.found, self.least = found, least
        lengths = np.diff(found.starts)
        caption = np.repeat(np.arange(len(found)), lengths)
        squares = np.concatenate([[0.0], (found.weights**2).cumsum()])
        left = squares[found.starts[1:]][caption] - squares[:-1]
        remaining = np.sqrt(left.clip(0)) + _SLACK  # length of this word and all that follow
        shared = np.bincount(found.words, minlength=found.vocabulary)[found.words] > 1
        entries = np.flatnonzero(shared & (remaining * (1 + _SLACK) >= least))
        self.caption, words, remaining = caption[entries], found.words[entries], remaining[entries]
        keys = words + (1 - remaining.clip(max=1)) / 2
        order = np.argsort(keys, kind="stable")
        self.listed = self.caption[order]
        reach = words + (1 - ((least - _SLACK) / remaining).clip(max=1) + _SLACK) / 2
        self.first = np.searchsorted(keys[order], words)
        self.many = np.searchsorted(keys[order], reach + _SLACK, side="right") - self.first
        self.dense = np.zeros((_DENSE, found.vocabulary))

    def candidates(self) -> Iterator[tuple[int, Array, Array]]:
        """How many captions were looked up, and pairs with the lower one of each pair there.

        Parts are dealt out to all processes; those of the others have no pairs here.
        """
        bounds = np.searchsorted(self.caption, np.arange(len(self.found) + 1))
        work = np.concatenate([[0], self.many.cumsum()])[bounds]
        start, none = 0, np.zeros(0, np.int64)
        for turn in cycle(range(world.size())):
            if start == len(self.found):
                return
            stop = int(np.searchsorted(work, work[start] + _AT_ONCE, side="right")) - 1
            stop = min(max(stop, start + 1), start + _DENSE, len(self.found))
            if turn == world.rank():
                yield stop - start, *self._pairs(slice(bounds[start], bounds[stop]))
            else:
                yield stop - start, none, none
            start = stop

    def _pairs(self, entries: slice) -> tuple[Array, Array]:
        """Pairs that these entries propose, each once, in order."""
        a = np.repeat(self.caption[entries], self.many[entries])
        b = self.listed[_runs(self.first[entries], self.many[entries])]
        pairs = np.unique(a[a < b] * len(self.found) + b[a < b])
        return pairs // len(self.found), pairs % len(self.found)

    def cosines(self, left: Array, right: Array) -> Array:
        """Cosine of each pair; all of `left` within as many captions as are spread out."""
        if not len(left):
            return np.zeros(0)
        found, low, high = self.found, int(left[0]), int(left[-1]) + 1
        part = slice(found.starts[low], found.starts[high])
        line = np.repeat(np.arange(high - low), np.diff(found.starts[low : high + 1]))
        self.dense[line, found.words[part]] = found.weights[part]
        many = np.diff(found.starts)[right]
        at = _runs(found.starts[right], many)
        pair = np.repeat(np.arange(len(left)), many)
        shared = self.dense[left[pair] - low, found.words[at]] * found.weights[at]
        self.dense[line, found.words[part]] = 0
        return np.bincount(pair, shared, minlength=len(left))


def _runs(first: Array, many: Array) -> Array:
    """first[0], first[0] + 1, ... for many[0] places, then from first[1] on, and so on."""
    start = np.repeat(first - (many.cumsum() - many), many)
    return np.asarray(start + np.arange(len(start)))
