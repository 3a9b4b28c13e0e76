"""How a score matrix is cut: a grid that depends on the members alone, and the order of visits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from counterfoil.matcher import Matcher
from counterfoil.records import Encoded, Pairs

Side: TypeAlias = Literal["image", "text"]

_STEP = 16  # sides of tiles are multiples of this
_VECTORS = {"cpu": (512, 2048), "cuda": (2048, 4096)}  # one vector per item: a plain product
_BAGS = {"cpu": (128, 512), "cuda": (512, 1024)}


@final
@dataclass(frozen=True, slots=True)
class Member:
    """A matcher with everything it has encoded.

    Attributes:
        matcher: scores pairs.
        images: all images, as this matcher encodes them.
        texts: all texts, as this matcher encodes them.
    """

    matcher: Matcher
    images: Encoded
    texts: Encoded


@final
@dataclass(frozen=True, slots=True)
class Tile:
    """A block of the score matrix and where it lies.

    Attributes:
        scores: (i, t) float32, contiguous, without NaN.
        images: (i,) long, image rows, ascending.
        texts: (t,) long, text rows, in any order.
    """

    scores: Tensor
    images: Tensor
    texts: Tensor

    def true(self, owner: Tensor, besides: Pairs | None = None) -> tuple[Tensor, Tensor]:
        """Where in the tile texts meet the images they describe: places (p,) and (p,).

        Args:
            owner: (T,) long, image row that each text describes, -1 for none.
            besides: rows of other true pairs, where there are some.
        """
        wanted = owner[self.texts]
        place = torch.searchsorted(self.images, wanted).clamp_(max=len(self.images) - 1)
        column = (self.images[place] == wanted).nonzero().squeeze(1)
        if besides is None:
            return place[column], column
        rows, columns = self._met(besides)
        return torch.cat([place[column], rows]), torch.cat([column, columns])

    def _met(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Where pairs of rows lie, of those that lie in the tile."""
        here = torch.isin(pairs.image, self.images) & torch.isin(pairs.text, self.texts)
        texts, order = self.texts.sort()
        column = order[torch.searchsorted(texts, pairs.text[here])]
        return torch.searchsorted(self.images, pairs.image[here]), column


def device_of(member: Member) -> torch.device:
    """Where the matcher's parameters are, or the encodings if it has none."""
    parameter = next(member.matcher.parameters(), None)
    return member.images.tokens.device if parameter is None else parameter.device


def not_a_number(image: int, text: int) -> ValueError:
    """What to say of a score that is NaN."""
    return ValueError(
        f"the score of image row {image} and text row {text} is not a number; look for NaN in the "
        "features, or train again with a lower learning rate"
    )


def tile_shape(members: Sequence[Member], device: torch.device) -> tuple[int, int]:
    """Images and texts of a tile: the same for the same members and kind of device, always.

    Tiles are nearly equal, so that little of the padded last ones is wasted.
    """
    single = all(m.images.mask.shape[1] == m.texts.mask.shape[1] == 1 for m in members)
    sizes = _VECTORS if single else _BAGS
    high, wide = sizes.get(device.type, sizes["cuda"])
    return _even(len(members[0].images), high), _even(len(members[0].texts), wide)


def _even(count: int, most: int) -> int:
    tiles = max(1, -(-count // most))
    each = -(-count // tiles)
    return max(_STEP, -(-each // _STEP) * _STEP)


def cut(rows: Tensor, size: int) -> list[Tensor]:
    """Rows in consecutive parts of `size`, the last one shorter."""
    return list(torch.split(rows, size)) if len(rows) else []


def spread(count: int) -> list[int]:
    """0 to count - 1, each new one far from those before.

    Thresholds learnt from tiles visited in this order fit the whole matrix even when scores rise
    with the row.

    >>> spread(6)
    [0, 4, 2, 1, 5, 3]
    """
    bits = max(1, (count - 1).bit_length())
    reverse = (int(f"{place:0{bits}b}"[::-1], 2) for place in range(2**bits))
    return [place for place in reverse if place < count]


def pick(encoded: Encoded, rows: Tensor, size: int, device: torch.device) -> Encoded:
    """These rows on the device, the last one repeated until there are `size`.

    A full block of consecutive rows is a view, not a copy. Padding keeps the shape of every
    product the same, so that equal items score equally wherever they stand.
    """
    last = int(rows[-1])
    if len(rows) < size:
        rows = torch.cat([rows, rows.new_full((size - len(rows),), last)])
    elif last - int(rows[0]) == size - 1 and bool((rows.diff() == 1).all()):
        return encoded.rows(slice(int(rows[0]), last + 1)).to(device)
    return encoded.rows(rows).to(device)
