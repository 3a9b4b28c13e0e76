"""Small corpora, their exact lists by brute force, and a matcher that is a plain product."""

from __future__ import annotations

import torch
from torch import Tensor

import matcher_cases
from counterfoil.data.dataset import Relation
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.encode import EmbeddedDataset
from engine_cases import Dot, vectors

HOSTS = ("scan-t2i", "bfan", "vse", "vsrn-f30k")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def member(images: Tensor, texts: Tensor) -> EmbeddedDataset:
    """Vectors that are compared by their inner product."""
    return EmbeddedDataset(Dot(), vectors(images), vectors(texts))


def ragged(images: int = 12, seed: int = 0, orphans: int = 0) -> Relation:
    """One to four captions an image in shuffled order, and some that describe none."""
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 5, (images,), generator=rng)
    text_to_image = torch.arange(images).repeat_interleave(counts)
    text_to_image = torch.cat([text_to_image, torch.full((orphans,), -1)])
    return Relation(text_to_image[torch.randperm(len(text_to_image), generator=rng)], images=images)


def ranked(scores: Tensor, relation: Relation, h: int, k: int) -> HardNegativeLists:
    """Lists by sorting every row of (I, T) scores."""
    rows: list[list[int]] = []
    text_to_image = relation.text_to_image.tolist()
    for i, row in enumerate(scores.tolist()):
        order = sorted(range(len(row)), key=lambda t: (-row[t], t))
        rows.append(([t for t in order if text_to_image[t] != i] + [-1] * h)[:h])
    columns: list[list[int]] = []
    for t, column in enumerate(scores.T.tolist()):
        order = sorted(range(len(column)), key=lambda i: (-column[i], i))
        columns.append(([i for i in order if text_to_image[t] != i] + [-1] * k)[:k])
    return HardNegativeLists(torch.tensor(rows).int(), torch.tensor(columns).int())


def random_lists(relation: Relation, h: int, k: int, seed: int = 0) -> HardNegativeLists:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(relation.images, len(relation.text_to_image), generator=rng)
    return ranked(scores, relation, h, k)


@torch.no_grad()
def host(name: str, images: int, texts: int) -> EmbeddedDataset:
    """A small untrained host with what it has encoded."""
    cases = matcher_cases.CASES
    if not any(case.name == name for case in cases):
        from papers_matcher_cases import CASES as cases
    (case,) = (case for case in cases if case.name == name)
    model, rng = case.build(), torch.Generator().manual_seed(1)
    left, right = case.images(images, rng), case.texts(texts, rng)
    return EmbeddedDataset(model, model.encode_images(left), model.encode_texts(right))


@torch.no_grad()
def alike(
    found: HardNegativeLists,
    exact: HardNegativeLists,
    members: list[EmbeddedDataset],
    text_to_image: Tensor,
) -> bool:
    """Whether lists hold no true pair, nothing twice, and differ where scores do by < 1e-6."""
    grids = [m.model.score_matrix(m.images, m.texts) for m in members]
    scores = torch.stack(grids).mean(0)
    true = text_to_image == torch.arange(len(scores)).unsqueeze(1)
    scores = scores.masked_fill(true, -9.0)
    for ours, theirs, table in (
        (found.texts.long(), exact.texts.long(), scores),
        (found.images.long(), exact.images.long(), scores.T),
    ):
        off = (table.gather(1, ours) - table.gather(1, theirs)).abs()
        twice = ours.sort(1).values.diff(dim=1) == 0
        if bool((ours < 0).any() | twice.any() | (off >= 1e-6).any()):
            return False
    return True
