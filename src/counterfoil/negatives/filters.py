"""Filters against false negatives: what looks too true to be mined as wrong.

An image is described by more captions than its own. The hardest "wrong" captions of a good model
are the first to be true, so lists are mined with the suspects left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import cycle
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core import distributed
from counterfoil.core.console import progress
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.images import pack_pixels
from counterfoil.data.tokenizers import split_words
from counterfoil.negatives.similarity import SentenceEncoder
from counterfoil.scoring.encode import (
    EmbeddedDataset,
    ScoreTile,
    Side,
    check_finite,
    cut_tiles,
    evaluation_mode,
    pick_tiles,
)
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import ScoreReducer

# Captions and pictures of a data set that say or show nearly the same.
#
# A caption that nearly equals one of an image's own is likely to be true of that image too, and so
# are the captions of a picture that shows nearly the same. Both are found exactly, in bounded
# memory,
# and the same on any number of processes.


MOST = 50_000_000  # pairs that are held
THUMBNAIL = 16  # pixels a side
_BLOCK = 2048  # rows compared with as many at once
_READ = 512  # pictures read at once
_SLACK = 1e-6  # float32 cosines of equal vectors are this close to 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class NearPairs:
    """Pairs of rows of one side, each pair once, in order of `left` and then of `right`.

    Attributes:
        left: (n,) long.
        right: (n,) long, higher than `left`.
        score: (n,) float32 cosine.
    """

    left: Tensor
    right: Tensor
    score: Tensor

    def __len__(self) -> int:
        return len(self.left)

    @staticmethod
    def of(left: Tensor, right: Tensor, score: Tensor) -> NearPairs:
        """These pairs, in order."""
        order = np.lexsort((right.numpy(), left.numpy()))
        return NearPairs(left[order], right[order], score[order].float())


def near_pictures(
    dataset: ImageTextDataset, *, least: float, device: torch.device | str | None = None
) -> NearPairs:
    """Images whose pictures look alike: cosine of `looks` of at least `least`.

    All processes share the work, so all have to ask.

    Args:
        dataset: with features or pictures.
        least: cosine that counts as near, above 0 and at most 1.
        device: where to compute.

    Raises:
        ValueError: `least` out of range, neither features nor pictures, or more than 50 million
            pairs.
    """
    check_least("pictures", least)
    return near_vectors("pictures", image_thumbnails(dataset).to(device or "cpu"), least=least)


def near_vectors(name: str, vectors: Tensor, *, least: float) -> NearPairs:
    """Rows whose cosine is at least `least`.

    Blocks of the upper half of the matrix are dealt out to all processes, so all have to ask.

    Args:
        name: what they are of, in the plural.
        vectors: (N, D) unit or zero vectors, where to compute.
        least: cosine that counts as near, above 0 and at most 1.

    Raises:
        ValueError: `least` out of range, or more than 50 million pairs.
    """
    check_least(name, least)
    blocks = cut_tiles(torch.arange(len(vectors)), _BLOCK)
    pairs = [(a, b) for a in range(len(blocks)) for b in range(a, len(blocks))]
    found: list[tuple[Tensor, Tensor, Tensor]] = [(torch.zeros(0).long(),) * 2 + (torch.zeros(0),)]
    total = 0
    with progress(f"blocks of {name} compared", len(pairs)) as advance:
        for a, b in pairs[distributed.rank() :: distributed.size()]:
            scores = vectors[blocks[a]] @ vectors[blocks[b]].T
            row, column = (scores >= least - _SLACK).nonzero(as_tuple=True)
            keep = blocks[a][0] + row < blocks[b][0] + column
            row, column = row[keep], column[keep]
            score = scores[row, column].cpu()
            found.append((blocks[a][row.cpu()], blocks[b][column.cpu()], score))
            total += len(score)
            check_most(name, least, total)
            advance(distributed.size())
    return all_rows(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def connected_groups(near: NearPairs, images: int) -> list[list[int]]:
    """Groups of rows that near pairs connect, each in order; in order of their first row.

    Args:
        near: pairs of images.
        images: how many there are.

    >>> pairs = NearPairs.of(torch.tensor([4, 0, 2]), torch.tensor([5, 2, 3]), torch.ones(3))
    >>> connected_groups(pairs, 6)
    [[0, 2, 3], [4, 5]]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = (near.left.numpy(), near.right.numpy())
    graph = coo_array((np.ones(len(near), np.int8), pairs), shape=(images, images))
    component = connected_components(graph, directed=False)[1]
    members: dict[int, list[int]] = {}
    for row in np.unique(np.concatenate(pairs)).tolist():
        members.setdefault(component[row], []).append(row)
    return list(members.values())


