"""Adapters of several seeds and settings trained at once, as `Trainer` trains each of them.

At batch 8 a step of one small model is mostly the cost of calling it. Here the weights of S models
stand in one tensor, and the score matrices of as many as fit into one of 512 rows are its diagonal
blocks: pairs of two models are no negatives, so that a loss of the library gives each its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import dropout, normalize

from benchmarks.truths.bed import Bed
from counterfoil.core.types import INFERENCE, Pairs, Role, ScoreMatrix, Scores
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.model import Model
from counterfoil.models.frozen import FrozenAdapters
from counterfoil.negatives.sampling import OfflineNegativeSampler
from counterfoil.training.checkpoint import derive_seed
from counterfoil.training.config import CosineLR

ROWS = 512  # of a score matrix that several models share
DROPOUT, CLIP, WARM_UP = 0.3, 2.0, 0.1
# (S, ...) by name, as in `FrozenAdapters`, but matrices stand from input to output
Weights = Mapping[str, Tensor]


@final
@dataclass(frozen=True)
class Teaching:
    """Vectors of each student's teachers; the mean of their cosines is the guide.

    Attributes:
        images: (S, I, K·D), of K teachers, in half precision.
        texts: (S, T, K·D).
        count: K.
    """

    images: Tensor
    texts: Tensor
    count: int


def fresh(seeds: Sequence[int]) -> Weights:
    """Weights to start from, one for each seed."""
    states = []
    for seed in seeds:
        torch.manual_seed(seed)
        states.append(FrozenAdapters(width=256, hidden=256, dropout=DROPOUT).state_dict())
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    return {name: _turned(value) for name, value in stacked.items()}


def _turned(value: Tensor) -> Tensor:
    """Vectors as they are, matrices with their sides exchanged."""
    return value.mT.contiguous() if value.dim() > 2 else value


def models(bed: Bed, weights: Weights) -> list[Model]:
    """The models of a stack, one by one."""
    found = []
    for number in range(len(next(iter(weights.values())))):
        model = bed.untrained()
        state = {name: _turned(value)[number] for name, value in weights.items()}
        model.model.load_state_dict(state)
        model.model.eval()
        found.append(model)
    return found


def average(weights: Sequence[Weights]) -> Weights:
    """The mean of the weights of several stacks, model by model."""
    return {name: torch.stack([one[name] for one in weights]).mean(0) for name in weights[0]}


def vectors(weights: Weights, side: str, inputs: Tensor, *, drop: float = 0.0) -> Tensor:
    """(S, N, D) unit vectors of (S, N, D) inputs of a side, "image" or "text"."""
    first, bias, last, shift = (
        weights[f"{side}.{layer}.{part}"] for layer in (1, 3) for part in ("weight", "bias")
    )
    hidden = torch.baddbmm(bias.unsqueeze(1), dropout(inputs, drop, drop > 0), first).relu()
    return normalize(inputs + torch.baddbmm(shift.unsqueeze(1), hidden, last), dim=-1)


@torch.no_grad()
def taught_by(bed: Bed, teachers: Sequence[Weights]) -> Teaching:
    """What students learn from: of each the teachers at its place in the stacks."""
    sides = []
    for side, rows in zip(("image", "text"), _inputs(bed), strict=True):
        count = len(teachers[0]["image.1.weight"])
        made = torch.empty(count, len(rows), len(teachers) * rows.shape[1], dtype=torch.half)
        for place, stack in enumerate(teachers):
            columns = slice(place * rows.shape[1], (place + 1) * rows.shape[1])
            for number in range(count):
                one = {name: value[number : number + 1] for name, value in stack.items()}
                made[number, :, columns] = vectors(one, side, rows.unsqueeze(0))[0].half()
        sides.append(made)
    return Teaching(sides[0], sides[1], len(teachers))


def train(
    bed: Bed,
    start: Weights,
    losses: Sequence[Loss | WeightedSum],
    orders: Sequence[int],
    *,
    batch: int,
    anchors: int,
    rate: float,
    lists: OfflineNegativeSampler | None = None,
    teaching: Teaching | None = None,
    taught: Sequence[int] = (),
) -> Weights:
    """Train all models of a stack.

    Args:
        bed: the data.
        start: weights to begin with; they are left as they are.
        losses: of each model; those of neighbours that share one are computed together.
        orders: seed of each model's order of captions and of what it draws.
        batch: captions of a batch.
        anchors: captions that each model sees.
        rate: of learning, at its height.
        lists: mined lists to draw one negative of every anchor from, where the loss reads it.
        teaching: the guide, where the loss reads one.
        taught: the place in it of each model.
    """
    images, texts = _inputs(bed)
    owner, same = bed.train.text_to_image, _numbers(bed.train.texts)
    seen = torch.stack([_order(len(texts), seed, anchors) for seed in orders])
    drawn = _draws(lists, seen, orders) if lists else {}
    drawn = {role: pairs for role, pairs in drawn.items() if role in losses[0].needs.roles}
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimiser = torch.optim.Adam([*weights.values()], lr=rate, fused=True)
    schedule, total = CosineLR(warmup=WARM_UP), -(-anchors // batch)
    place = torch.tensor(taught).unsqueeze(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(orders[0], "dropout", batch))
        for step in range(total):
            now = slice(step * batch, (step + 1) * batch)
            rows = seen[:, now]
            pairs = {role: Pairs(p.image[:, now], p.text[:, now]) for role, p in drawn.items()}
            sides = _sides(pairs, owner[rows], rows)
            encoded = [
                vectors(weights, side, table[needed], drop=DROPOUT)
                for side, table, needed in zip(
                    ("image", "text"), (images, texts), sides.needed, strict=True
                )
            ]
            guide = None
            if teaching is not None:
                guide = teaching.images[place, owner[rows]], teaching.texts[place, rows]
            cost = torch.zeros(())
            for group in _groups(losses, rows.shape[1]):
                scores = _scores(encoded, sides, group, owner[rows], same[rows], guide, teaching)
                cost = cost + _cost(losses[group.start], scores) * (group.stop - group.start)
            optimiser.zero_grad()
            torch.autograd.backward(cost)
            _clip([value.grad for value in weights.values() if value.grad is not None])
            optimiser.param_groups[0]["lr"] = rate * schedule.factor(
                step, per_epoch=total, total=total
            )
            optimiser.step()
    return {name: value.detach() for name, value in weights.items()}


@final
@dataclass(frozen=True)
class _Sides:
    """Rows to encode, the anchors' own first, and where the drawn pairs stand among them."""

    needed: tuple[Tensor, Tensor]  # (S, N) rows of images and of texts
    places: Mapping[Role, tuple[int, int]]  # blocks of B among them


