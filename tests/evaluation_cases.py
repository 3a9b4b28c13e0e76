"""Small score matrices with any number of captions per image, and slow answers to check against."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import DrawnPictures
from counterfoil.evaluation.galleries import RankedLists
from counterfoil.evaluation.metrics import EvaluationReport
from engine_cases import Dot, best_rank, given

member, Product = given, Dot


def ragged(images: int, seed: int, most: int = 4, orphans: int = 0) -> Tensor:
    """(T,) owners: 0 to `most` captions per image in random order, at least one in all."""
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, most + 1, (images,), generator=rng)
    counts[0] = max(1, int(counts[0]))
    text_to_image = torch.cat(
        [torch.arange(images).repeat_interleave(counts), torch.full((orphans,), -1)]
    )
    return text_to_image[torch.randperm(len(text_to_image), generator=rng)]


def scores(images: int, text_to_image: Tensor, seed: int, levels: int | None = None) -> Tensor:
    """(I, T) scores that lean towards the truth; few levels make many ties."""
    rng = torch.Generator().manual_seed(seed)
    found = torch.randn(images, len(text_to_image), generator=rng)
    found += 1.0 * (text_to_image == torch.arange(images).unsqueeze(1))
    return found if levels is None else (found * levels).round() / levels


def slow_ranks(found: Tensor, text_to_image: Tensor, tie: str) -> tuple[list[int], list[int]]:
    """Ranks in both directions, one query at a time."""
    true = text_to_image == torch.arange(len(found)).unsqueeze(1)
    i2t, t2i = (
        [best_rank(line, own, tie) for line, own in zip(scores.tolist(), truth.tolist())]
        for scores, truth in ((found, true), (found.T, true.T))
    )
    return i2t, t2i


def found(
    scores: Tensor, report: EvaluationReport, *others: tuple[str, EvaluationReport]
) -> tuple[RankedLists, RankedLists]:
    """Whole lists in both directions."""
    lists = []
    for side, matrix in enumerate((scores, scores.T)):
        best, rows = matrix.sort(dim=1, descending=True, stable=True)
        ranked = tuple((name, other.ranked[side]) for name, other in others)
        lists.append(RankedLists(report.ranked[side], rows, best, ranked))
    return lists[0], lists[1]


def unnamed(text_to_image, images: int, **more) -> ImageTextDataset:
    """A data set without a name, of these owners."""
    settings = {"name": "", "texts": [f"caption {row}" for row in range(len(text_to_image))]}
    return ImageTextDataset(
        image_ids=[f"i{row}" for row in range(images)],
        text_ids=[f"t{row}" for row in range(len(text_to_image))],
        text_to_image=text_to_image,
        splits=[""] * images,
        **settings | more,
    )


def split(texts, text_to_image, draw) -> ImageTextDataset:
    """A data set with pictures that `draw` makes of their row."""
    count = int(text_to_image.max()) + 1
    pictures = DrawnPictures(draw, range(count), "cases")
    return unnamed(text_to_image, count, name="cases", texts=texts, pictures=pictures)