def image_thumbnails(dataset: ImageTextDataset) -> Tensor:
    """(I, D) unit vectors of what the images look like.

    Features are averaged over the real regions of an image and the mean over the data set is taken
    off; where there are pictures only, these are grey thumbnails of 16 x 16 pixels less their own
    mean, which know exact copies and repeated shots, but not what is shown. An image at the mean
    is the zero vector and like no other.

    Raises:
        ValueError: the data set has neither.
    """
    if dataset.features is not None:
        parts = []
        for rows in cut_tiles(torch.arange(len(dataset)), _READ):
            items = dataset.features.take(rows)
            parts.append(items.values.sum(1) / items.mask.sum(1, keepdim=True).clamp(min=1))
        pooled = torch.cat(parts) if parts else torch.zeros(0, 1)
        return normalize(pooled - pooled.mean(0, dtype=torch.float64).float(), dim=1)
    if dataset.pictures is None:
        raise ValueError(
            f"{dataset.name} has neither features nor pictures, so nothing tells which of its "
            "images look alike; leave the pictures filter off"
        )
    grey = (
        torch.from_numpy(np.array(pack_pixels(dataset.pictures, THUMBNAIL)))
        .float()
        .mean(1)
        .flatten(1)
    )
    return normalize(grey - grey.mean(1, keepdim=True), dim=1)


def all_rows(left: Tensor, right: Tensor, score: Tensor) -> NearPairs:
    """The pairs that any process has found."""
    mine = tuple(part.numpy() for part in (left, right, score))
    parts: list[tuple[Tensor, ...]] = []
    for theirs in distributed.gather_objects(mine):
        assert isinstance(theirs, tuple)
        parts.append(tuple(torch.from_numpy(part) for part in theirs))
    return NearPairs.of(*(torch.cat(column) for column in zip(*parts, strict=True)))


def check_least(name: str, least: float) -> None:
    """Whether a cosine can be asked for.

    Raises:
        ValueError: it is not above 0 and at most 1.
    """
    if not 0 < least <= 1:
        raise ValueError(f"{name}={least}: a cosine above 0 and up to 1 is needed, as in 0.8")


def check_most(name: str, least: float, count: int) -> None:
    """Whether so many pairs can be held.

    Raises:
        ValueError: they cannot.
    """
    if count > MOST:
        raise ValueError(
            f"{name}={least} finds more than {MOST:,} pairs alike, so it tells little; raise it"
        )


# Pairs of images and texts that are never negatives, held sparsely.


