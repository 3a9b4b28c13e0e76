"""Gradients of a large contrastive batch in the memory of a small one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from counterfoil.records import Batch, Encoded, View, Views
from counterfoil.train.step import Step


@final
@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a batch, the random state it was encoded in, and what came of it, as leaves."""

    batch: Batch
    cpu: Tensor
    cuda: Tensor | None
    views: Views


def cached_backward(
    step: Step, batch: Batch, chunk: int, *, share: float = 1.0
) -> dict[str, Tensor]:
    """Losses by name, whose gradients are added to the parameters.

    The batch is encoded in pieces without a graph, all scores are judged on what came out, and
    each piece is encoded once more, with the same dropout, to carry its gradient on: memory for
    encoding grows with the piece, not with the batch. Equal to the plain gradient; the model's own
    losses are added up over the pieces, and running statistics of normalisation move twice.

    Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"
    (https://arxiv.org/abs/2101.06983).

    Args:
        step: the step; not wrapped, so that gradients of several processes are still to be
            averaged, see `counterfoil.world.mean_gradients`.
        batch: the batch.
        chunk: images and texts encoded at a time.
        share: multiplier of the gradient.
    """
    pieces = [_encoded(step, part) for part in _parts(batch, chunk)]
    losses = step.judge(batch, _joined([piece.views for piece in pieces]))
    torch.autograd.backward(torch.stack(list(losses.values())).sum() * share)
    for piece in pieces:
        with _as_before(piece):
            again = step.encode(piece.batch)
        carried = [
            (output, leaf.grad)
            for output, leaf in zip(_flat(again), _flat(piece.views), strict=True)
            if output.requires_grad and leaf.grad is not None
        ]
        torch.autograd.backward([o for o, _ in carried], [g for _, g in carried])
    return {name: loss.detach() for name, loss in losses.items()}


def _parts(batch: Batch, chunk: int) -> Iterator[Batch]:
    """The batch in pieces of about `chunk` images and texts, none of them empty."""
    fewest, most = sorted((len(batch.images), len(batch.texts)))
    count = min(fewest, -(-most // chunk))
    images = torch.arange(len(batch.images)).tensor_split(count)
    texts = torch.arange(len(batch.texts)).tensor_split(count)
    for some, others in zip(images, texts, strict=True):
        yield replace(
            batch,
            images=batch.images.rows(slice(int(some[0]), int(some[-1]) + 1)),
            texts=batch.texts.rows(slice(int(others[0]), int(others[-1]) + 1)),
        )


@torch.no_grad()
def _encoded(step: Step, part: Batch) -> _Piece:
    device = part.images.values.device
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return _Piece(part, cpu, cuda, _mapped(step.encode(part), _leaf))


@contextmanager
def _as_before(piece: _Piece) -> Iterator[None]:
    """The random state that the piece was first encoded in; afterwards that of now."""
    device = piece.batch.images.values.device
    with torch.random.fork_rng([device] if piece.cuda is not None else []):
        torch.set_rng_state(piece.cpu)
        if piece.cuda is not None:
            torch.cuda.set_rng_state(piece.cuda, device)
        yield


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _mapped(views: Views, change: Callable[[Tensor], Tensor]) -> Views:
    def encoded(e: Encoded) -> Encoded:
        return Encoded(change(e.tokens), e.mask, None if e.gram is None else change(e.gram))

    return Views(
        {n: View(encoded(v.images), encoded(v.texts), v.copies) for n, v in views.views.items()},
        {name: change(loss) for name, loss in views.auxiliary.items()},
    )


def _flat(views: Views) -> list[Tensor]:
    """Everything in the views that carries a gradient, in a fixed order."""
    found: list[Tensor] = []

    def kept(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _mapped(views, kept)
    return found


def _joined(parts: Sequence[Views]) -> Views:
    """The views of the whole share."""
    views = {
        name: View(
            Encoded.cat([part.views[name].images for part in parts]),
            Encoded.cat([part.views[name].texts for part in parts]),
            view.copies,
        )
        for name, view in parts[0].views.items()
    }
    auxiliary = {
        name: torch.stack([part.auxiliary[name] for part in parts]).sum()
        for name in parts[0].auxiliary
    }
    return Views(views, auxiliary)
