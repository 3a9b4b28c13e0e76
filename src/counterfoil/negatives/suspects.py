"""Which mined pairs may be true after all: several estimates, each said in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.relation import Relation
from counterfoil.corpus.scenes import holds, parse, scene
from counterfoil.negatives.duplicates import check_least
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.wording import bags
from counterfoil.records import Pairs

_SAME = 1 - 1e-9  # cosine of equal sets of words, rounded


@final
@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """The lists of S anchor pairs, those of their images or those of their texts.

    Attributes:
        anchors: (S,) the anchor pairs.
        pairs: (S, h) the listed pairs, hardest first.
        listed: (S, h) bool, False where a list is shorter; such pairs mean nothing.
    """

    anchors: Pairs
    pairs: Pairs
    listed: Tensor


@final
@dataclass(frozen=True, slots=True, eq=False)
class Suspects:
    """One estimate of which listed pairs are true.

    Attributes:
        name: in a word or two.
        words: what it means.
        found: (S, h) bool, suspected.
        known: (S, h) bool, listed and decided.
    """

    name: str
    words: str
    found: Tensor
    known: Tensor


def look(lists: Lists, relation: Relation, texts: Tensor) -> tuple[Looked, Looked]:
    """What is listed for anchor texts: wrong texts of their images, and wrong images of theirs."""
    anchors = Pairs(relation.owner[texts], texts)
    wrong_texts = lists.texts[anchors.image].long()
    wrong_images = lists.images[texts].long()
    return (
        Looked(anchors, Pairs(_beside(anchors.image, wrong_texts), wrong_texts), wrong_texts >= 0),
        Looked(anchors, Pairs(wrong_images, _beside(texts, wrong_images)), wrong_images >= 0),
    )


def above(looked: Looked, scores: Tensor, positive: Tensor) -> Suspects:
    """Pairs that score at least what their anchor pair scores.

    Args:
        looked: the lists.
        scores: (S, h) of the listed pairs.
        positive: (S,) of the anchor pairs.
    """
    words = "scores at least what its anchor pair scores; mistakes of the model count too"
    found = looked.listed & (scores >= positive.unsqueeze(1))
    return Suspects("above positive", words, found, looked.listed)


def by_words(corpus: Corpus, looked: Sequence[Looked], *, least: float) -> list[list[Suspects]]:
    """Pairs whose text is worded like one of the image's own captions, for each of `looked`.

    Args:
        corpus: the captions.
        looked: lists.
        least: TF-IDF cosine that counts as alike, see `counterfoil.negatives.wording`.

    Returns:
        Two estimates each, none for a corpus without words.

    Raises:
        ValueError: `least` out of range.
    """
    check_least("alike", least)
    wording = _Wording(corpus)
    if not wording.bags.vocabulary:
        return [[] for _ in looked]
    same = "has the very words of a caption of the image, in any order"
    alike = f"has a TF-IDF cosine of at least {least:g} with a caption of the image"
    estimates = []
    for part in looked:
        cosine, listed = wording.cosines(part), part.listed
        estimates.append(
            [
                Suspects("same words", same, listed & (cosine >= _SAME), listed),
                Suspects("similar words", alike, listed & (cosine >= least - 1e-9), listed),
            ]
        )
    return estimates


def by_truth(corpus: Corpus, looked: Sequence[Looked]) -> list[list[Suspects]]:
    """Pairs whose text is true of the picture, where that can be decided: in `scenes`.

    Returns:
        One estimate each, the exact one; none for other data.
    """
    try:
        scene(corpus.image_ids[0])
    except ValueError:
        return [[] for _ in looked]
    words = "is true of the picture, as decided from what is in it"
    forms = cache(lambda row: (p := parse(corpus.texts[row])) and p.form)
    graphs = cache(lambda row: scene(corpus.image_ids[row]))
    estimates = []
    for part in looked:
        found, known = torch.zeros_like(part.listed), torch.zeros_like(part.listed)
        for line, place in part.listed.nonzero().tolist():
            form = forms(int(part.pairs.text[line, place]))
            if form is not None:
                known[line, place] = True
                found[line, place] = holds(form, graphs(int(part.pairs.image[line, place])))
        estimates.append([Suspects("true", words, found, known)])
    return estimates


def _beside(anchor: Tensor, listed: Tensor) -> Tensor:
    return anchor.unsqueeze(1).expand_as(listed)


@final
class _Wording:
    """TF-IDF cosines of texts with the captions of images."""

    def __init__(self, corpus: Corpus) -> None:
        self.bags, self.relation = bags(corpus.texts), corpus.relation

    def cosines(self, looked: Looked) -> Tensor:
        """(S, h) the highest cosine of each listed pair's text with a caption of its image."""
        out = torch.zeros(looked.listed.shape, dtype=torch.double)
        for line, listed in enumerate(looked.listed):
            images, texts = looked.pairs.image[line, listed], looked.pairs.text[line, listed]
            out[line, listed] = torch.from_numpy(self._line(images, texts))
        return out

    def _line(self, images: Tensor, texts: Tensor) -> npt.NDArray[Any]:
        """For pairs that share their image or their text."""
        if not len(images):
            return np.zeros(0)
        if bool((images == images[0]).all()):
            captions, _ = self.relation.captions(images[:1])
            best: npt.NDArray[Any] = np.zeros(len(images))
            for one in captions.tolist():
                best = np.maximum(best, self._with(one, texts))
            return best
        captions, counts = self.relation.captions(images)
        best = np.zeros(len(images))
        pair = np.repeat(np.arange(len(images)), counts.numpy())
        np.maximum.at(best, pair, self._with(int(texts[0]), captions))
        return best

    def _with(self, one: int, others: Tensor) -> npt.NDArray[Any]:
        """Cosine of one text with others."""
        starts, words, weights = self.bags.starts, self.bags.words, self.bags.weights
        dense: npt.NDArray[Any] = np.zeros(self.bags.vocabulary)
        own = slice(starts[one], starts[one + 1])
        dense[words[own]] = weights[own]
        rows = others.numpy()
        many = starts[rows + 1] - starts[rows]
        at = np.repeat(starts[rows] - (many.cumsum() - many), many) + np.arange(many.sum())
        pair = np.repeat(np.arange(len(rows)), many)
        found: npt.NDArray[Any] = np.bincount(pair, dense[words[at]] * weights[at], len(rows))
        return found
