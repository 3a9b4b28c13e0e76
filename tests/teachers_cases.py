"""Teachers of a tiny corpus in all their forms."""

from __future__ import annotations

from pathlib import Path

import torch

from counterfoil.corpus.lens import CorpusLens
from counterfoil.engine.kept import weights_digest
from counterfoil.matcher import Matcher
from counterfoil.negatives.store import Source
from counterfoil.negatives.taught import TaughtStore, weigher
from counterfoil.negatives.teach import Trained, write
from counterfoil.negatives.teachers import Fragments, Frozen, Teachers, Vectors
from train_cases import host

TEXTS = [0, 1, 3, 7, 8, 13, 20, 30, 33]


def trained(kinds: tuple[str, ...], lens: CorpusLens) -> list[Trained]:
    """One model of each kind, from seeds 0, 1, ..."""
    found = []
    for seed, kind in enumerate(kinds):
        matcher = host(kind, lens, seed=seed, dropout=0.5)
        source = Source(matcher=kind, checkpoint=weights_digest(matcher))
        found.append(Trained(matcher, lens, source))
    return found


def stored(
    folder: Path,
    models: list[Trained],
    *,
    scale: float = 1.0,
    precision: str = "fp32",
    standardise: bool = False,
    vectors: bool = True,
) -> Teachers:
    """What a training reads, of vectors where that is possible."""
    write(folder, models, precision=precision)
    store = TaughtStore.open(folder, fingerprint=models[0].lens.corpus.fingerprint)
    weights = weigher(store.manifest.teachers, scale, standardise=standardise)
    if vectors and all(taught.plain for taught in store.manifest.teachers):
        return Teachers(teachers=(Vectors(stores=store.encodings, weights=weights),))
    return Teachers(
        teachers=tuple(
            Fragments(matcher=one.matcher, images=images, texts=texts, weight=weight)
            for one, (images, texts), weight in zip(models, store.encodings, weights, strict=True)
        )
    )


def frozen(
    folder: Path,
    models: list[Trained],
    *,
    scale: float = 1.0,
    inputs: str = "clean",
    standardise: bool = False,
) -> Teachers:
    """The models themselves, on every batch."""
    manifest = write(folder, models, form="models")
    weights = weigher(manifest.teachers, scale, standardise=standardise)
    return Teachers(
        teachers=tuple(
            Frozen(matcher=one.matcher, lens=one.lens, inputs=inputs, weight=weight)
            for one, weight in zip(models, weights, strict=True)
        )
    )


def expected(models: list[Trained], rows: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """Each model's scores of corpus rows, one pair after the other."""
    images, texts = rows
    found = []
    for one in models:
        matcher: Matcher = one.matcher.eval()
        with torch.no_grad():
            seen = matcher.encode_images(one.lens.images(images))
            read = matcher.encode_texts(one.lens.texts(texts))
            scores = [
                matcher.pairs(seen.rows(torch.tensor([i])), read.rows(torch.tensor([t])))
                for i in range(len(images))
                for t in range(len(texts))
            ]
        found.append(torch.cat(scores).view(len(images), len(texts)))
    return found
