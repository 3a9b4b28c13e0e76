"""Score blocks to judge, and the losses written as loops over ids."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from counterfoil.core.types import INFERENCE, Role, ScoreMatrix, Scores

ROLES = (Role.HARD_TEXT, Role.HARD_IMAGE, Role.CROSS, Role.COMPANION)


def judged(
    scores: Tensor,
    text_to_image: list[int],
    pairs: dict[Role, Tensor] | None = None,
    step: int = 0,
) -> Scores:
    """A block in which text t describes image `owner[t]`; anchor t is (owner[t], t)."""
    place = torch.tensor(text_to_image)
    positive = torch.arange(scores.shape[0]).unsqueeze(1) == place
    anchor = scores[place, torch.arange(len(text_to_image))]
    return Scores({INFERENCE: ScoreMatrix(scores, positive, anchor)}, pairs or {}, step=step)


def drawn(seed: int, text_to_image: list[int], images: int, count: int = 1) -> tuple[Tensor, ...]:
    """A float64 block and one float64 (B, count) tensor per mined role, leaves of a graph."""
    rng = torch.Generator().manual_seed(seed)
    shapes = [(images, len(text_to_image))] + [(len(text_to_image), count)] * len(ROLES)
    made = (torch.rand(s, generator=rng, dtype=torch.float64) for s in shapes)
    return tuple(tensor.requires_grad_() for tensor in made)


def with_roles(tensors: tuple[Tensor, ...], text_to_image: list[int]) -> Scores:
    """`drawn` tensors as scores."""
    return judged(tensors[0], text_to_image, dict(zip(ROLES, tensors[1:])))


def each_pair(
    scores: Tensor,
    text_to_image: list[int],
    cost: Callable[[float, list[float], list[float]], float],
) -> float:
    """Sum over anchors of what `cost` makes of a positive, its wrong texts and wrong images."""
    s, total = scores.tolist(), 0.0
    for text, image in enumerate(text_to_image):
        texts = [
            s[image][other] for other in range(len(text_to_image)) if text_to_image[other] != image
        ]
        images = [s[other][text] for other in range(len(s)) if other != image]
        total += cost(s[image][text], texts, images)
    return total


def loop_sum(margin: float) -> Callable[[float, list[float], list[float]], float]:
    return lambda p, texts, images: sum(max(0.0, margin + n - p) for n in texts + images)


def loop_hardest(margin: float) -> Callable[[float, list[float], list[float]], float]:
    def cost(p: float, texts: list[float], images: list[float]) -> float:
        return sum(max(0.0, margin + max(side) - p) for side in (texts, images) if side)

    return cost


def loop_semi_hard(margin: float) -> Callable[[float, list[float], list[float]], float]:
    def one(p: float, side: list[float]) -> float:
        if not side:
            return 0.0
        below = [n for n in side if n < p]
        return max(0.0, margin + (max(below) if below else min(side)) - p)

    return lambda p, texts, images: one(p, texts) + one(p, images)


def loop_infonce(temperature: float) -> Callable[[float, list[float], list[float]], float]:
    def one(p: float, side: list[float]) -> float:
        share = math.exp(p / temperature)
        return -math.log(share / (share + sum(math.exp(n / temperature) for n in side)))

    return lambda p, texts, images: (one(p, texts) + one(p, images)) / 2


def loop_quintuplet(
    tensors: tuple[Tensor, ...],
    text_to_image: list[int],
    *,
    derived: bool,
    adaptive: bool,
    online: float | None = 0.2,
    offline: float = 0.0,
    alpha: float = 0.3,
    beta: float = 1.5,
    clamp: bool = False,
    power: int = 1,
    reference: str = "offline",
) -> float:
    """AOQ, Eq. 3 to 5, one mined negative after the other."""
    s, total = tensors[0].tolist(), 0.0
    mined = [tensor.tolist() for tensor in tensors[1:]]
    count = len(mined[0][0])
    for b, image in enumerate(text_to_image):
        p = s[image][b]
        wrong_texts = [s[image][t] for t in range(len(text_to_image)) if text_to_image[t] != image]
        wrong_images = [s[i][b] for i in range(len(s)) if i != image]
        for n in range(count):
            for side, off in ((wrong_texts, mined[0][b][n]), (wrong_images, mined[1][b][n])):
                if not side or online is None:
                    continue
                harder = off if reference == "offline" else p
                weight = beta - (harder - max(side)) / alpha if adaptive else 1.0
                weight = max(weight, 0.0) if clamp else weight
                total += weight * max(0.0, online + max(side) - p) ** power / count
            for role in mined if derived else mined[:2]:
                total += max(0.0, offline + role[b][n] - p) ** power / count
    return total


def loop_online_quintuplet(
    tensors: tuple[Tensor, ...],
    text_to_image: list[int],
    *,
    online: float = 0.2,
    offline: float = 0.0,
) -> float:
    """OnlineQuin of AOQ's Table 3, one anchor after the other."""
    total = loop_quintuplet(
        tensors, text_to_image, derived=False, adaptive=False, online=online, offline=offline
    )
    s = tensors[0].tolist()
    for b, image in enumerate(text_to_image):
        wrong_texts = [t for t in range(len(text_to_image)) if text_to_image[t] != image]
        wrong_images = [i for i in range(len(s)) if i != image]
        if not wrong_texts or not wrong_images:
            continue
        text = max(wrong_texts, key=lambda t: s[image][t])
        other = max(wrong_images, key=lambda i: s[i][b])
        if text_to_image[text] == other:
            continue
        pairs = [s[other][text]]
        described = [
            s[text_to_image[text]][t]
            for t in range(len(text_to_image))
            if text_to_image[t] == other
        ]
        pairs += [max(described)] if described else []
        total += sum(max(0.0, offline + pair - s[image][b]) for pair in pairs)
    return total
