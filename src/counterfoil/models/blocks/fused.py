"""All images with all captions through one matrix product, with exact gradients.

Captions come packed, so the product holds real words only, and captions of one length form dense
blocks (n, L, I, R) small enough for the cache. The gradient is in closed form; a loss that looks
at few pairs (the hardest negatives) pays for those pairs only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterfoil.models.blocks.head import Block, Head
from counterfoil.models.blocks.inner import full
from counterfoil.models.blocks.packing import Run

CELLS_IN_CACHE = 1 << 20  # affinities of one block
PAIRS_AT_ONCE = 512
SPARSE = 0.15  # where fewer pairs than this share have a gradient, only they are visited


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What one fused call computes.

    Attributes:
        heads: what is asked of the affinities.
        runs: captions by length.
        mask: (I, R) bool, or None when all regions are real.
        dtype: of the large products; all else has at least single precision.
    """

    heads: tuple[Head, ...]
    runs: tuple[Run, ...]
    mask: Tensor | None
    dtype: torch.dtype

    def split(self, flat: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """What belongs to each head, of all their results in a row."""
        ends = list(accumulate((head.results for head in self.heads), initial=0))
        return [flat[a:b] for a, b in pairwise(ends)]

    def blocks(self, affinity: Tensor, regions: int) -> Iterator[tuple[Run, Tensor]]:
        """Views (n, L, I, R) of (W, I * R), small enough for the cache."""
        for run in self.runs:
            for cut in run.cut(CELLS_IN_CACHE // max(1, affinity.shape[1])):
                block = affinity[cut.words].view(cut.n, cut.length, -1, regions)
                yield cut, block

    def block(self, head: Head, run: Run, affinity: Tensor, grams: Grams) -> Block:
        """One view with what the head needs beside it."""
        mask = None if self.mask is None else self.mask[None, None]
        return Block(affinity, grams.of(head, run), None, mask)


@final
@dataclass(frozen=True, slots=True)
class Grams:
    """(I, R, R) of the regions and (T, L, L) of the words, or gradients of these."""

    regions: Tensor | None
    words: Tensor | None

    def of(self, head: Head, run: Run) -> Tensor | None:
        """Those of the head's context in a run, as a view, if it reads them."""
        if not head.grams:
            return None
        if head.direction == "t2i":
            return self.regions
        assert self.words is not None
        return self.words[run.captions, : run.length, : run.length]

    def zeros(self) -> Grams:
        """Room for gradients."""
        both = (None if g is None else torch.zeros_like(g) for g in (self.regions, self.words))
        return Grams(*both)


def _method(head: Head, name: str) -> Callable[..., Any]:
    """A method of the head's class, compiled where the head says so."""
    plain: Callable[..., Any] = getattr(type(head), name)
    return _compiled(plain) if head.compiled else plain


@cache
def _compiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(plain, dynamic=True)


def _place(head: Head, run: Run) -> slice:
    """Rows of a head's results that belong to a run."""
    return run.words if head.direction == "t2i" else run.captions


def _queries(head: Head, view: Tensor, rows: Tensor) -> Tensor:
    """Rows of a head's results in the shape of a block without its context axis."""
    n, words, images, regions = view.shape
    return rows.view(n, words, images) if head.direction == "t2i" else rows.view(n, images, regions)


@final
class Fused(torch.autograd.Function):
    """Words (W, D), regions (I, R, D) and Gram matrices to what the queries attend to."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        words: Tensor,
        regions: Tensor,
        region_gram: Tensor | None,
        word_gram: Tensor | None,
    ) -> tuple[Tensor, ...]:
        images, per_image, _ = regions.shape
        grams = Grams(region_gram, word_gram)
        with torch.autocast(words.device.type, enabled=False):
            flat = regions.flatten(0, 1).to(plan.dtype)
            affinity = full(words.to(plan.dtype) @ flat.T)
            out = [_room(plan, head, affinity, (images, per_image)) for head in plan.heads]
            for run, view in plan.blocks(affinity, per_image):
                for head, room in zip(plan.heads, out, strict=True):
                    found = _method(head, "attend")(head, plan.block(head, run, view, grams))
                    for tensor, part in zip(room, found, strict=True):
                        tensor[_place(head, run)] = part.view(-1, *tensor.shape[1:])
        ctx.plan = plan
        ctx.save_for_backward(words, regions, region_gram, word_gram, affinity)
        fixed = (room[head.learnt :] for head, room in zip(plan.heads, out, strict=True))
        ctx.mark_non_differentiable(*(tensor for tensors in fixed for tensor in tensors))
        return tuple(tensor for room in out for tensor in room)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        words, regions, region_gram, word_gram, affinity = ctx.saved_tensors
        parts = ctx.plan.split(grads)
        pulls = [part[: head.learnt] for head, part in zip(ctx.plan.heads, parts, strict=True)]
        job = _Backward(ctx.plan, words, regions, affinity, Grams(region_gram, word_gram), pulls)
        with torch.autocast(words.device.type, enabled=False):
            touched = job.touched()
            sparse = int(touched.sum()) < SPARSE * touched.numel()
            d_words, d_regions, grams = job.sparse(touched) if sparse else job.dense()
        return None, d_words, d_regions, grams.regions, grams.words


def _room(plan: Plan, head: Head, affinity: Tensor, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    captions = sum(run.n for run in plan.runs)
    size = (len(affinity), shape[0]) if head.direction == "t2i" else (captions, *shape)
    return tuple(affinity.new_empty(size) for _ in range(head.results))


@final
@dataclass(frozen=True, slots=True)
class _Backward:
    """The gradient of `Fused`.

    Attributes:
        pulls: gradients of what each head learns from.
    """

    plan: Plan
    words: Tensor
    regions: Tensor
    affinity: Tensor
    grams: Grams
    pulls: list[tuple[Tensor, ...]]

    def touched(self) -> Tensor:
        """(T, I) pairs with a gradient."""
        rows = []
        for run in self.plan.runs:
            any_head = torch.zeros(1, dtype=torch.bool, device=self.words.device)
            for head, pulls in zip(self.plan.heads, self.pulls, strict=True):
                for moved in (pull[_place(head, run)] != 0 for pull in pulls):
                    by_words = head.direction == "t2i"
                    pairs = moved.view(run.n, run.length, -1).any(1) if by_words else moved.any(2)
                    any_head = any_head | pairs
            rows.append(any_head)
        return torch.cat(rows)

    def dense(self) -> tuple[Tensor, Tensor, Grams]:
        """Visit every block."""
        plan, grams = self.plan, self.grams.zeros()
        d_affinity = torch.empty_like(self.affinity)
        for run, view in plan.blocks(self.affinity, self.regions.shape[1]):
            total: Tensor | None = None
            for head, pulls in zip(plan.heads, self.pulls, strict=True):
                rows = (_queries(head, view, g[_place(head, run)]) for g in pulls)
                block = plan.block(head, run, view, self.grams)
                moved, gram = _method(head, "derivative")(head, block, *rows)
                if (room := grams.of(head, run)) is not None:
                    room.add_(gram)
                total = moved if total is None else total.add_(moved)
            assert total is not None
            d_affinity[run.words] = total.flatten(0, 1).flatten(1)
        narrow = d_affinity.to(plan.dtype)
        flat = self.regions.flatten(0, 1).to(plan.dtype)
        d_words = (narrow @ flat).to(self.words.dtype)
        d_regions = (narrow.T @ self.words.to(plan.dtype)).view_as(self.regions)
        return d_words, d_regions.to(self.regions.dtype), grams

    def sparse(self, touched: Tensor) -> tuple[Tensor, Tensor, Grams]:
        """Visit only the touched pairs."""
        d_words, d_regions = torch.zeros_like(self.words), torch.zeros_like(self.regions)
        grams = self.grams.zeros()
        for run in self.plan.runs:
            found = touched[run.captions].nonzero()
            if not len(found):
                continue
            words = self.words[run.words].view(run.n, run.length, -1)
            d_run = d_words[run.words].view_as(words)
            for caption, image in (part.unbind(1) for part in torch.split(found, PAIRS_AT_ONCE)):
                moved = self._moved(run, caption, image, grams).to(self.plan.dtype)
                regions = self.regions[image].to(self.plan.dtype)
                d_run.index_add_(0, caption, torch.bmm(moved, regions).to(d_run.dtype))
                back = torch.bmm(moved.transpose(1, 2), words[caption].to(self.plan.dtype))
                d_regions.index_add_(0, image, back.to(d_regions.dtype))
        return d_words, d_regions, grams

    def _moved(self, run: Run, caption: Tensor, image: Tensor, grams: Grams) -> Tensor:
        """(P, L, R) gradient of the affinities of P pairs; adds that of the Gram matrices."""
        images, regions = self.regions.shape[:2]
        view = self.affinity[run.words].view(run.n, run.length, images, regions)
        pairs = view[caption, :, image]
        mask = None if self.plan.mask is None else self.plan.mask[image]
        total = torch.zeros_like(pairs)
        for head, pulls in zip(self.plan.heads, self.pulls, strict=True):
            gram, d_gram = self.grams.of(head, run), grams.of(head, run)
            by_words = head.direction == "t2i"
            own = image if by_words else caption
            near = None if gram is None else gram[own]
            if by_words:  # the pairs take the images' place: (1, L, P, R)
                seen = None if mask is None else mask[None, None]
                block = Block(pairs.transpose(0, 1)[None], near, None, seen)
                rows = (g[run.words].view(run.n, run.length, -1)[caption, :, image] for g in pulls)
                moved, part = head.derivative(block, *(g.T[None] for g in rows))
                total += moved[0].transpose(0, 1)
            else:  # the captions' place: (P, L, 1, R)
                seen = None if mask is None else mask[:, None, None]
                block = Block(pairs[:, :, None], near, None, seen)
                rows = (g[run.captions][caption, image][:, None] for g in pulls)
                moved, part = head.derivative(block, *rows)
                total += moved[:, :, 0]
            if d_gram is not None and part is not None:
                d_gram.index_add_(0, own, part)
        return total
