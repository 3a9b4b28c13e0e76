"""Captions as points of a latent semantic space: TF-IDF, then a truncated SVD.

Two captions are alike there when they use words that go together, not only the same ones. Captions
are lower-cased, split into words of letters, rid of function words and stemmed by Porter's rules;
each word weighs ``count * (1 + log((1 + T) / (1 + captions with the word)))``, and a caption has
length 1 before the SVD.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core.console import progress

_LETTERS = re.compile(r"[a-z]+")
_SPARE = 10  # directions beyond those asked for, which let the last of them settle
_SETTLED = 1e-7  # relative change of the captured weight from one pass to the next
FUNCTION_WORDS = frozenset(
    _LETTERS.findall(
        """a about above after again against all along also although am among an and another any are
    aren around as at away back be because been before behind being below beside between both but by
    can cannot could couldn did didn do does doesn doing don down during each either else etc ever
    every few for from further had hadn has hasn have haven having he her here hers herself him
    himself his how however if in inside into is isn it its itself just ll many may me might mine
    more most much must my myself near neither next no nor not now of off often on once one only
    onto or other others our ours ourselves out outside over own per re same shan she should
    shouldn since so some still such than that the their theirs them themselves then there these
    they this those though through to together too toward towards under until up upon us very was
    wasn we were weren what when where whether which while who whom whose why will with within
    without won would wouldn yet you your yours yourself yourselves"""
    )
)


@final
@dataclass(frozen=True, kw_only=True)
class SpacePlan:
    """How captions become points; the defaults are those of LSEH.

    Attributes:
        components: dimensions of the space, K; fewer where captions or words are fewer.
        passes: power iterations of the SVD at most.
        seed: of the directions it begins with.
        stem: bring words to their stems.

    Raises:
        ValueError: not even one dimension or pass.
    """

    components: int = 400
    passes: int = 100
    seed: int = 122
    stem: bool = True

    def __post_init__(self) -> None:
        for name, number in (("components", self.components), ("passes", self.passes)):
            if number < 1:
                raise ValueError(f"{name}={number} is not possible; it must be at least 1")


def latent(texts: Sequence[str], plan: SpacePlan) -> Tensor:
    """(T, K) float32 points of the captions; one without a word of its own is zero.

    Inner products of points approximate those of the TF-IDF vectors. Departs from the authors' code
    (https://github.com/yangong23/VSEnetworksLSEH) in: one list of function words instead of two
    that are downloaded or shipped with other libraries; and the power iteration works on words,
    not captions, and stops once it has settled.

    Raises:
        ValueError: no caption has a word, or the stemmer is not installed.
    """
    weighed = tf_idf(texts, stem=plan.stem)
    captions, words = weighed.shape
    width = min(plan.components, captions, words)
    rng = torch.Generator().manual_seed(plan.seed)
    basis = torch.randn(words, min(words, width + _SPARE), generator=rng)
    turned, before = weighed.T.coalesce(), 0.0
    with progress("passes over the captions", plan.passes) as advance:
        for _ in range(plan.passes):
            basis = turned @ (weighed @ torch.linalg.qr(basis).Q)
            advance(1)
            captured = float(basis.double().norm())
            if abs(captured - before) <= _SETTLED * captured:
                break
            before = captured
    points = weighed @ torch.linalg.qr(basis).Q
    _, axes = torch.linalg.eigh(points.double().T @ points.double())
    space: Tensor = points @ axes.flip(1)[:, :width].float()
    return space


def check_captions(texts: Sequence[str], plan: SpacePlan) -> None:
    """Refuse what `latent` would refuse, before anything is done.

    Raises:
        ValueError: no caption has a word, or the stemmer is not installed.
    """
    told = next((text for text in texts if _content([text], stem=False)[0]), None)
    tf_idf(list(texts) if told is None else [told], stem=plan.stem)


def tf_idf(texts: Sequence[str], *, stem: bool) -> Tensor:
    """(T, V) sparse float32 weights of the words of each caption, of length 1 or 0.

    Raises:
        ValueError: no caption has a word, or the stemmer is not installed.
    """
    counts = [Counter(words) for words in _content(texts, stem=stem)]
    found = Counter(word for count in counts for word in count)
    if not found:
        raise ValueError(
            f"none of the {len(texts):,} captions has a word that says something, so their "
            "semantics cannot be compared; name data with captions"
        )
    number = {word: place for place, word in enumerate(sorted(found))}
    weight = {w: 1 + math.log((1 + len(texts)) / (1 + found[w])) for w in found}
    caption = [place for place, count in enumerate(counts) for _ in count]
    column = [number[word] for count in counts for word in count]
    value = torch.tensor([n * weight[word] for count in counts for word, n in count.items()])
    square = torch.zeros(len(texts)).index_add_(0, torch.tensor(caption), value.square())
    value = value / square[torch.tensor(caption)].sqrt()
    places, shape = torch.tensor([caption, column]), (len(texts), len(number))
    return torch.sparse_coo_tensor(places, value, shape, check_invariants=True).coalesce()


def nearness(points: Tensor, *, cosine: bool = False) -> Tensor:
    """(N, N) how near captions are to the one of each row, whose nearest is at 1.

    LSEH divides inner products by the largest of each row, so the matrix is not symmetric; a row
    without any stays zero.

    Args:
        points: (N, K).
        cosine: bring points to length 1 first.
    """
    points = normalize(points, dim=1) if cosine else points
    inner = points @ points.T
    most = inner.amax(1, keepdim=True)
    return inner / most.masked_fill(most == 0, 1)


def _content(texts: Iterable[str], *, stem: bool) -> list[list[str]]:
    """The words of each caption that say something."""
    split = [[w for w in _LETTERS.findall(t.lower()) if w not in FUNCTION_WORDS] for t in texts]
    stems = _stems({word for words in split for word in words}) if stem else {}
    stemmed = ([stems.get(word, word) for word in words] for words in split)
    return [[word for word in words if len(word) > 1] for words in stemmed]


def _stems(words: Iterable[str]) -> dict[str, str]:
    try:
        from snowballstemmer import stemmer
    except ImportError:
        raise ValueError(
            'stems of words need snowballstemmer: pip install "counterfoil[stem]", or set stem to '
            "false"
        ) from None
    porter: Callable[[str], str] = stemmer("porter").stemWord
    return {word: porter(word) for word in words}