@final
class Exclusions:
    """Pairs by image: image row i goes with `texts` from `starts[i]` to `starts[i + 1]`.

    Args:
        images: (n,) image rows, in any order; a pair may stand twice.
        texts: (n,) text rows.
        shape: how many images and texts there are.
    """

    def __init__(self, images: Tensor, texts: Tensor, shape: tuple[int, int]) -> None:
        keys = torch.from_numpy(np.unique((images * shape[1] + texts).numpy()))
        text_to_image = torch.div(keys, max(1, shape[1]), rounding_mode="floor")
        self.texts, self.shape = keys - text_to_image * shape[1], shape
        counts = torch.bincount(text_to_image, minlength=shape[0])
        self.starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self._place = torch.full((shape[1],), -1)  # of each text in the tile that is looked at

    def __len__(self) -> int:
        return len(self.texts)

    def to(self, device: torch.device) -> None:
        """Move where the tiles are."""
        self.texts, self.starts = self.texts.to(device), self.starts.to(device)
        self._place = self._place.to(device)

    def places(self, tile: ScoreTile) -> tuple[Tensor, Tensor]:
        """Rows (p,) and columns (p,) of the tile that are excluded."""
        first = self.starts[tile.images]
        counts = self.starts[tile.images + 1] - first
        row = torch.arange(len(first), device=first.device).repeat_interleave(counts)
        place = torch.arange(len(row), device=first.device)
        entry = place + (first - (counts.cumsum(0) - counts)).index_select(0, row)
        self._place[tile.texts] = torch.arange(len(tile.texts), device=first.device)
        column = self._place[self.texts[entry]]
        self._place[tile.texts] = -1
        inside = column >= 0
        return row[inside], column[inside]


def exclude_captions(near: NearPairs, relation: Relation) -> tuple[Tensor, Tensor]:
    """(n,) images and (n,) texts: a text near one of an image's own captions goes with it."""
    text_to_image = relation.text_to_image
    images = torch.cat([text_to_image[near.left], text_to_image[near.right]])
    texts = torch.cat([near.right, near.left])
    wrong = (images >= 0) & (images != text_to_image[texts])
    return images[wrong], texts[wrong]


def exclude_pictures(near: NearPairs, relation: Relation) -> tuple[Tensor, Tensor]:
    """(n,) images and (n,) texts: all captions of a near picture go with an image."""
    images = torch.cat([near.left, near.right])
    texts, counts = relation.captions(torch.cat([near.right, near.left]))
    return images.repeat_interleave(counts), texts


# Captions of a data set that use nearly the same words.
#
# Two captions are compared by the cosine of their TF-IDF vectors: the set of their lower-cased
# words
# without punctuation marks, each weighing ``1 + log((1 + T) / (1 + captions with the word))``.
#
# [(0, 2), (0, 3), (2, 3)]


Array = npt.NDArray[Any]

_AT_ONCE = 2**21  # candidate pairs looked at together
_DENSE = 256  # captions whose words are spread out together
_SLACK_WORDING = 1e-9  # rounding in sums of float64


@final
@dataclass(frozen=True, slots=True)
class WordBags:
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
    return {word for word in split_words(text) if any(sign.isalnum() for sign in word)}


def word_bags(texts: Sequence[str]) -> WordBags:
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
    text_to_image = np.repeat(np.arange(len(sets)), lengths)
    norms = np.sqrt(np.bincount(text_to_image, weights**2, minlength=len(sets)))
    return WordBags(starts, words, weights / norms[text_to_image], len(rarest))


def near_captions(texts: Sequence[str], *, least: float) -> NearPairs:
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
    found = word_bags(texts)
    index = _Index(found, least - _SLACK_WORDING)
    left, right, score = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    total = 0
    with progress("captions compared", len(texts)) as advance:
        for captions, a, b in index.candidates():
            cosine = index.cosines(a, b)
            near = cosine >= least - _SLACK_WORDING
            for column, part in ((left, a[near]), (right, b[near]), (score, cosine[near])):
                column.append(part)
            total += len(left[-1])
            check_most("captions", least, total)
            advance(captions)
    columns = (torch.from_numpy(np.concatenate(column)) for column in (left, right, score))
    return all_rows(*columns)


