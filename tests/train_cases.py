"""A tiny corpus and two tiny hosts with everything that makes a training step hard to share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from counterfoil.core import distributed
from counterfoil.core.types import (
    INFERENCE,
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
    Pairs,
    Role,
)
from counterfoil.data.batching import collate
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.models.base import RetrievalModel, score_all_pairs
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.negatives.sources import NegativeSource
from counterfoil.training.logging import read_metrics
from counterfoil.training.step import TrainingStep

THINGS = ["dog", "cat", "car", "tree", "boat", "kite", "bird", "cup", "ball", "hat", "fish", "lamp"]
WIDTH = 6


def dataset(images: int = 12, captions: int = 3, seed: int = 0) -> ImageTextDataset:
    """Images of one thing each with 2 to 4 regions; captions of different lengths name it."""
    rng = np.random.default_rng(seed)
    kind = np.arange(images) % len(THINGS)
    looks = np.random.default_rng(7).normal(size=(len(THINGS), WIDTH))
    values = looks[kind][:, None] + 0.3 * rng.normal(size=(images, 4, WIDTH))
    features = FeatureArray.of(values.astype(np.float32), lengths=rng.integers(2, 5, images))
    texts = [
        " ".join(["a", THINGS[kind[image]], *["is there"] * int(rng.integers(0, 3))])
        for image in range(images)
        for _ in range(captions)
    ]
    return ImageTextDataset(
        name="tiny",
        image_ids=[f"i{n}" for n in range(images)],
        text_ids=[f"t{n}" for n in range(len(texts))],
        texts=texts,
        text_to_image=torch.arange(images).repeat_interleave(captions),
        splits=["train"] * images,
        features=features,
    )


def processor(images: int = 12, captions: int = 3, seed: int = 0) -> ProcessedDataset:
    made = dataset(images, captions, seed)
    return ProcessorConfig().fit(made).process(made)


@final
class Global(RetrievalModel):
    """One vector per item, dropout in both encoders."""

    def __init__(self, *, words: int, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.image, self.word = nn.Linear(WIDTH, width), nn.Embedding(words, width)
        self.drop = nn.Dropout(dropout)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return self._one(self.drop(self.image(images.values)), images.mask)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return self._one(self.drop(self.word(texts.values)), texts.mask)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return (images.tokens * texts.tokens).sum((1, 2))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return images.tokens[:, 0] @ texts.tokens[:, 0].T

    def _one(self, tokens: Tensor, mask: Tensor) -> Embeddings:
        total = tokens.masked_fill(~mask.unsqueeze(2), 0).sum(1, keepdim=True)
        return Embeddings(nn.functional.normalize(total, dim=2), mask[:, :1])


@final
class Bag(RetrievalModel):
    """Bags of vectors with a Gram matrix, a parameter in the score, a second view, an own loss."""

    score_names = frozenset({INFERENCE, "plain"})
    score_scale = 2.0

    def __init__(
        self, *, words: int, width: int = 8, dropout: float = 0.0, own: bool = False
    ) -> None:
        super().__init__()
        self.own = own
        self.image, self.word = nn.Linear(WIDTH, width), nn.Embedding(words, width)
        self.sharpness = nn.Parameter(torch.tensor(1.5))
        self.drop = nn.Dropout(dropout)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        tokens = self.drop(self.image(images.values)).masked_fill(~images.mask.unsqueeze(2), 0)
        return Embeddings(tokens, images.mask, tokens @ tokens.mT)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return Embeddings(self.drop(self.word(texts.values)), texts.mask)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        assert images.gram is not None
        raw = texts.tokens @ images.tokens.mT
        weight = (
            (raw * self.sharpness).masked_fill(~images.mask.unsqueeze(1), -torch.inf).softmax(2)
        )
        norm = ((weight @ images.gram) * weight).sum(2).clamp(min=1e-9).sqrt()
        score = (weight * raw).sum(2) / (norm * texts.tokens.norm(dim=2) + 1e-6)
        return score.masked_fill(~texts.mask, 0).sum(1) / texts.mask.sum(1)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return score_all_pairs(self.score_pairs, images, texts)

    def forward(self, batch: Batch) -> EncodedViews:
        images, texts = self.encode_images(batch.images), self.encode_texts(batch.texts)
        plain = EncodedBatch(self.encode_images(batch.images), texts)
        total = images.tokens.flatten(1).square().sum() / len(batch.image_rows)
        spread = {"spread": total} if self.own else {}
        return EncodedViews({INFERENCE: EncodedBatch(images, texts), "plain": plain}, spread)


@final
class Offline:
    """Draws of all four roles, so that pools grow behind the anchors."""

    provides = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE, Role.CROSS, Role.COMPANION})

    def __init__(self, text_to_image: Tensor, count: int = 2) -> None:
        self.text_to_image, self.count = text_to_image, count

    def draw(self, texts: Tensor, rng: torch.Generator) -> Mapping[Role, Pairs]:
        shape = (len(texts), self.count)
        anchors = texts.unsqueeze(1).expand(shape)
        wrong = torch.randint(len(self.text_to_image), shape, generator=rng)
        other = torch.randint(len(self.text_to_image), shape, generator=rng)
        return {
            Role.HARD_TEXT: Pairs(self.text_to_image[anchors], wrong),
            Role.HARD_IMAGE: Pairs(self.text_to_image[other], anchors),
            Role.CROSS: Pairs(self.text_to_image[other], wrong),
            Role.COMPANION: Pairs(self.text_to_image[wrong], other),
        }


def batch_of(
    processor: ProcessedDataset, texts: list[int], *, offline: bool = False, step: int = 0
) -> Batch:
    """A batch of these captions, with drawn pairs where asked."""
    rows = torch.tensor(texts)
    rng = torch.Generator().manual_seed(step)
    drawn = Offline(processor.dataset.text_to_image).draw(rows, rng) if offline else None
    return collate(processor, rows, negatives=drawn, step=step)


def host(
    kind: str, processor: ProcessedDataset, *, dropout: float = 0.0, seed: int = 0
) -> RetrievalModel:
    """A host by name, from "global" to "hrem", always with the same weights.

    VSRN is in evaluation: several processes have batch statistics of their own.
    """
    assert processor.processor.tokenizer is not None
    torch.manual_seed(seed)
    words = processor.processor.tokenizer.size
    if kind == "global":
        return Global(words=words, dropout=dropout)
    if kind == "scan":
        towers = Regions(features=WIDTH, width=8), GRU(words=words, word_width=6, width=8)
        from counterfoil.papers.models.scan import SCAN

        return SCAN(image=towers[0], text=towers[1])
    if kind == "vsrn":
        return vsrn(words)
    if kind == "hrem":
        return hrem(words, dropout)
    return Bag(words=words, dropout=dropout, own=kind == "own")


def vsrn(words: int) -> RetrievalModel:
    """With a captioner, and relations that are not the identity."""
    from counterfoil.papers.models.vsrn import VSRN, Captioner

    model = VSRN(
        image=Regions(features=WIDTH, width=8),
        text=GRU(words=words, word_width=6, width=8, bidirectional=False),
        captioner=Captioner(words=words, width=8, hidden=5, word_width=4, longest=6),
        caption_weight=0.5,
        layers=1,
        batch_norm=True,
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.weight)
    return model.eval()


def hrem(words: int, dropout: float) -> RetrievalModel:
    """With a graph over the batch."""
    from counterfoil.papers.models.hrem import HREM, BatchGraph

    return HREM(
        image=Regions(features=WIDTH, width=8),
        text=GRU(words=words, word_width=6, width=8),
        graph=BatchGraph(width=8, heads=2, dropout=dropout, best=3),
        heads=2,
        dropout=dropout,
    )


def cached_backward(
    step: TrainingStep, batch: Batch, chunk: int, *, share: float = 1.0
) -> dict[str, torch.Tensor]:
    """Losses of a batch that is encoded in pieces; their gradients are added."""
    step.chunk = chunk
    losses = step(batch)
    (share * torch.stack(list(losses.values())).sum()).backward()
    return losses


def stepped(
    step: TrainingStep, batch: Batch, chunk: int = 0, *, unused: bool = False
) -> dict[str, Any]:
    """Losses and gradients of a step, of all processes together.

    Args:
        step: the step.
        batch: this process's share.
        chunk: texts whose graph is held at a time; 0 for all at once.
        unused: whether some parameters may have no share in the loss.
    """
    step.chunk = chunk
    several = distributed.size() > 1
    module = DistributedDataParallel(step, find_unused_parameters=unused) if several else step
    losses = module(batch)
    torch.stack(list(losses.values())).sum().backward()
    return {
        "losses": {name: loss.item() for name, loss in losses.items()},
        "gradients": {name: gradient.numpy() for name, gradient in gradients(step).items()},
    }


def proposals(source: NegativeSource) -> list[Any]:
    """What a source proposes from now on."""
    found: list[Any] = []
    real = source.propose

    def propose(*given: Any) -> Any:
        found.append(real(*given))
        return found[-1]

    source.propose = propose  # type: ignore[method-assign]
    return found


def learnt(
    module: nn.Module, losses: Callable[[], Mapping[str, Tensor]], rate: float, steps: int
) -> list[dict[str, float]]:
    """The losses at each of so many steps of AdamW on their sum."""
    optimiser, told = torch.optim.AdamW(module.parameters(), lr=rate), []
    for _ in range(steps):
        found = losses()
        optimiser.zero_grad()
        torch.stack(list(found.values())).sum().backward()
        optimiser.step()
        told.append({name: loss.item() for name, loss in found.items()})
    return told


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def double(batch: Batch) -> Batch:
    """The batch with features in float64, images of online candidates among them."""

    def doubled(items: ModalityBatch) -> ModalityBatch:
        return replace(items, values=items.values.double())

    offered = batch.offered and (doubled(batch.offered[0]), batch.offered[1])
    return replace(batch, images=doubled(batch.images), offered=offered)


def assert_same_step(
    found: Mapping[str, Any], wanted: Mapping[str, Any], within: float = 1e-9
) -> None:
    """Compare what `stepped` returns."""
    assert found["losses"] == pytest.approx(wanted["losses"], rel=within)
    assert found["gradients"].keys() == wanted["gradients"].keys()
    for name, value in wanted["gradients"].items():
        assert abs(found["gradients"][name] - value).max() < within, name


CLOCK = {"seconds", "dev_seconds", "mined_seconds", "pairs_per_second", "memory_mb"}


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a training without what the clock says."""
    found = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in CLOCK} for line in found]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def size_of(model: nn.Module) -> dict[str, float]:
    """A dev figure that depends on every weight."""
    return {"rsum": sum(p.abs().sum().item() for p in model.parameters())}
