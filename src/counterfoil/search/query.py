"""Queries with a minus: ``cat -cartoon`` finds cats that are no cartoons."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core.types import Embeddings
from counterfoil.models.layers.late_interaction import MaxSimModel
from counterfoil.models.layers.pooling import single_vector

if TYPE_CHECKING:
    from counterfoil.model import Model

WEIGHT = 0.5  # of what is unwanted
# a minus before a word or a quoted phrase, at the start or behind a blank: "t-shirt" has none
_UNWANTED = re.compile(r'(?:^|(?<=\s))-(?:"([^"]+)"|([^\W\d_][^\s"]*))')


def parse_query(text: str) -> tuple[str, tuple[str, ...]]:
    """Return what a query wants, and the words and phrases behind a minus.

    Raises:
        ValueError: nothing is wanted.

    >>> parse_query('a cat -cartoon -"black and white"')
    ('a cat', ('cartoon', 'black and white'))
    >>> parse_query("a t-shirt - size 4 -5")
    ('a t-shirt - size 4 -5', ())
    """
    unwanted = tuple(phrase or word for phrase, word in _UNWANTED.findall(text))
    if not unwanted:
        return text, ()
    wanted = " ".join(_UNWANTED.sub(" ", text).split())
    if not wanted:
        raise ValueError(
            f"{text!r} says only what is unwanted; say what to find too, as in `cat -cartoon`"
        )
    return wanted, unwanted


def encode_caption(model: Model, text: str) -> Tensor:
    """Return the (1, D) vector of a query: what is wanted less a share of what is unwanted.

    The difference has the length of what is wanted, so that scores stay in their range.
    """
    wanted, unwanted = parse_query(text)
    vector = model.encode([wanted]).tokens[:, 0].float()
    if not unwanted:
        return vector
    against = model.encode(list(unwanted)).tokens[:, 0].float()
    # each unwanted phrase takes its part, not the mean: two exclude more than one
    difference = normalize(vector - WEIGHT * against.sum(0, keepdim=True), dim=1)
    query: Tensor = difference * torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    return query


def encode_query(model: Model, text: str) -> Embeddings:
    """Return the vectors of a query, of a multi-vector model too.

    Raises:
        ValueError: a multi-vector model has no difference of vectors, and the query has a minus.
    """
    if not isinstance(model.model, MaxSimModel):
        return single_vector(encode_caption(model, text))
    if parse_query(text)[1]:
        raise ValueError(
            f"{text!r} has words behind a minus, and {model.name} makes several vectors of a "
            "caption, which have no difference; leave the minus out"
        )
    return model.encode([text])
