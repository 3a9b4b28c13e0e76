"""The arms: one use of negatives each, with a grid of as many points as every other arm has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from tempfile import TemporaryDirectory
from typing import Protocol, final

import torch
from torch import Tensor, nn

from benchmarks.truths.bed import Bed
from counterfoil.core.types import Needs, Pairs, Role
from counterfoil.data.batching import Batch
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.losses.aoq import AdaptiveQuintuplet
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss, InfoNCEWithCandidatesLoss
from counterfoil.losses.ndgl import (
    HardNegativeRectificationLoss,
    MarginDistillationLoss,
    distillation_settings,
)
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.model import Model
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.mining import mine_hard_negatives
from counterfoil.negatives.sources import NegativeSource
from counterfoil.negatives.teachers import Mask, Teachers
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig
from counterfoil.training.mined import Mined
from counterfoil.training.trainer import Trainer

BASE, CCA = "InfoNCE, batch 512", "CCA, closed form"
Point = Mapping[str, float]
RATES = (1e-3, 3e-3, 1e-2)
TEMPERATURES = (0.03, 0.05, 0.08, 0.12)
EPOCHS = 2  # passes over the captions, of all rounds together
LISTS = (100, 20)  # mined texts of an image, images of a text


@final
@dataclass
class Cost:
    """What an arm spends: steps, and pairs encoded, each an image or caption with its partner."""

    steps: int = 0
    pairs: int = 0


@final
@dataclass(frozen=True)
class Arm:
    """One use of negatives.

    Attributes:
        name: in tables.
        grid: points to try.
        train: of the bed, a point, a seed and the cost to add to; gives the model.
    """

    name: str
    grid: Sequence[Point]
    train: Callable[[Bed, Point, int, Cost], Model]


def grid(**values: Sequence[float]) -> tuple[Point, ...]:
    """All points of some axes."""
    return tuple(dict(zip(values, point, strict=True)) for point in product(*values.values()))


_USUAL = grid(rate=RATES, temperature=TEMPERATURES)


class Trainable(Protocol):
    """What models are trained on."""

    def untrained(self) -> Model:
        """A model with fresh weights from the global generator."""

    @property
    def data(self) -> ImageTextDataset:
        """All splits, of vectors."""

    @property
    def train(self) -> ImageTextDataset:
        """The training split."""


def fit(
    bed: Trainable,
    loss: Loss | WeightedSum | Callable[..., Tensor],
    seed: int,
    cost: Cost,
    *,
    rate: float,
    batch: int = 512,
    epochs: int = EPOCHS,
    sources: Sequence[NegativeSource] = (),
    start: Model | None = None,
    drawn: int = 0,
    all_captions: bool = False,
) -> Model:
    """Train a model of the bed; `drawn` negatives of each anchor are encoded besides."""
    if start is None:
        torch.manual_seed(seed)
        start = bed.untrained()
    plan = TrainConfig(
        epochs=epochs,
        batch=batch,
        seed=seed,
        optimiser=OptimizerConfig(rate=rate),
        schedule=CosineLR(warmup=0.1),
        keep_last=True,
        log_every=1000,
        all_captions=all_captions,
    )
    items = len(bed.train) if all_captions else len(bed.train.texts)
    cost.steps += epochs * -(-items // batch)
    cost.pairs += epochs * len(bed.train.texts) * (1 + drawn)
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            start, loss=loss, train=bed.train, sources=sources, output=folder, config=plan
        )
        return trainer.train()


def closed_form(bed: Trainable) -> Model:
    """Adapters that give back their vectors: they begin so, and this rate moves nothing."""
    loss = InfoNCELoss(temperature=0.05, reduction="mean")
    return fit(bed, loss, 0, Cost(), rate=1e-12, epochs=1)


def info_nce(point: Point) -> InfoNCELoss:
    """InfoNCE at the temperature of a point."""
    return InfoNCELoss(temperature=point["temperature"], reduction="mean")


def info_nce_with_drawn(point: Point) -> InfoNCEWithCandidatesLoss:
    """InfoNCE of a batch, and of a drawn text and image of each anchor."""
    return InfoNCEWithCandidatesLoss(
        texts=("hard text",),
        images=("hard image",),
        temperature=point["temperature"],
        reduction="mean",
    )


def adaptive_quintuplet(point: Point) -> AdaptiveQuintuplet:
    """AdapOffQuin at the offline margin of a point."""
    return AdaptiveQuintuplet(offline=point["offline"], reduction="mean")


def _of_batch(batch: int) -> Arm:
    def train(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
        return fit(bed, info_nce(point), seed, cost, rate=point["rate"], batch=batch)

    return Arm(f"InfoNCE, batch {batch}", _USUAL, train)


def _triplet(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    loss = HardestTripletLoss(margin=point["margin"], reduction="mean")
    return fit(bed, loss, seed, cost, rate=point["rate"])


def _five(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    rate = point["rate"]
    return fit(bed, info_nce(point), seed, cost, rate=rate, batch=128, all_captions=True)


def first_round(bed: Bed, seed: int, cost: Cost) -> Model:
    """Round one of two, of half the epochs, by the usual loss."""
    loss = InfoNCELoss(temperature=0.05, reduction="mean")
    return fit(bed, loss, seed, cost, rate=3e-3, epochs=EPOCHS // 2)


def _lists(bed: Bed, model: Model, filters: FilterConfig | None) -> Mined:
    found = mine_hard_negatives(
        model, bed.train, texts_per_image=LISTS[0], images_per_text=LISTS[1], filters=filters
    )
    return Mined(found)


def _second(
    bed: Bed,
    loss: Loss,
    point: Point,
    seed: int,
    cost: Cost,
    filters: FilterConfig | None = None,
    *,
    drawn: int = 1,
) -> Model:
    """Round one, then round two from it, with the lists that its model mines.

    `drawn` pairs are encoded besides each anchor's own: one for a drawn image and caption, two
    where these come with a caption and an image of their own, as in a quintuplet.
    """
    model = first_round(bed, seed, cost)
    return fit(
        bed,
        loss,
        seed,
        cost,
        rate=point["rate"],
        epochs=EPOCHS // 2,
        sources=[_lists(bed, model, filters)],
        start=model,
        drawn=drawn,
    )


def _mined(name: str, filters: FilterConfig | None) -> Arm:
    def train(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
        return _second(bed, info_nce_with_drawn(point), point, seed, cost, filters)

    return Arm(name, grid(rate=(3e-4, 1e-3, 3e-3), temperature=TEMPERATURES), train)


def _quintuplet(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    return _second(bed, adaptive_quintuplet(point), point, seed, cost, drawn=2)


@final
class CaptionGuide(NegativeSource):
    """Takes a wrong pair for true if the caption is near those of the image, by a text tower.

    Its targets are cosines of a caption with the mean of the image's captions, and `threshold` for
    true pairs: a mask leaves out what is above it.
    """

    gives = Needs(targets=True, pair_targets=frozenset(Role))

    def __init__(self, bed: Bed, threshold: float) -> None:
        owner = bed.train.text_to_image
        means = torch.zeros(len(bed.train), bed.guide.shape[1]).index_add_(0, owner, bed.guide)
        self.images = torch.nn.functional.normalize(means, dim=1)
        self.texts, self.owner, self.threshold = bed.guide, owner, threshold

    def targets(self, batch: Batch) -> Tensor:
        """(I, T) targets of the anchors' block."""
        images, texts = batch.image_rows[: batch.block[0]], batch.text_rows[: batch.block[1]]
        near = self.images[images] @ self.texts[texts].T
        return near.masked_fill(images.unsqueeze(1) == self.owner[texts], self.threshold)

    def pair_targets(self, batch: Batch, pairs: Pairs) -> Tensor:
        """(B, N) targets of pairs of the pools."""
        images, texts = batch.image_rows[pairs.image], batch.text_rows[pairs.text]
        near = (self.images[images] * self.texts[texts]).sum(-1)
        return near.masked_fill(images == self.owner[texts], self.threshold)


