"""Scores of pairs that are listed by their rows in two pools, a few at a time.

What is gathered for a few pairs stays in the cache; a copy of both sides of all pairs would cost
more than their scores. The same few are gathered and scored again for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterfoil.records import Encoded, Pairs

AT_ONCE = {"cpu": 16, "cuda": 4096}

Score = Callable[[Encoded, Encoded], Tensor]
Gradients = tuple[Tensor | None, ...]


def listed(score: Score, images: Encoded, texts: Encoded, pairs: Pairs) -> Tensor:
    """(P,) scores of pairs of rows of two pools.

    Args:
        score: of aligned pairs; depends on what it is given and on no parameter.
        images: pool of images.
        texts: pool of texts.
        pairs: (P,) rows of the pools.
    """
    plan = _plan(score, images, texts, pairs)
    scores: Tensor = _Listed.apply(  # type: ignore[no-untyped-call]
        plan, images.tokens, images.gram, texts.tokens
    )
    return scores[plan.order.argsort()]


@final
@dataclass(frozen=True, slots=True)
class _Plan:
    """Pairs by the length of their texts.

    Attributes:
        score: of aligned pairs.
        masks: of images and texts.
        pairs: rows of the pools, in this order.
        order: (P,) which of the pairs that were asked for stands where.
        lengths: room that each text needs.
        autocast: type of large products, None where they are not rounded.
    """

    score: Score
    masks: tuple[Tensor, Tensor]
    pairs: Pairs
    order: Tensor
    lengths: list[int]
    autocast: torch.dtype | None

    def parts(self) -> Iterator[slice]:
        """Which pairs go together; on the CPU their texts are equally long."""
        device, last = self.order.device.type, 0
        ends = [i for i in range(1, len(self.lengths)) if self.lengths[i - 1] != self.lengths[i]]
        for end in [*(ends if device == "cpu" else []), len(self.lengths)]:
            size = AT_ONCE.get(device, AT_ONCE["cuda"])
            yield from (slice(first, min(end, first + size)) for first in range(last, end, size))
            last = end

    def gathered(
        self, part: slice, images: Tensor, gram: Tensor | None, texts: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """What some pairs need of the pools."""
        image, text = self.pairs.image[part], self.pairs.text[part]
        return (
            images.index_select(0, image),
            None if gram is None else gram.index_select(0, image),
            texts[:, : max(self.lengths[part])].index_select(0, text),
        )

    def scored(self, part: slice, image: Tensor, gram: Tensor | None, text: Tensor) -> Tensor:
        """Scores of some pairs from what was gathered for them."""
        seen, read = self.masks[0][self.pairs.image[part]], self.masks[1][self.pairs.text[part]]
        with torch.autocast(image.device.type, self.autocast, enabled=self.autocast is not None):
            return self.score(Encoded(image, seen, gram), Encoded(text, read[:, : text.shape[1]]))

    def spread(self, part: slice, room: Gradients, found: Gradients) -> None:
        """Add what some pairs move to what all of them move."""
        image, text = self.pairs.image[part], self.pairs.text[part]
        for whole, piece, rows in zip(room, found, (image, image, text), strict=True):
            if whole is not None and piece is not None:
                _add(whole[:, : piece.shape[1]], rows, piece)


def _plan(score: Score, images: Encoded, texts: Encoded, pairs: Pairs) -> _Plan:
    device = images.tokens.device
    image, text = pairs.image.to(device), pairs.text.to(device)
    place = torch.arange(1, texts.mask.shape[1] + 1, device=device)
    length = (texts.mask * place).amax(1).clamp(min=1)[text]
    order = length.argsort(stable=True)
    rounded = torch.is_autocast_enabled(device.type)
    return _Plan(
        score,
        (images.mask, texts.mask),
        Pairs(image[order], text[order]),
        order,
        length[order].tolist(),
        torch.get_autocast_dtype(device.type) if rounded else None,
    )


def _add(whole: Tensor, rows: Tensor, piece: Tensor) -> None:
    """Add to these rows; one by one on the CPU, where `index_add_` of a slice is slow."""
    if whole.device.type != "cpu":
        whole.index_add_(0, rows, piece)
        return
    for row, values in zip(rows.tolist(), piece.unbind(), strict=True):
        whole[row].add_(values)


@final
class _Listed(torch.autograd.Function):
    """Scores in the order of the plan."""

    @staticmethod
    def forward(
        ctx: Any, plan: _Plan, images: Tensor, gram: Tensor | None, texts: Tensor
    ) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(images, gram, texts)
        pools = images, gram, texts
        found = [plan.scored(part, *plan.gathered(part, *pools)) for part in plan.parts()]
        return torch.cat(found) if found else images.new_zeros(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        plan, pools = ctx.plan, ctx.saved_tensors
        room = tuple(None if pool is None else torch.zeros_like(pool) for pool in pools)
        for part in plan.parts():
            gathered = plan.gathered(part, *pools)
            leaves = [leaf.requires_grad_() for leaf in gathered if leaf is not None]
            with torch.enable_grad():
                scores = plan.scored(part, *gathered)
            moved = iter(torch.autograd.grad(scores, leaves, grad[part], allow_unused=True))
            found = tuple(None if leaf is None else next(moved) for leaf in gathered)
            plan.spread(part, room, found)
        return None, *room
