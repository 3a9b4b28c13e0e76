"""Captions as points of a latent semantic space: TF-IDF, then a truncated SVD.

Two captions are alike there when they use words that go together, not only the same ones. Captions
are lower-cased, split into words of letters, rid of function words and stemmed by Porter's rules;
each word weighs ``count * (1 + log((1 + T) / (1 + captions with the word)))``, and a caption has
length 1 before the SVD.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

_LETTERS = re.compile(r"[a-z]+")
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
        passes: power iterations of the SVD.
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
    that are downloaded or shipped with other libraries.

    Raises:
        ValueError: no caption has a word, or the stemmer is not installed.
    """
    from sklearn.decomposition import TruncatedSVD

    weights = tf_idf(texts, stem=plan.stem)
    width = min(plan.components, *weights.shape)
    # Randomised, not Lanczos: ARPACK restarts from a state of its own where singular values are
    # equal, and two processes would get other points. Signs are fixed by scikit-learn.
    svd = TruncatedSVD(width, n_iter=plan.passes, random_state=plan.seed)
    return torch.from_numpy(svd.fit_transform(weights).astype(np.float32))


def check_captions(texts: Sequence[str], plan: SpacePlan) -> None:
    """Refuse what `latent` would refuse, before anything is done.

    Raises:
        ValueError: no caption has a word, or the stemmer is not installed.
    """
    told = next((text for text in texts if _content([text], stem=False)[0]), None)
    tf_idf(list(texts) if told is None else [told], stem=plan.stem)


def tf_idf(texts: Sequence[str], *, stem: bool) -> Any:
    """(T, V) sparse weights of the words of each caption (CSR), of length 1 or 0.

    Raises:
        ValueError: no caption has a word, or the stemmer is not installed.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = _content(texts, stem=stem)
    if not any(words):
        raise ValueError(
            f"none of the {len(texts):,} captions has a word that says something, so their "
            "semantics cannot be compared; name data with captions"
        )
    return TfidfVectorizer(analyzer=list).fit_transform(words)  # captions are lists of words here


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
