from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import processes
import tailored_cases as cases
from counterfoil.core import distributed
from counterfoil.core.types import Batch, Embeddings, ModalityBatch, Pairs, Role
from counterfoil.data.batching import collate
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.negatives.sampling import CandidateConfig
from counterfoil.training.step import TrainingStep
from papers.released_bugs import MisreadScreened, misaligned

TEXT, IMAGE = Role.HARD_TEXT, Role.HARD_IMAGE


def exact(items: ModalityBatch) -> ModalityBatch:
    boxes = None if items.boxes is None else items.boxes.double()
    return replace(items, values=items.values.double(), boxes=boxes)


def batch_of(seen: Any, texts: int = 7) -> Batch:
    rows = torch.tensor(cases.ANCHORS)
    draws = CandidateConfig(texts=texts, images=3).draws(seen.dataset.relation)
    found = draws.draw(rows, torch.Generator().manual_seed(1))
    batch = collate(seen, rows, candidates=found, step=3)
    assert batch.offered
    images, offered = batch.offered
    return replace(batch, images=exact(batch.images), offered=(exact(images), offered))


def one_batch(model: Any, seen: Any, image: int, texts: list[int]) -> Tensor:
    """Scores of texts with one image, in one batch of the authors' making."""
    read = model.encode_texts(seen.texts(torch.tensor(texts)))
    looked = model.encode_images(exact(seen.images(torch.tensor([image]))))
    repeated = Embeddings(
        looked.tokens.expand(len(texts), -1, -1), looked.mask.expand(len(texts), -1)
    )
    score: Tensor = model.score_pairs(misaligned(repeated, read), read)
    return score


def test_an_image_reads_its_captions_as_the_authors_code_does() -> None:
    seen = cases.processor()
    model, batch = cases.host(seen).double(), batch_of(seen)
    views = model(batch)
    grid = model.score_matrix(views.inference.images, views.inference.texts)
    found = MisreadScreened(keep=4).propose(model, batch, views, grid, torch.Generator())
    assert set(found.pairs) == {IMAGE}
    assert found.texts is None
    scores = found.scores[TEXT]
    assert scores.requires_grad
    moved = 0
    for place, anchor in enumerate(cases.ANCHORS):
        image = int(seen.dataset.text_to_image[anchor])
        offered = list(dict.fromkeys(batch.candidates[TEXT].text[place].tolist()))
        every = one_batch(model, seen, image, offered)
        hardest = [offered[k] for k in every.argsort(descending=True, stable=True)[:4]]
        positive, *wrong = one_batch(model, seen, image, [anchor, *hardest])
        true = grid[batch.anchors.image[place], batch.anchors.text[place]]
        expected = torch.stack(wrong) + true - positive
        assert torch.allclose(scores[place], expected, atol=1e-12)
        moved += int(abs(positive - true) > 1e-6)
    assert moved


def test_what_is_offered_again_is_no_pair() -> None:
    seen = cases.processor()
    model, batch = cases.host(seen).double(), batch_of(seen)
    once = batch.candidates[TEXT]
    same = Pairs(once.image, once.text[:, :1].expand_as(once.text))
    batch = replace(batch, candidates={**batch.candidates, TEXT: same})
    views = model(batch)
    grid = model.score_matrix(views.inference.images, views.inference.texts)
    source = MisreadScreened(keep=4)
    found = source.propose(model, batch, views, grid, torch.Generator())
    assert found.scores[TEXT].isneginf().tolist() == [[False, True, True, True]] * len(same.text)


def worker() -> dict[str, Any]:
    terms = {
        name: (1.0, MarginRankingLoss(role=role, margin=0.9, reduction="mean"))
        for name, role in (("texts", "hard text"), ("images", "hard image"))
    }
    seen = cases.processor()
    source = MisreadScreened(keep=3)
    step = TrainingStep(
        cases.host(seen, outputs=("rank",)), WeightedSum(terms=terms), sources=[source]
    )
    module, batch = step.double(), batch_of(seen)
    look = seen.images
    seen.images = lambda rows: exact(look(rows))  # type: ignore[method-assign]
    shared = DistributedDataParallel(module) if distributed.size() > 1 else module
    losses = shared(batch)
    torch.stack(list(losses.values())).sum().backward()
    found = {n: p.grad.numpy() for n, p in step.named_parameters() if p.grad is not None}
    return {"losses": {n: loss.item() for n, loss in losses.items()}, "gradients": found}


def test_two_processes_equal_one() -> None:
    one = worker()
    assert one["losses"]["texts"] > 0
    for several in processes.run(worker, 2):
        assert several["losses"] == pytest.approx(one["losses"], rel=1e-9)
        for name, value in one["gradients"].items():
            assert abs(several["gradients"][name] - value).max() < 1e-8, name