def _by_text(threshold: float) -> Arm:
    def train(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
        mask = Mask(CaptionGuide(bed, threshold))
        return fit(bed, info_nce(point), seed, cost, rate=point["rate"], sources=[mask])

    return Arm(f"mask by captions above {threshold:g}", _USUAL, train)


class OwnMaskedInfoNCE(nn.Module):
    """InfoNCE without wrong pairs that score above the true ones by more than a margin.

    The score itself is the guide, as in Qwen3-VL-Embedding: a pair is left out
    in both directions where it is above the true pairs of its image and of its text.
    """

    def __init__(self, *, temperature: float, margin: float) -> None:
        super().__init__()
        self.temperature, self.margin = temperature, margin

    def forward(self, scores: Tensor, positives: Tensor, mask: Tensor) -> Tensor:
        """Mean over the true pairs of both directions."""
        known = scores.detach().masked_fill(~positives, -torch.inf)
        limit = torch.maximum(known.amax(1, keepdim=True), known.amax(0, keepdim=True))
        wrong = mask & ~positives & (scores.detach() <= limit + self.margin)
        logits = scores / self.temperature
        losses = []
        for block, true, false in ((logits, positives, wrong), (logits.T, positives.T, wrong.T)):
            others = block.masked_fill(~false, -torch.inf).logsumexp(1, keepdim=True)
            each = torch.logaddexp(block, others.expand_as(block)) - block
            losses.append(each[true].mean())
        return torch.stack(losses).mean()


def _by_itself(margin: float) -> Arm:
    def train(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
        loss = OwnMaskedInfoNCE(temperature=point["temperature"], margin=margin)
        return fit(bed, loss, seed, cost, rate=point["rate"])

    return Arm(f"mask by its own score, margin {margin:g}", _USUAL, train)


def _teachers(bed: Bed, seed: int, cost: Cost, count: int = 2) -> Teachers:
    loss = InfoNCELoss(temperature=0.05, reduction="mean")
    seeds = (1000 + count * seed + number for number in range(count))
    return Teachers(*(fit(bed, loss, one, cost, rate=3e-3) for one in seeds))


def _ndgl(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    terms: dict[str, tuple[float, Loss]] = {
        "own": (1.0, InfoNCELoss(temperature=0.05, reduction="mean")),
        "mr": (point["weight"], MarginDistillationLoss(reduction="mean")),
        "hnr": (0.5, HardNegativeRectificationLoss(reduction="mean")),
    }
    sources = [_teachers(bed, seed, cost)]
    return fit(bed, WeightedSum(terms=terms), seed, cost, rate=point["rate"], sources=sources)


def _soft(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    soft = MarginDistillationLoss(**distillation_settings(temperature=0.05))
    terms: dict[str, tuple[float, Loss]] = {
        "own": (1 - point["weight"], InfoNCELoss(temperature=0.05, reduction="mean")),
        "soft": (point["weight"], soft),
    }
    sources = [_teachers(bed, seed, cost, 1)]
    return fit(bed, WeightedSum(terms=terms), seed, cost, rate=point["rate"], sources=sources)


TRIPLET, TEXT_MASK = "hardest triplet, batch 512", "mask by captions above 0.7"
ARMS = {
    arm.name: arm
    for arm in (
        _of_batch(512),
        _of_batch(128),
        _of_batch(2048),
        Arm(TRIPLET, grid(rate=RATES, margin=(0.1, 0.2, 0.3, 0.4)), _triplet),
        _mined("mined, no filter", None),
        _mined("mined, captions=0.5 filtered", FilterConfig(captions=0.5)),
        Arm("AdapOffQuin", grid(rate=(3e-4, 1e-3, 3e-3), offline=(0, 0.05, 0.1, 0.2)), _quintuplet),
        _by_text(0.7),
        _by_text(0.55),
        _by_itself(0.0),
        _by_itself(-0.1),
        Arm("soft targets of one teacher", grid(rate=RATES, weight=(0.1, 0.3, 0.5, 0.7)), _soft),
        Arm("five captions as positives", _USUAL, _five),
        Arm("NDGL of two teachers", grid(rate=RATES, weight=(1.0, 10.0, 30.0, 100.0)), _ndgl),
    )
}