@final
class _Index:
    """Captions by word, those whose remaining words weigh most first.

    Args:
        found: the captions.
        least: cosine to reach.
    """

    def __init__(self, found: WordBags, least: float) -> None:
        self.found, self.least = found, least
        lengths = np.diff(found.starts)
        caption = np.repeat(np.arange(len(found)), lengths)
        squares = np.concatenate([[0.0], (found.weights**2).cumsum()])
        left = squares[found.starts[1:]][caption] - squares[:-1]
        remaining = (
            np.sqrt(left.clip(0)) + _SLACK_WORDING
        )  # length of this word and all that follow
        shared = np.bincount(found.words, minlength=found.vocabulary)[found.words] > 1
        entries = np.flatnonzero(shared & (remaining * (1 + _SLACK_WORDING) >= least))
        self.caption, words, remaining = caption[entries], found.words[entries], remaining[entries]
        keys = words + (1 - remaining.clip(max=1)) / 2
        order = np.argsort(keys, kind="stable")
        self.listed = self.caption[order]
        reach = (
            words + (1 - ((least - _SLACK_WORDING) / remaining).clip(max=1) + _SLACK_WORDING) / 2
        )
        self.first = np.searchsorted(keys[order], words)
        self.many = np.searchsorted(keys[order], reach + _SLACK_WORDING, side="right") - self.first
        self.dense = np.zeros((_DENSE, found.vocabulary))

    def candidates(self) -> Iterator[tuple[int, Array, Array]]:
        """How many captions were looked up, and pairs with the lower one of each pair there.

        Parts are dealt out to all processes; those of the others have no pairs here.
        """
        bounds = np.searchsorted(self.caption, np.arange(len(self.found) + 1))
        work = np.concatenate([[0], self.many.cumsum()])[bounds]
        start, none = 0, np.zeros(0, np.int64)
        for turn in cycle(range(distributed.size())):
            if start == len(self.found):
                return
            stop = int(np.searchsorted(work, work[start] + _AT_ONCE, side="right")) - 1
            stop = min(max(stop, start + 1), start + _DENSE, len(self.found))
            if turn == distributed.rank():
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


# A reducer that sees only what may be a negative.


@final
@dataclass(frozen=True, slots=True)
class ScoreWindow:
    """Between which scores a negative may lie; see `counterfoil.negatives.filters.FilterConfig`."""

    lowest: float | None = None
    highest: float | None = None
    below_positive: float | None = None
    below_share: float | None = None
    guided: float | None = None

    @property
    def relative(self) -> bool:
        """Whether it depends on the anchors' positives."""
        return any(x is not None for x in (self.below_positive, self.below_share, self.guided))

    def limits(self, positive: Tensor) -> Tensor | None:
        """(Q,) the highest scores allowed.

        Args:
            positive: (Q,) of each anchor, infinite where it has none.
        """
        none = torch.full_like(positive, torch.inf)
        limits = []
        if self.highest is not None:
            limits.append(torch.full_like(positive, self.highest))
        if self.below_positive is not None:
            limits.append((positive - self.below_positive).where(positive.isfinite(), none))
        if self.below_share is not None:
            part = positive - (1 - self.below_share) * positive.abs()
            limits.append(part.where(positive.isfinite(), none))
        return torch.stack(limits).amin(0) if limits else None

    def guide_limits(self, positive: Tensor) -> Tensor:
        """(Q,) the highest scores of the guide allowed, as `limits`."""
        assert self.guided is not None
        limits = positive - self.guided
        return limits.where(positive.isfinite(), torch.full_like(positive, torch.inf))


@final
class GuideScores:
    """Models that score the tiles of another one's sweep; each tile once for both directions.

    Args:
        members: with what they have encoded; their mean counts.
    """

    def __init__(self, members: Sequence[EmbeddedDataset]) -> None:
        self.members = members
        self._last: tuple[ScoreTile, Tensor] | None = None

    def scores(self, tile: ScoreTile) -> Tensor:
        """(i, t) float32 mean scores of the tile's pairs.

        Raises:
            ValueError: one is not a number.
        """
        if self._last is None or self._last[0] is not tile:
            with evaluation_mode(member.model for member in self.members):
                each = [self._one(member, tile) for member in self.members]
            found = each[0] if len(each) == 1 else torch.stack(each).mean(0)
            if bool(found.amax().isnan()):
                row, column = found.isnan().nonzero()[0].tolist()
                known = check_finite(int(tile.images[row]), int(tile.texts[column]))
                raise ValueError(f"of the guide, {known}")
            self._last = tile, found
        return self._last[1]

    def _one(self, member: EmbeddedDataset, tile: ScoreTile) -> Tensor:
        where = tile.scores.device
        images = pick_tiles(member.images, tile.images.cpu(), len(tile.images), where)
        texts = pick_tiles(member.texts, tile.texts.cpu(), len(tile.texts), where)
        return member.model.score_matrix(images, texts).float()


