"""A training step of VSE++ with NDGL's losses and two stored teachers, against one without.

The ratios are to the step with the hardest triplet alone: 128 images of 36 regions and 128 captions
of 8 to 20 words, width 1024, encoded, scored, judged and carried back. VSE++ is the cheapest host,
so that no other one pays a larger share. Teachers' vectors are read from the disk's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.nn.functional import normalize

from benchmarks.speed import Result
from benchmarks.speed.gemm import against
from counterfoil.core.types import Batch, Embeddings, ModalityBatch, Pairs
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.ndgl import HardNegativeRectificationLoss, MarginDistillationLoss
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.negatives.teachers import StoredVectors, TeacherEnsemble
from counterfoil.scoring.embedding_store import EmbeddingStore, EmbeddingWriter
from counterfoil.training.step import TrainingStep

BATCH, REGIONS, FEATURES, WIDTH, WORDS = 128, 36, 2048, 1024, 8000
IMAGES, TEXTS, TEACHERS, TARGET = 4096, 8192, 2, 1.1


def results(threads: int) -> Iterator[Result]:
    """The step, and the step at which figures are logged."""
    batch = _batch()
    with TemporaryDirectory() as folder:
        guide = TeacherEnsemble(teachers=(_stored(Path(folder)),))
        plain, guided = _step(None), _step(guide)
        for what, wanted, target in (("", False, TARGET), (", logged", True, None)):
            guided.watch.wanted = wanted
            timing = against(_work(plain, batch), _work(guided, batch), warm=2)
            note = f"to the step alone; {timing.work * 1e3:.0f} ms, alone {timing.plain * 1e3:.0f}"
            name = f"VSE++ step of {BATCH}, {TEACHERS} stored teachers{what}"
            yield Result(name, timing.ratio, target, note=f"{note} ms")


def _work(step: TrainingStep, batch: Batch) -> Callable[[], object]:
    def work() -> None:
        step.zero_grad()
        torch.autograd.backward(torch.stack(list(step(batch).values())).sum())

    return work


def _step(guide: TeacherEnsemble | None) -> TrainingStep:
    torch.manual_seed(0)
    image = Regions(features=FEATURES, width=WIDTH)
    model = VSEPP(image=image, text=GRU(words=WORDS, width=WIDTH), text_pool="last")
    terms: dict[str, tuple[float, Loss]] = {"triplet": (1.0, HardestTripletLoss())}
    if guide:
        terms |= {
            "margins": (100.0, MarginDistillationLoss()),
            "rectified": (0.5, HardNegativeRectificationLoss()),
        }
    return TrainingStep(model, WeightedSum(terms=terms), sources=[guide] if guide else [])


def _batch() -> Batch:
    rng = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 21, (BATCH, 1), generator=rng)
    mask = torch.arange(20) < lengths
    texts = torch.randint(4, WORDS, (BATCH, 20), generator=rng).masked_fill(~mask, 0)
    images = torch.randn(BATCH, REGIONS, FEATURES, generator=rng)
    rows = torch.randperm(IMAGES, generator=rng)[:BATCH], torch.randperm(TEXTS, generator=rng)
    places = torch.arange(BATCH)
    return Batch(
        step=0,
        image_rows=rows[0],
        text_rows=rows[1][:BATCH],
        images=ModalityBatch(rows[0], images, torch.ones(BATCH, REGIONS, dtype=torch.bool)),
        texts=ModalityBatch(rows[1][:BATCH], texts, mask),
        block=(BATCH, BATCH),
        anchors=Pairs(places, places),
    )


def _stored(folder: Path) -> StoredVectors:
    rng, stores = torch.Generator().manual_seed(1), []
    for teacher in range(TEACHERS):
        pair = []
        for name, count in (("images", IMAGES), ("texts", TEXTS)):
            place = folder / f"{teacher}" / name
            writer = EmbeddingWriter(place, "fp32")
            vectors = normalize(torch.randn(count, 1, WIDTH, generator=rng), dim=2)
            writer.put(torch.randperm(count), Embeddings(vectors, torch.ones(count, 1).bool()))
            writer.close()
            pair.append(EmbeddingStore(place, count))
        stores.append((pair[0], pair[1]))
    return StoredVectors(stores=stores, weights=[(1 / TEACHERS, 0.0)] * TEACHERS)
