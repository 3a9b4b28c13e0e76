"""Small corpora, filters of every kind, and what they leave by looking at every pair."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

import torch
from torch import Tensor

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.negatives.filters import FilterConfig, plain_words

WORDS = ("a", "dog", "cat", "runs", "sleeps", "red", "ball", "house")
ONE = (
    FilterConfig(),
    FilterConfig(captions=0.7),
    FilterConfig(captions=1.0),
    FilterConfig(pictures=0.6),
    FilterConfig(lowest=-0.5),
    FilterConfig(highest=0.75),
    FilterConfig(below_positive=0.25),
    FilterConfig(below_positive=-0.5),
    FilterConfig(below_positive=0.25, positive="highest"),
    FilterConfig(below_share=0.5),
    FilterConfig(below_share=0.5, positive="highest"),
    FilterConfig(below_share=0.5, positive="mean"),
    FilterConfig(below_positive=0.25, positive="mean"),
    FilterConfig(guided=0.25, positive="mean"),
    FilterConfig(guided=0.0),
    FilterConfig(guided=0.25, positive="highest"),
    FilterConfig(skip=3),
)
ALL = FilterConfig(
    captions=0.8,
    pictures=0.8,
    lowest=-1.0,
    highest=1.5,
    below_positive=-0.75,
    below_share=1.5,
    guided=-0.75,
    skip=2,
)
PLANS = (*ONE, ALL, replace(ALL, positive="highest", skip=0), replace(ALL, positive="mean"))


def toy(images: int, texts: int, seed: int) -> ImageTextDataset:
    """Captions of few words, so that many are alike; some images have none, some texts no image."""
    rng = torch.Generator().manual_seed(seed)
    length = torch.randint(1, 6, (texts,), generator=rng).tolist()
    drawn = [torch.randint(len(WORDS), (n,), generator=rng).tolist() for n in length]
    looks = torch.randint(-1, 2, (images, 2, 3), generator=rng).float()
    return ImageTextDataset(
        name="toy",
        image_ids=[f"i{row}" for row in range(images)],
        text_ids=[f"t{row}" for row in range(texts)],
        texts=[" ".join(WORDS[word] for word in words) + "." for words in drawn],
        text_to_image=torch.randint(-1, images, (texts,), generator=rng),
        splits=["train"] * images,
        features=FeatureArray.of(looks.numpy()),
    )


def eighths(images: int, texts: int, seed: int) -> Tensor:
    """Scores that every machine adds and compares exactly, full of ties."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(-16, 17, (images, texts), generator=rng).float() / 8


def tfidf(texts: list[str]) -> list[list[float]]:
    """Cosines of captions, one pair and one word at a time."""
    bags = [plain_words(text) for text in texts]
    idf = {
        word: 1 + math.log((1 + len(texts)) / (1 + sum(word in bag for bag in bags)))
        for word in set().union(*bags)
    }

    def dot(one: set[str], other: set[str]) -> float:
        return sum(idf[word] ** 2 for word in one & other)

    return [[dot(a, b) / math.sqrt(dot(a, a) * dot(b, b)) for b in bags] for a in bags]


def alike(dataset: ImageTextDataset) -> Tensor:
    assert dataset.features is not None
    pooled = dataset.features.take(torch.arange(len(dataset))).values.mean(1).double()
    pooled = pooled - pooled.mean(0)
    lengths = pooled.norm(dim=1).clamp(min=1e-9)
    return (pooled @ pooled.T) / lengths / lengths.unsqueeze(1)


def allowed(
    plan: FilterConfig, dataset: ImageTextDataset, scores: Tensor, guide: Tensor, side: str
) -> Tensor:
    """(I, T) bool by looking at every pair."""
    text_to_image = dataset.text_to_image.tolist()
    said, shown = tfidf(list(dataset.texts)), alike(dataset)
    out = torch.zeros(scores.shape, dtype=torch.bool)

    def best(values: Iterator[float], default: None) -> float | None:
        known = [*values]
        kinds = {"lowest": min, "highest": max, "mean": mean}
        return float(kinds[plan.positive](known)) if known else default

    for i in range(len(dataset)):
        own = [t for t, o in enumerate(text_to_image) if o == i]
        for t, o in enumerate(text_to_image):
            true = [(i, c) for c in own] if side == "image" else [(o, t)] * (o >= 0)
            s, g = float(scores[i, t]), float(guide[i, t])
            p = best((float(scores[pair]) for pair in true), default=None)
            q = best((float(guide[pair]) for pair in true), default=None)
            out[i, t] = not (
                o == i
                or dataset.texts[t] in {dataset.texts[c] for c in own}
                or (plan.captions and any(said[t][c] >= plan.captions - 1e-7 for c in own))
                or (plan.pictures and o >= 0 and shown[i, o] >= plan.pictures - 1e-6)
                or (plan.lowest is not None and s < plan.lowest)
                or (plan.highest is not None and s > plan.highest)
                or (
                    plan.below_positive is not None
                    and p is not None
                    and s > p - plan.below_positive
                )
                or (
                    plan.below_share is not None
                    and p is not None
                    and s > p - (1 - plan.below_share) * abs(p)
                )
                or (plan.guided is not None and q is not None and g > q - plan.guided)
            )
    return out


def by_hand(scores: Tensor, keep: Tensor, k: int, skip: int) -> list[list[int]]:
    lists = []
    for line, kept in zip(scores.tolist(), keep.tolist()):
        order = sorted((-s, row) for row, s in enumerate(line) if kept[row])
        lists.append(([row for _, row in order[skip:]] + [-1] * k)[:k])
    return lists


def case(images: int, texts: int, seed: int) -> tuple[ImageTextDataset, Tensor, Tensor]:
    dataset = toy(images, texts, seed)
    return dataset, eighths(images, texts, seed), eighths(images, texts, seed + 1)