@final
class FilteredReducer(ScoreReducer):
    """Shows a reducer copies of the tiles with -inf in place of what is left out.

    Anchors' positives are read off the tiles with true pairs before the pass and exchanged, so
    they have the very bits of the pass on every process.

    Attributes:
        inner: the reducer that sees what is left.
    """

    def __init__(
        self,
        side: Side,
        reducer: ScoreReducer,
        text_to_image: Tensor,
        window: ScoreWindow,
        *,
        excluded: Exclusions | None = None,
        guides: GuideScores | None = None,
        reduce: Literal["amin", "amax"] = "amin",
        skip: int = 0,
    ) -> None:
        """A filter for one direction.

        Args:
            side: who asks.
            reducer: where results go.
            text_to_image: (T,) image row that each text describes, -1 for none.
            window: scores allowed.
            excluded: pairs that are no negatives.
            guides: models that judge too.
            reduce: which of an image's positives counts.
            skip: how many of the hardest to leave out; `reducer` is a `TopK` then.
        """
        self.side, self.window, self.skip = side, window, skip
        self.inner, self._given = _wider(reducer, skip), reducer
        self._owner, self._excluded, self._guides = text_to_image, excluded, guides
        self._reduce: Literal["amin", "amax"] = reduce
        self.ahead = text_to_image if window.relative else None

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Make room for the positives."""
        self.inner.start(images, texts, device)
        self._owner = self._owner.to(device)
        self.ahead = None if self.ahead is None else self._owner
        if self._excluded is not None:
            self._excluded.to(device)
        nothing = torch.inf if self._reduce == "amin" else -torch.inf
        anchors = images if self.side == "image" else texts
        self._positive = torch.full((2, anchors), nothing, device=device)  # the model's, a guide's
        self._settle()

    def look(self, tile: ScoreTile) -> None:
        """Remember the scores of true pairs."""
        row, column = tile.true(self._owner)
        asked = tile.images[row] if self.side == "image" else tile.texts[column]
        views = [tile.scores] if self._guides is None else [tile.scores, self._guides.scores(tile)]
        for positive, scores in zip(self._positive, views):
            positive.scatter_reduce_(0, asked, scores[row, column], self._reduce)

    def agree(self) -> None:
        """Take the positives of all processes."""
        everybody = distributed.gather(self._positive)
        self._positive = everybody.amin(0) if self._reduce == "amin" else everybody.amax(0)
        self._settle()

    def update(self, tile: ScoreTile) -> None:
        """Pass on what is left."""
        scores = tile.scores.clone()
        if self._limits is not None:
            _keep(scores, torch.le(tile.scores, self._of(self._limits, tile), out=_like(scores)))
        if self.window.lowest is not None:
            _keep(scores, torch.ge(tile.scores, self.window.lowest, out=_like(scores)))
        if self._guides is not None:
            guide, limits = self._guides.scores(tile), self._of(self._guide_limits, tile)
            _keep(scores, torch.le(guide, limits, out=_like(scores)))
        if self._excluded is not None:
            scores[self._excluded.places(tile)] = -torch.inf
        scores[tile.true(self._owner)] = -torch.inf
        self.inner.update(ScoreTile(scores, tile.images, tile.texts))

    def merge(self) -> None:
        """Merge, and leave out the hardest."""
        self.inner.merge()
        if self.skip:
            assert isinstance(self.inner, TopK)
            assert isinstance(self._given, TopK)
            self._given.rows = self.inner.rows[:, self.skip :].contiguous()
            self._given.scores = self.inner.scores[:, self.skip :].contiguous()

    def state(self) -> Tensor:
        """What the inner reducer has kept; positives are looked at again."""
        assert isinstance(self.inner, TopK)
        return self.inner.state()

    def absorb(self, state: Tensor) -> None:
        """Let the inner reducer take up what another one has kept."""
        assert isinstance(self.inner, TopK)
        self.inner.absorb(state)

    def _settle(self) -> None:
        """Limits from positives, once for the whole pass."""
        self._limits = self.window.limits(self._positive[0])
        if self._guides is not None:
            self._guide_limits = self.window.guide_limits(self._positive[1])

    def _of(self, limits: Tensor, tile: ScoreTile) -> Tensor:
        """The tile's limits, along its rows or its columns."""
        if self.side == "image":
            return limits[tile.images].unsqueeze(1)
        return limits[tile.texts].unsqueeze(0)