def _sides(pairs: Mapping[Role, Pairs], images: Tensor, texts: Tensor) -> _Sides:
    if not pairs:
        return _Sides((images, texts), {})
    by_image, by_text = [images, pairs[Role.HARD_IMAGE].image], [texts, pairs[Role.HARD_TEXT].text]
    places = {Role.HARD_TEXT: (0, 1), Role.HARD_IMAGE: (1, 0)}
    if Role.COMPANION in pairs:
        by_image.append(pairs[Role.COMPANION].image)
        by_text.append(pairs[Role.COMPANION].text)
        places |= {Role.CROSS: (1, 1), Role.COMPANION: (2, 2)}
    return _Sides((torch.cat(by_image, 1), torch.cat(by_text, 1)), places)


def _scores(
    encoded: Sequence[Tensor],
    sides: _Sides,
    group: slice,
    owner: Tensor,
    same: Tensor,
    guide: tuple[Tensor, Tensor] | None,
    teaching: Teaching | None,
) -> Scores:
    """The scores of a group of models, as one block: those of two models are no negatives."""
    size = owner.shape[1]
    images, texts = (side[group] for side in encoded)
    anchors = [side[:, :size].flatten(0, 1) for side in (images, texts)]
    scores = anchors[0] @ anchors[1].T
    true = torch.eye(len(scores), dtype=torch.bool)
    wrong = torch.zeros_like(true)
    for number, (image, text) in enumerate(zip(owner[group], same[group], strict=True)):
        block = slice(number * size, (number + 1) * size)
        wrong[block, block] = (image[:, None] != image) & (text[:, None] != text)
    out = ~(true | wrong)
    target = None
    if guide is not None and teaching is not None:
        by_image, by_text = (side[group].flatten(0, 1).float() for side in guide)
        target = (by_image @ by_text.T / teaching.count).masked_fill(out, -torch.inf)
    own = scores.diagonal()
    matrix = ScoreMatrix(scores.masked_fill(out, -torch.inf), true, own, target)
    pairs = {}
    for role, (image, text) in sides.places.items():
        blocks = (
            side[:, k * size : (k + 1) * size] for side, k in ((images, image), (texts, text))
        )
        left, right = blocks
        pairs[role] = (left * right).sum(-1).flatten().unsqueeze(1)
    return Scores({INFERENCE: matrix}, pairs)


