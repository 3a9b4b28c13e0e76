"""Scores of chosen pairs, where a whole matrix would be too much."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.core.console import progress
from counterfoil.engine.modes import evaluating
from counterfoil.engine.tiles import Member, device_of, not_a_number
from counterfoil.records import Encoded

_NUMBERS = {"cpu": 2**22, "cuda": 2**28}  # that the encodings of the pairs scored together hold
_TEXTS = 512  # scored together with one image
_AT_ONCE = 2**22  # scores exchanged together


def score_pairs(
    members: Sequence[Member],
    images: Tensor,
    texts: Tensor,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """(P,) float32 scores of pairs of rows, the mean over members, on the CPU.

    On the CPU an image with a bag of vectors meets its texts in grids of at most 512, which spares
    copying the image for each of them; otherwise pairs are gathered in parts of one size. How pairs
    are cut depends on the members, the pairs and the kind of device alone, so several processes,
    which deal out the parts, find what one does, bit for bit.

    Args:
        members: matchers with their encodings of the same images and texts.
        images: (P,) long rows on the CPU, in ascending order.
        texts: (P,) long rows on the CPU.
        device: where to compute, as in `sweep`.

    Raises:
        ValueError: a score that is not a number.
    """
    assert bool((images.diff() >= 0).all())
    found = torch.zeros(len(images))
    if not len(images):
        return found
    where = device_of(members[0]) if device is None else torch.device(device)
    grids = where.type == "cpu" and any(m.images.mask.shape[1] > 1 for m in members)
    parts = _by_image(images) if grids else _even(members, len(images), where)
    with (
        evaluating(member.matcher for member in members),
        progress("pairs scored", len(images)) as advance,
    ):
        for part in parts[world.rank() :: world.size()]:
            left, right = images[part], texts[part]
            each = [_score(member, left, right, where, grids) for member in members]
            found[part] = sum(each[1:], each[0]).cpu() / len(each)
            advance(len(left) * world.size())
    return _together(found, images, texts)


def _by_image(images: Tensor) -> list[slice]:
    """Pairs of one image each, at most `_TEXTS` of them."""
    ends = torch.bincount(images).cumsum(0).unique().tolist()  # type: ignore[no-untyped-call]
    ends = [end for end in ends if end]
    starts = [0, *ends[:-1]]
    return [
        slice(start, min(start + _TEXTS, end))
        for first, end in zip(starts, ends, strict=True)
        for start in range(first, end, _TEXTS)
    ]


def _even(members: Sequence[Member], pairs: int, device: torch.device) -> list[slice]:
    each = max(m.images.tokens[0].numel() + m.texts.tokens[0].numel() for m in members)
    size = max(1, _NUMBERS.get(device.type, _NUMBERS["cuda"]) // max(1, each))
    return [slice(start, min(start + size, pairs)) for start in range(0, pairs, size)]


def _score(
    member: Member, images: Tensor, texts: Tensor, device: torch.device, grid: bool
) -> Tensor:
    right = _fetch(member.texts, texts, device)
    if grid:
        left = member.images.rows(slice(int(images[0]), int(images[0]) + 1)).to(device)
        return member.matcher.grid(left, right)[0].float()
    return member.matcher.pairs(_fetch(member.images, images, device), right).float()


def _fetch(side: Encoded, rows: Tensor, device: torch.device) -> Encoded:
    """These rows on the device; what comes twice is sent there once."""
    if side.tokens.device == device:
        return side.rows(rows)
    once, places = rows.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return side.rows(once).to(device).rows(places)


def _together(found: Tensor, images: Tensor, texts: Tensor) -> Tensor:
    """The scores of all processes; each pair was scored by one of them, and is 0 elsewhere."""
    for part in torch.split(found, _AT_ONCE):  # views
        part.copy_(world.gather(part.to(world.device())).sum(0))
    if bool(found.isnan().any()):
        place = int(found.isnan().nonzero()[0])
        raise not_a_number(int(images[place]), int(texts[place]))
    return found
