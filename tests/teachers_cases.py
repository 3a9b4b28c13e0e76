"""Teachers of a tiny corpus in all their forms."""

from __future__ import annotations

from pathlib import Path

import torch

from counterfoil.data.processor import ProcessedDataset
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.teachers import (
    FrozenTeacher,
    StoredFragments,
    StoredVectors,
    TargetStore,
    TeacherEnsemble,
    TeacherModel,
    target_weighting,
    write_targets,
)
from counterfoil.scoring.checkpoint import weights_digest
from counterfoil.scoring.embedding_store import ModelSource
from train_cases import host

TEXTS = [0, 1, 3, 7, 8, 13, 20, 30, 33]


def trained(kinds: tuple[str, ...], processor: ProcessedDataset) -> list[TeacherModel]:
    """One model of each kind, from seeds 0, 1, ..."""
    found = []
    for seed, kind in enumerate(kinds):
        model = host(kind, processor, seed=seed, dropout=0.5)
        source = ModelSource(matcher=kind, checkpoint=weights_digest(model))
        found.append(TeacherModel(model, processor, source))
    return found


def stored(
    folder: Path,
    models: list[TeacherModel],
    *,
    scale: float = 1.0,
    precision: str = "fp32",
    standardise: bool = False,
    vectors: bool = True,
) -> TeacherEnsemble:
    """What a training reads, of vectors where that is possible."""
    write_targets(folder, models, precision=precision)
    store = TargetStore.open(folder, fingerprint=models[0].processor.dataset.fingerprint)
    weights = target_weighting(store.manifest.teachers, scale, standardise=standardise)
    if vectors and all(taught.plain for taught in store.manifest.teachers):
        return TeacherEnsemble(teachers=(StoredVectors(stores=store.encodings, weights=weights),))
    return TeacherEnsemble(
        teachers=tuple(
            StoredFragments(model=one.model, images=images, texts=texts, weight=weight)
            for one, (images, texts), weight in zip(models, store.encodings, weights, strict=True)
        )
    )


def frozen(
    folder: Path,
    models: list[TeacherModel],
    *,
    scale: float = 1.0,
    inputs: str = "clean",
    standardise: bool = False,
) -> TeacherEnsemble:
    """The models themselves, on every batch."""
    manifest = write_targets(folder, models, form="models")
    weights = target_weighting(manifest.teachers, scale, standardise=standardise)
    return TeacherEnsemble(
        teachers=tuple(
            FrozenTeacher(model=one.model, processor=one.processor, inputs=inputs, weight=weight)
            for one, weight in zip(models, weights, strict=True)
        )
    )


def expected(
    models: list[TeacherModel], rows: tuple[torch.Tensor, torch.Tensor]
) -> list[torch.Tensor]:
    """Each model's scores of corpus rows, one pair after the other."""
    images, texts = rows
    found = []
    for one in models:
        model: RetrievalModel = one.model.eval()
        with torch.no_grad():
            seen = model.encode_images(one.processor.images(images))
            read = model.encode_texts(one.processor.texts(texts))
            scores = [
                model.score_pairs(seen.rows(torch.tensor([i])), read.rows(torch.tensor([t])))
                for i in range(len(images))
                for t in range(len(texts))
            ]
        found.append(torch.cat(scores).view(len(images), len(texts)))
    return found
