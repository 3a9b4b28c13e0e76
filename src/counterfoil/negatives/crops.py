"""Finds pictures that show a part of another picture, whatever their sizes and encodings.

Candidates are cheap and many: pictures that look like a window of another one, and neighbours by
the embeddings of a model. Each is proved by its pixels: the window of the other picture is moved
until it looks like the candidate, and then their edges, not only their light and shade, must agree,
and no place may have another colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, grid_sample, normalize

from counterfoil.data.images import Array, Pictures, ResizeCrop, cached_pixels
from counterfoil.scoring.encode import cut_tiles

LEAST = 0.85  # correlation of the edges of a crop and of its window
MOST_BY_LOOKS = 20_000  # pictures that are compared with each other, window by window
NEIGHBOURS = 4  # candidates of each picture, by looks and by embeddings

_SIDE, _LOOK, _FINE = 48, 16, 24  # pixels of a side: kept, compared, and in the end
_SIDES = (1.0, 0.8, 0.6)  # of the windows, as shares of the picture's
_SHORTEST = 0.4  # side of a window that may be found
_COARSE = (0.08, 0.08, 0.04, 0.04)  # by how much an edge of the window is moved
_CLOSE = (0.04, 0.02, 0.02, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005)
_HOPELESS = 0.4  # correlation of edges after the coarse moves
_PLACES = 8  # of a side, whose colours are compared
_CHANGE = 14.0  # most by which one of them differs, of 255
_BLOCK, _PAIRS = 512, 1024
_FULL = torch.tensor([0.0, 0.0, 1.0, 1.0])


@final
@dataclass(frozen=True, slots=True, eq=False)
class Crops:
    """Pictures that are part of others.

    Attributes:
        crop: (n,) long, rows of the parts, in order.
        whole: (n,) long, rows of the pictures that they are parts of.
        score: (n,) float32 correlation of their edges, at least `LEAST`.
    """

    crop: Tensor
    whole: Tensor
    score: Tensor

    def __len__(self) -> int:
        return len(self.crop)


def find_crops(pictures: Pictures, vectors: Tensor | None = None) -> Crops:
    """Return the pictures that are crops of others, down to half of each side.

    Of N pictures all pairs are compared in blocks, with 48 windows each, and some ten pairs of each
    picture are proved, in some milliseconds a pair. Mirrored crops are not found.

    Args:
        pictures: of N images.
        vectors: (N, D) unit embeddings of the images, whose neighbours are candidates too; the only
            ones of more than `MOST_BY_LOOKS` pictures.
    """
    colours = cached_pixels(pictures, ResizeCrop(_SIDE))
    looks = torch.empty(len(pictures), _SIDE, _SIDE, dtype=torch.uint8)
    for start in range(0, len(looks), _BLOCK):
        block = torch.from_numpy(np.array(colours[start : start + _BLOCK]))
        looks[start : start + _BLOCK] = block.float().mean(1).round()
    pairs = [torch.zeros(0, 2, dtype=torch.long)]
    if len(looks) > 1 and vectors is not None:
        pairs.append(_neighbours(vectors))
    if 1 < len(looks) <= MOST_BY_LOOKS:
        pairs.append(_alike(looks))
    candidates = torch.cat(pairs).unique(dim=0)  # type: ignore[no-untyped-call]
    found = [(candidates[:0], torch.zeros(0))]
    found += [_prove(looks, colours, part) for part in cut_tiles(candidates, _PAIRS)]
    proved = torch.cat([part for part, _ in found])
    return Crops(proved[:, 0], proved[:, 1], torch.cat([score for _, score in found]))


def _neighbours(vectors: Tensor) -> Tensor:
    """(n, 2) pairs of each image and its nearest ones, either way round."""
    pairs = []
    for rows in cut_tiles(torch.arange(len(vectors)), _BLOCK):
        scores = vectors[rows] @ vectors.T
        scores[torch.arange(len(rows)), rows] = -torch.inf
        near = scores.topk(min(NEIGHBOURS, len(vectors) - 1), dim=1).indices.cpu()
        pairs.append(torch.stack([rows.repeat_interleave(near.shape[1]), near.flatten()], 1))
    near = torch.cat(pairs)
    return torch.cat([near, near.flip(1)])


def _alike(looks: Tensor) -> Tensor:
    """(n, 2) pairs of each picture and those of which a window looks most like it."""
    windows, whole = _windows(), _unit(_reduced(looks))
    count = len(looks)
    many = min(NEIGHBOURS, count - 1)
    best = torch.full((count, many), -torch.inf)
    others = torch.zeros(count, many, dtype=torch.long)
    for columns in cut_tiles(torch.arange(count), _BLOCK):
        shown = looks[columns].repeat_interleave(len(windows), 0)
        parts = _unit(_rendered(shown, windows.repeat(len(columns), 1), _LOOK))
        for rows in cut_tiles(torch.arange(count), _BLOCK):
            scores = (whole[rows] @ parts.T).view(len(rows), len(columns), -1).amax(2)
            scores[rows[:, None] == columns] = -torch.inf
            merged = torch.cat([best[rows], scores], 1)
            named = torch.cat([others[rows], columns.expand(len(rows), -1)], 1)
            best[rows], places = merged.topk(many, dim=1)
            others[rows] = named.gather(1, places)
    return torch.stack([torch.arange(count).repeat_interleave(many), others.flatten()], 1)


def _prove(looks: Tensor, colours: Array, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs that are a crop and its whole, with the correlation of their edges."""
    windows = _windows()
    crop, whole = (looks[rows].float() for rows in pairs.unbind(1))
    shown = _unit(_reduced(crop))
    starts = torch.stack(
        [
            (_unit(_rendered(whole, window.expand(len(pairs), -1), _LOOK)) * shown).sum(1)
            for window in windows
        ]
    )
    window = windows[starts.argmax(0)]
    window = _moved(whole, window, shown, _LOOK, _COARSE)
    kept = _edges_agree(crop, whole, window) >= _HOPELESS
    pairs, window, crop, whole = pairs[kept], window[kept], crop[kept], whole[kept]
    shown = _unit(_rendered(crop, _FULL.expand(len(pairs), -1), _FINE))
    window = _moved(whole, window, shown, _FINE, _CLOSE)
    score = _edges_agree(crop, whole, window)
    kept = score >= LEAST
    pairs, window, score = pairs[kept], window[kept], score[kept]
    kept = _greatest_change(colours, pairs, window) <= _CHANGE
    return pairs[kept], score[kept]


