"""What a plan of negatives does at the starting point: from frozen vectors, without a step.

Scores are inner products x W y of frozen vectors, at W = 1. A loss is a pure function of scores, so
that its gradient in them, summed over every caption of the training split, gives that in W: the
direction in which a plan moves the model. Held-out pairs say what the best single step along it is
worth; that is what is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import INFERENCE, Pairs, Role, ScoreMatrix, Scores
from counterfoil.losses.base import Loss
from counterfoil.negatives.sampling import NegativeSampler
from counterfoil.training.checkpoint import derive_seed

ROWS = 512  # of a score matrix that several batches share, each a block of its own
RIDGE = 0.01  # of the mean variance
STEPS = (0.0, *(0.5 * 2 ** (n / 3) for n in range(24)))  # lengths of a step, in the norm of W

# of (A,) images, (A,) texts, (A, A) scores and (A, A) true pairs: (A, A) bool, what is left out
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True, eq=False)
class Frozen:
    """A split as a frozen model sees it.

    Attributes:
        images: (I, D) unit vectors.
        texts: (T, D) unit vectors.
        owner: (T,) the image of each text.
        true: (I, T) bool, pairs that are true, or are taken for true; own captions among them.
        same: (T,) the same number for equal captions.
    """

    images: Tensor
    texts: Tensor
    owner: Tensor
    true: Tensor
    same: Tensor

    @property
    def own(self) -> Tensor:
        """(I, T) bool, an image's own captions."""
        return torch.arange(len(self.images)).unsqueeze(1) == self.owner


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """One use of negatives.

    Attributes:
        loss: of scores.
        batch: captions that share a score matrix.
        draws: of pairs beside the batch.
        mask: which pairs of a batch are left out.
    """

    loss: Loss
    batch: int
    draws: NegativeSampler | None = None
    mask: Mask | None = None


@final
@dataclass(frozen=True, eq=False)
class Pull:
    """What a plan does at the starting point, over every caption once.

    A wrong pair is pushed by as much as the loss grows with its score.

    Attributes:
        direction: (D, D) the negative gradient in W.
        hardness: mean score of pushed pairs less that of their anchors, in standard deviations of
            wrong scores.
        false_share: percent of all pushes that pairs get which are true.
        effective: pairs that an anchor is pushed from, in both directions and drawn ones: the
            exponential of the entropy of the pushes, by its mean over anchors that are pushed.
    """

    direction: Tensor
    hardness: float
    false_share: float
    effective: float


def pull(data: Frozen, plan: Plan, *, seed: int = 0) -> Pull:
    """Measure a plan on every caption once; `seed` orders them and draws."""
    direction = torch.zeros(data.images.shape[1], data.texts.shape[1])
    pushed = harder = false = entropy = anchors = 0.0
    rng = torch.Generator().manual_seed(derive_seed(seed, "draw", 0))
    for rows in _stacks(len(data.texts), plan.batch, seed):
        shares = []
        for pairs, gradient in _gradients(data, plan, rows, rng):
            left, right = data.images[pairs.image], data.texts[pairs.text]
            if gradient.dim() == 2:  # the block: all images with all texts
                direction -= left.T @ gradient @ right
                scores, own = left @ right.T, (left * right).sum(1)
                push = gradient.clamp(min=0).fill_diagonal_(0)
                true = data.true[pairs.image.unsqueeze(1), pairs.text]
                shares += [push, push.T]
            else:
                direction -= (left * gradient.unsqueeze(1)).T @ right
                scores, push = (left * right).sum(1, keepdim=True), gradient.clamp(min=0)
                push, true = push.unsqueeze(1), data.true[pairs.image, pairs.text].unsqueeze(1)
                shares.append(push)
            pushed += float(push.sum())
            harder += float((push * (scores - own.unsqueeze(1))).sum())
            false += float(push[true].sum())
        share = torch.cat(shares, 1)
        share = share[share.sum(1) > 0]
        share = share / share.sum(1, keepdim=True)
        entropy -= float(torch.xlogy(share, share).sum())
        anchors += len(share)
    return Pull(
        direction,
        harder / pushed / spread(data),
        100 * false / pushed,
        math.exp(entropy / anchors),
    )