def _like(scores: Tensor) -> Tensor:
    return torch.empty_like(scores)


def _keep(scores: Tensor, within: Tensor) -> None:
    """Put -inf where `within` is 0 and leave what is there where it is 1.

    On the CPU a masked fill takes ten times as long.
    """
    torch.minimum(scores, within.sub_(0.5).div_(0.0), out=scores)


def _wider(reducer: ScoreReducer, skip: int) -> ScoreReducer:
    """The reducer, or one like it with room for what is skipped."""
    if not skip:
        return reducer
    assert isinstance(reducer, TopK)
    return TopK(reducer.query, reducer.queries, reducer.k + skip, reducer.text_to_image)


Positive = Literal["lowest", "highest"]
_LATER = {"later": True}  # of a field that says nothing at its default, so older runs keep digests


@final
@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """What to leave out of mined lists, besides an image's own captions; all off by default.

    A *positive* is the score of a true pair. A text has one, with the image it describes. An image
    has one for each of its captions, and a single number stands for them: by default the lowest,
    because a text that scores like the least likely true caption may be just as true, and leaving
    out a good negative costs one of many while keeping a true one trains against the truth.
    Anchors without a true pair have no limit.

    Filters are applied in the order in which they stand here; all but `skip` look at one pair at a
    time, so only the place of `skip` matters: it counts what the others have left.

    Attributes:
        captions: leave out a text of which the TF-IDF cosine with any caption of the image is at
            least this, see `counterfoil.negatives.filters`.
        pictures: leave out all captions of an image of which the cosine of features (of grey
            thumbnails, for a data set of pictures) with the image is at least this, see
            `counterfoil.negatives.filters.image_thumbnails`.
        meanings: leave out a text of which the cosine with any caption of the image is at least
            this, by a sentence encoder.
        encoder: that encoder, see `counterfoil.negatives.similarity.SentenceEncoder`.
        lowest: leave out scores below this.
        highest: leave out scores above this.
        below_positive: leave out scores above the anchor's positive less this.
        below_share: leave out scores above this share of the anchor's positive p, that is above
            p - (1 - share) |p| (NV-Retriever, https://arxiv.org/abs/2407.15831, "TopK-PercPos",
            for scores of either sign).
        guided: leave out pairs that a guide model scores above its own positive less this
            (GISTEmbed, https://arxiv.org/abs/2402.16829, where it is 0).
        positive: which of an image's positives stands for it, "lowest" or "highest".
        skip: leave out the so many hardest of what is left.

    Raises:
        ValueError: a number out of range.

    >>> FilterConfig(captions=0.6, skip=5).describe()
    ('texts within TF-IDF cosine 0.6 of a caption of the image', 'the 5 hardest of the rest')
    """

    captions: float | None = None
    pictures: float | None = None
    meanings: float | None = field(default=None, metadata=_LATER)
    encoder: str | None = field(default=None, metadata=_LATER)
    lowest: float | None = None
    highest: float | None = None
    below_positive: float | None = None
    below_share: float | None = None
    guided: float | None = None
    positive: Positive = "lowest"
    skip: int = 0

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            given = getattr(self, name)
            if isinstance(given, float | int) and not math.isfinite(given):
                raise ValueError(f"{name}={given}: a finite number is needed")
        for name in ("captions", "pictures", "meanings"):
            if getattr(self, name) is not None:
                check_least(name, getattr(self, name))
        if self.lowest is not None and self.highest is not None and self.lowest > self.highest:
            raise ValueError(
                f"lowest={self.lowest} is above highest={self.highest}, so nothing is between them"
            )
        if self.below_share is not None and self.below_share <= 0:
            raise ValueError(f"below_share={self.below_share}: above 0 is needed, as in 0.95")
        if self.positive not in ("lowest", "highest"):
            raise ValueError(f"positive={self.positive!r} is unknown; use lowest or highest")
        if self.skip < 0:
            raise ValueError(f"skip={self.skip}: 0 or more are skipped")

    @property
    def needs_guide(self) -> bool:
        """Whether a guide model has to score the pairs too."""
        return self.guided is not None

    @property
    def judges_scores(self) -> bool:
        """Whether more than captions and pictures are compared."""
        return self != FilterConfig(
            captions=self.captions,
            pictures=self.pictures,
            meanings=self.meanings,
            encoder=self.encoder,
            positive=self.positive,
        )

    def describe(self) -> tuple[str, ...]:
        """What is left out, in order, for the manifest of a store; nothing where all is off."""
        own = f"the anchor's {self.positive} positive"
        encoder = (self.encoder or "").replace("{", "{{").replace("}", "}}")
        said = (
            (self.captions, "texts within TF-IDF cosine {} of a caption of the image"),
            (self.pictures, "captions of pictures within cosine {} of the image"),
            (self.meanings, f"texts within cosine {{}} of a caption of the image, by {encoder}"),
            (self.lowest, "scores below {}"),
            (self.highest, "scores above {}"),
            (self.below_positive, f"scores above {own} less {{}}"),
            (self.below_share, f"scores above {{}} of {own}"),
            (self.guided, f"pairs that the guide scores above {own} less {{}}"),
            (self.skip or None, "the {} hardest of the rest"),
        )
        return tuple(words.format(value) for value, words in said if value is not None)


