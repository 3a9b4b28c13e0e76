"""One vector for every item, whatever a model makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.engine.tiles import Member
from counterfoil.records import Encoded

_AT_ONCE = 4096

MEAN_OF_BAGS = "a bag of vectors stands for itself by the mean of its unit vectors"


def unit_vectors(encoded: Sequence[Encoded]) -> Tensor:
    """(N, D) unit vectors, whose inner product is the mean cosine over models.

    An item that is a bag of vectors is the mean of its unit vectors, made one long: a summary that
    the model itself does not use.

    Args:
        encoded: the same N items as each model encodes them; D is the sum of the widths.
    """
    each = [_means(one) for one in encoded]
    return torch.cat(each, 1) / math.sqrt(len(each))


def holds_bags(members: Sequence[Member]) -> bool:
    """Whether some item is more than one vector."""
    sides = (side for member in members for side in (member.images, member.texts))
    return any(side.mask.shape[1] > 1 for side in sides)


def _means(encoded: Encoded) -> Tensor:
    parts = []
    for start in range(0, len(encoded), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        tokens, mask = encoded.tokens[part], encoded.mask[part]
        units = normalize(tokens.float(), dim=-1).masked_fill(~mask.unsqueeze(2), 0)
        parts.append(normalize(units.sum(1), dim=-1).cpu())
    return torch.cat(parts)
