"""Which written captions may be negatives, and which of them are the hardest.

TAGS (https://arxiv.org/abs/2111.03349, section 2.1.2): a caption whose new words all occur in the
captions of the image is taken for a true one. Here such captions, copies of the original, and what
was written twice are out before anything is scored.

Departs from the authors' code in: theirs has no such rule in its first step and crashes on it in
the second (T2), and only lowers the scores of copies, so that they may still be chosen (T3); see
`lowered` for that form.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from counterfoil.core.literals import parse_choice

Scale = Literal["logits", "sigmoid"]
SCALES: tuple[Scale, ...] = ("logits", "sigmoid")
COPY, TWICE = 3.0, 2.0  # what the authors' code takes off


def copies(written: Tensor, original: Tensor) -> Tensor:
    """(B, N) bool, True for a caption that is the original.

    Args:
        written: (B, N, L) long.
        original: (B, L) long.
    """
    return (written == original.unsqueeze(1)).all(2)


def twice(written: Tensor) -> Tensor:
    """(B, N) bool, True for a caption that a later one of the same anchor repeats.

    Args:
        written: (B, N, L) long.
    """
    number = torch.arange(len(written), device=written.device)
    rows = torch.cat([number[:, None, None].expand(*written.shape[:2], 1), written], 2)
    group = torch.unique(rows.flatten(0, 1), dim=0, return_inverse=True)[1]
    place = torch.arange(len(group), device=group.device)
    last = torch.zeros_like(group).scatter_reduce(0, group, place, "amax", include_self=False)
    return (last[group] != place).view(written.shape[:2])


def known(written: Tensor, original: Tensor, there: Tensor) -> Tensor:
    """(B, N) bool, True where every word that differs from the original's is known to be true.

    Args:
        written: (B, N, L) long.
        original: (B, L) long.
        there: (B, V) bool, words that occur in the captions of each anchor's image.
    """
    changed = written != original.unsqueeze(1)
    occurs = there.gather(1, written.flatten(1)).view(written.shape)
    return (occurs | ~changed).all(2)


def occurring(captions: Tensor, mask: Tensor, owner: Tensor, shape: tuple[int, int]) -> Tensor:
    """(B, V) bool, the words that occur in the captions of each anchor's image.

    Args:
        captions: (C, L) long.
        mask: (C, L) bool.
        owner: (C,) long, to which anchor each caption belongs.
        shape: B and V.
    """
    there = torch.zeros(shape, dtype=torch.bool, device=captions.device)
    there[owner.unsqueeze(1).expand_as(captions)[mask], captions[mask]] = True
    return there


def agrees(written: Tensor, original: Tensor, form: Tensor) -> Tensor:
    """(B, N) bool, True where every new word has the inflection of the one it replaces.

    Args:
        written: (B, N, L) long.
        original: (B, L) long.
        form: (V,) long, a number for each inflection.
    """
    return (form[written] == form[original].unsqueeze(1)).all(2)


def lowered(scores: Tensor, copy: Tensor, repeat: Tensor, *, scale: Scale) -> Tensor:
    """Scores with those of copies lowered by 3, and of captions written again later by 2.

    This is the authors' code, on logits in its first step and on sigmoids in its second. Nothing
    is left out: a copy whose score is high enough is chosen, and copies fill up what is missing.

    Args:
        scores: (B, N) logits.
        copy: (B, N) bool, see `copies`.
        repeat: (B, N) bool, see `twice`.
        scale: what is lowered.

    Raises:
        ValueError: another scale.
    """
    parse_choice(SCALES, scale, "a scale of scores")
    scores = scores.sigmoid() if scale == "sigmoid" else scores
    return scores - COPY * copy.to(scores.dtype) - TWICE * repeat.to(scores.dtype)


def hardest(scores: Tensor, keep: Tensor, count: int) -> Tensor:
    """(B, M) long, places of the highest scores of each row, best first; -1 where none is left.

    Args:
        scores: (B, N).
        keep: (B, N) bool, which may be chosen.
        count: M.
    """
    left = scores.float().masked_fill(~keep, -torch.inf)
    order = left.sort(dim=1, descending=True, stable=True).indices[:, :count]
    places = order.masked_fill(~keep.gather(1, order), -1)
    return torch.nn.functional.pad(places, (0, count - places.shape[1]), value=-1)