def _greatest_change(colours: Array, pairs: Tensor, window: Tensor) -> Tensor:
    """(n,) greatest difference of a colour in any place: a copy has no other object anywhere."""
    crop, whole = (torch.from_numpy(np.array(colours[rows.numpy()])) for rows in pairs.unbind(1))
    parts = []
    for colour in range(3):
        shown = _rendered(crop[:, colour], _FULL.expand(len(pairs), -1), _FINE)
        other = _rendered(whole[:, colour], window, _FINE)
        # a re-encoding may be lighter or darker as a whole
        change = (shown - shown.mean((1, 2), True)) - (other - other.mean((1, 2), True))
        parts.append(adaptive_avg_pool2d(change, _PLACES).abs().flatten(1))
    return torch.cat(parts, 1).amax(1)


def _windows() -> Tensor:
    """(W, 4) left, top, right and bottom edges of windows, as shares of the picture's sides."""
    spans = []
    for side in _SIDES:
        starts = (0.0,) if side == 1 else (0.0, (1 - side) / 2, 1 - side)
        spans += [(start, start + side) for start in starts]
    edges = [(x[0], y[0], x[1], y[1]) for x in spans for y in spans]
    return torch.tensor([each for each in edges if each != (0.0, 0.0, 1.0, 1.0)])


def _moved(
    looks: Tensor, window: Tensor, shown: Tensor, side: int, steps: tuple[float, ...]
) -> Tensor:
    """The windows after their edges were moved, by each step once, to where they look alike."""
    moves = torch.cat([torch.eye(4), -torch.eye(4)])
    best = (_unit(_rendered(looks, window, side)) * shown).sum(1)
    for step in steps:
        base = window
        for move in moves:
            moved = (base + step * move).clamp(0, 1)
            score = (_unit(_rendered(looks, moved, side)) * shown).sum(1)
            score[((moved[:, 2:] - moved[:, :2]) < _SHORTEST).any(1)] = -torch.inf
            window = torch.where((score > best)[:, None], moved, window)
            best = torch.maximum(best, score)
    return window


def _edges_agree(crop: Tensor, whole: Tensor, window: Tensor) -> Tensor:
    """(n,) correlation of the differences of neighbouring pixels."""
    first = _differences(_rendered(crop, _FULL.expand(len(crop), -1), _FINE))
    return (first * _differences(_rendered(whole, window, _FINE))).sum(1)


def _differences(looks: Tensor) -> Tensor:
    right, down = looks.diff(dim=2).flatten(1), looks.diff(dim=1).flatten(1)
    return normalize(torch.cat([right, down], 1), dim=1)


def _rendered(looks: Tensor, window: Tensor, side: int) -> Tensor:
    """(n, side, side) of the windows of (n, S, S) grey pictures."""
    centres = (torch.arange(side) + 0.5) / side
    low, high = window[:, :2, None], window[:, 2:, None]
    x, y = ((low + (high - low) * centres) * 2 - 1).unbind(1)
    grid = torch.stack([x[:, None].expand(-1, side, -1), y[:, :, None].expand(-1, -1, side)], 3)
    return grid_sample(looks[:, None].float(), grid, align_corners=False, padding_mode="border")[
        :, 0
    ]


def _reduced(looks: Tensor) -> Tensor:
    return adaptive_avg_pool2d(looks.float(), _LOOK)


def _unit(looks: Tensor) -> Tensor:
    """(n, D) unit vectors of pictures less their mean; of a picture of one grey the zero vector."""
    flat = looks.flatten(1)
    return normalize(flat - flat.mean(1, keepdim=True), dim=1)