def spread(data: Frozen) -> float:
    """The standard deviation of scores of wrong pairs, of some hundred images."""
    some = torch.arange(len(data.images))[:: max(1, len(data.images) // 200)]
    scores = data.images[some] @ data.texts.T
    return float(scores[~data.own[some]].std())


def _stacks(texts: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Every caption once: as many whole batches as `ROWS` holds, one at least."""
    rng = torch.Generator().manual_seed(derive_seed(seed, "order", 0))
    order = torch.randperm(texts, generator=rng)
    yield from torch.split(order, batch * max(1, ROWS // batch))


def _gradients(
    data: Frozen, plan: Plan, rows: Tensor, rng: torch.Generator
) -> Iterator[tuple[Pairs, Tensor]]:
    """Gradients of the loss in the scores of a stack of A captions.

    First the anchors with the (A, A) gradient of their score matrix, then drawn pairs with (A,).
    """
    images, number = data.owner[rows], torch.arange(len(rows)) // plan.batch
    block = (data.images[images] @ data.texts[rows].T).requires_grad_()
    true = torch.eye(len(rows), dtype=torch.bool)
    wrong = (number.unsqueeze(1) == number) & (images.unsqueeze(1) != images)
    wrong &= data.same[rows].unsqueeze(1) != data.same[rows]
    if plan.mask is not None:
        wrong &= ~plan.mask(images, rows, block.detach(), true)
    drawn: dict[Role, Pairs] = {}
    if plan.draws is not None:
        for role, pairs in plan.draws.draw(rows, rng).items():
            if role in plan.loss.needs.roles:
                drawn[role] = Pairs(pairs.image[:, 0], pairs.text[:, 0])
    pools = {
        role: (data.images[pairs.image] * data.texts[pairs.text]).sum(1, keepdim=True)
        for role, pairs in drawn.items()
    }
    leaves = [block, *(pool.requires_grad_() for pool in pools.values())]
    seen = block.masked_fill(~(true | wrong), -torch.inf)
    loss = plan.loss(Scores({INFERENCE: ScoreMatrix(seen, true, block.diagonal())}, pools))
    # of a mean: the last stack counts by its captions
    first, *others = torch.autograd.grad(loss * len(rows), leaves)
    yield Pairs(images, rows), first
    for pairs, gradient in zip(drawn.values(), others, strict=True):
        yield pairs, gradient.squeeze(1)


def step_direction(data: Frozen, pull: Pull) -> Tensor:
    """(D, D), the direction of a plan with both of its sides half whitened.

    Plain gradients mostly stretch what already has much variance. With C the second moments of the
    images' vectors and of the texts', this is (C + r)^(-1/2) G (C + r)^(-1/2), where r is `RIDGE`
    of C's mean eigenvalue; it has length 1.
    """
    found = _inverse_root(data.images) @ pull.direction @ _inverse_root(data.texts)
    return found / found.norm()


def _inverse_root(vectors: Tensor) -> Tensor:
    moments = vectors.double().T @ vectors.double() / len(vectors)
    values, basis = torch.linalg.eigh(moments)
    return ((basis / (values + RIDGE * values.mean()).sqrt()) @ basis.T).float()


@final
@dataclass(frozen=True)
class Predicted:
    """What held-out pairs gain by one step.

    Attributes:
        rsum: after the best of `STEPS`, or after none: the sum of recalls at 1, 5 and 10 of both
            directions, own captions.
        precision: after the same step, the mean average precision at pairs that are true, or taken
            for true, beside own captions; which are left out of the ranking. Mean of both
            directions, percent.
        step: its length.
    """

    rsum: float
    precision: float
    step: float


def predict(train: Frozen, held_out: Frozen, pull: Pull) -> Predicted:
    """Take the best single step from frozen vectors along what a plan pulls to."""
    scores = held_out.images @ held_out.texts.T
    change = held_out.images @ step_direction(train, pull) @ held_out.texts.T
    own, every = held_out.own, torch.arange(len(held_out.texts))
    wrong = scores.masked_fill(own, -torch.inf)
    beside = scores[held_out.owner, every], change[held_out.owner, every]
    found = [
        _rsum(held_out, wrong.add(change, alpha=step), beside[0] + step * beside[1])
        for step in STEPS
    ]
    best = max(range(len(STEPS)), key=found.__getitem__)
    moved = scores + STEPS[best] * change
    return Predicted(found[best], _precision(moved, held_out.true, own), STEPS[best])


def _rsum(data: Frozen, wrong: Tensor, own: Tensor) -> float:
    """RSum of (I, T) scores of wrong pairs, -inf for own ones, and of (T,) own ones."""
    best = torch.full((len(data.images),), -torch.inf).scatter_reduce(0, data.owner, own, "amax")
    ranks = (wrong >= best.unsqueeze(1)).sum(1), (wrong >= own).sum(0)
    return sum(100 * float((rank < k).double().mean()) for rank in ranks for k in (1, 5, 10))


def _precision(scores: Tensor, true: Tensor, hidden: Tensor) -> float:
    """Mean average precision, of the queries that have a true item which is not hidden."""
    total = 0.0
    for block, right, out in ((scores, true, hidden), (scores.T, true.T, hidden.T)):
        asked = (right & ~out).any(1)
        order = block[asked].masked_fill(out[asked], -torch.inf).argsort(1, descending=True)
        hit = (right & ~out)[asked].gather(1, order)
        precision = hit.cumsum(1) / torch.arange(1, hit.shape[1] + 1)
        total += 50 * float(((precision * hit).sum(1) / hit.sum(1)).double().mean())
    return total