@final
class NegativeFilters:
    """A plan made ready for a data set: near duplicates are found, guides have encoded it.

    Attributes:
        plan: what is left out.
        excluded: pairs that are never negatives, those that somebody found true among them, or
            None.
    """

    def __init__(
        self,
        plan: FilterConfig,
        dataset: ImageTextDataset,
        *,
        guides: Sequence[EmbeddedDataset] = (),
        device: torch.device | str | None = None,
    ) -> None:
        """See `build_filters`."""
        check_encoder(plan)
        _check_guides(plan, dataset, guides)
        self.plan, self.excluded = plan, _exclusions(plan, dataset, device)
        self._owner = dataset.text_to_image
        self._guides = GuideScores(guides) if guides else None

    def on(self, side: Side, reducer: ScoreReducer) -> ScoreReducer:
        """A reducer that shows another one only what passes; that one keeps the results.

        `FilteredReducer.inner` is the reducer that sees the tiles: the given one or, where the
        plan skips,
        a `TopK` with room for what is skipped, whose lists are cut and handed over by `merge`. A
        plan that leaves nothing out gives back the reducer.

        Args:
            side: who asks: the anchors whose positives limit their negatives.
            reducer: sees -inf in place of what is left out and of true pairs. Its own look ahead is
                not passed on.

        Raises:
            ValueError: the plan skips, and the reducer is no `TopK`.
        """
        plan = self.plan
        if not plan.describe() and self.excluded is None:
            return reducer
        if plan.skip and not isinstance(reducer, TopK):
            raise ValueError(
                f"skip={plan.skip} leaves out the hardest of ranked lists, and "
                f"{type(reducer).__name__} keeps none; use it with TopK"
            )
        window = ScoreWindow(
            plan.lowest, plan.highest, plan.below_positive, plan.below_share, plan.guided
        )
        return FilteredReducer(
            side,
            reducer,
            self._owner,
            window,
            excluded=self.excluded,
            guides=self._guides,
            reduce="amin" if plan.positive == "lowest" else "amax",
            skip=plan.skip,
        )