def _cost(loss: Loss | WeightedSum, scores: Scores) -> Tensor:
    found = loss(scores)
    return torch.stack([*found.values()]).sum() if isinstance(found, dict) else found


def _groups(losses: Sequence[Loss | WeightedSum], batch: int) -> Iterator[slice]:
    """Neighbours of one loss, as many as a matrix of `ROWS` rows holds."""
    start, most = 0, max(1, ROWS // batch)
    for stop in range(1, len(losses) + 1):
        full = stop - start == most
        if full or stop == len(losses) or losses[stop] is not losses[start]:
            yield slice(start, stop)
            start = stop


def _clip(gradients: Sequence[Tensor]) -> None:
    """Scale each model's gradients down to a norm of `CLIP`."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    if bool((norms > CLIP).any()):
        factor = (CLIP / norms).clamp(max=1)
        for gradient in gradients:
            gradient.mul_(factor.view(-1, *[1] * (gradient.dim() - 1)))


def _inputs(bed: Bed) -> tuple[Tensor, Tensor]:
    """(I, D) and (T, D) vectors of the training split."""
    data = bed.untrained().process(bed.train)
    images = data.images(torch.arange(len(bed.train))).values[:, 0].float()
    return images, data.texts(torch.arange(len(bed.train.texts))).values[:, 0].float()


def _numbers(texts: Sequence[str]) -> Tensor:
    """The same number for equal captions."""
    known: dict[str, int] = {}
    return torch.tensor([known.setdefault(text, len(known)) for text in texts])


def _order(texts: int, seed: int, anchors: int) -> Tensor:
    """(anchors,) captions, each once before any comes twice."""
    rng = torch.Generator().manual_seed(derive_seed(seed, "order", 0))
    rounds = [torch.randperm(texts, generator=rng) for _ in range(-(-anchors // texts))]
    return torch.cat(rounds)[:anchors]


def _draws(lists: OfflineNegativeSampler, seen: Tensor, orders: Sequence[int]) -> dict[Role, Pairs]:
    """(S, anchors) pairs by role, one of each anchor."""
    found: dict[Role, list[Pairs]] = {}
    for rows, seed in zip(seen, orders, strict=True):
        rng = torch.Generator().manual_seed(derive_seed(seed, "draw", 0))
        for role, pairs in lists.draw(rows, rng).items():
            found.setdefault(role, []).append(pairs)
    return {
        role: Pairs(
            torch.stack([one.image[:, 0] for one in each]),
            torch.stack([one.text[:, 0] for one in each]),
        )
        for role, each in found.items()
    }