def build_filters(
    plan: FilterConfig,
    dataset: ImageTextDataset,
    *,
    guides: Sequence[EmbeddedDataset] = (),
    device: torch.device | str | None = None,
) -> NegativeFilters:
    """Make a plan ready for the split that is mined.

    Args:
        plan: what to leave out.
        dataset: the images and texts whose rows are mined.
        guides: models that have encoded this data set, for `FilterConfig.guided`; the mean of their
            scores counts. They compute where the tiles are.
        device: where near pictures are looked for.

    Raises:
        ValueError: a guide or an encoder is missing, not asked for, of another data set or not to
            be
            opened; captions without words, or images without pictures or features, where they have
            to be compared.
    """
    return NegativeFilters(plan, dataset, guides=guides, device=device)


def check_encoder(plan: FilterConfig) -> None:
    """Whether a sentence encoder is named where one is asked, and there alone.

    Raises:
        ValueError: it is not.
    """
    if plan.meanings is not None and not plan.encoder:
        raise ValueError(
            f"meanings={plan.meanings} needs a sentence encoder; set encoder to a folder or name, "
            "as in encoder=sentence-transformers/all-MiniLM-L6-v2"
        )
    if plan.meanings is None and plan.encoder:
        raise ValueError(
            f"encoder={plan.encoder} was named, but no filter asks it; set meanings=0.7"
        )


def _check_guides(
    plan: FilterConfig, dataset: ImageTextDataset, guides: Sequence[EmbeddedDataset]
) -> None:
    if plan.needs_guide and not guides:
        raise ValueError(f"guided={plan.guided} needs a guide model, and none was named")
    if guides and not plan.needs_guide:
        raise ValueError("a guide model was named, but no filter asks it; set guided=0.0")
    for guide in guides:
        found, wanted = (len(guide.images), len(guide.texts)), (len(dataset), len(dataset.texts))
        if found != wanted:
            raise ValueError(
                f"a guide has encoded {found[0]} images and {found[1]} texts, but {wanted[0]} and "
                f"{wanted[1]} are mined; encode the same split with it"
            )


def _exclusions(
    plan: FilterConfig, dataset: ImageTextDataset, device: torch.device | str | None
) -> Exclusions | None:
    pairs = []
    for name in ("captions", "meanings"):
        if getattr(plan, name) is not None and not any(dataset.texts):
            raise ValueError(
                f"{name}={getattr(plan, name)} compares words, but {dataset.name} has none; leave "
                "it off"
            )
    if plan.captions is not None:
        pairs.append(
            exclude_captions(near_captions(dataset.texts, least=plan.captions), dataset.relation)
        )
    if plan.pictures is not None:
        near = near_pictures(dataset, least=plan.pictures, device=device)
        pairs.append(exclude_pictures(near, dataset.relation))
    if plan.meanings is not None:
        assert plan.encoder is not None
        vectors = (
            SentenceEncoder(plan.encoder, device=device).vectors(dataset.texts).to(device or "cpu")
        )
        alike = near_vectors("meanings", vectors, least=plan.meanings)
        pairs.append(exclude_captions(alike, dataset.relation))
    if dataset.extra_positives is not None:
        pairs.append((dataset.extra_positives.image, dataset.extra_positives.text))
    if not pairs:
        return None
    images, texts = (torch.cat(part) for part in zip(*pairs, strict=True))
    return Exclusions(images, texts, (len(dataset), len(dataset.texts)))
