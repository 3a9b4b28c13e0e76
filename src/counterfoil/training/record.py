"""Record of a training, JSON-ready, that is saved with the model and printed in its card."""

from __future__ import annotations

import inspect
import platform
import re
import sys
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import torch

from counterfoil import __version__
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.losses.base import Loss, WeightedSum, plain_settings
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.negatives.store import MINED, NegativeManifest, NegativeStore
from counterfoil.training.config import TrainConfig

LIBRARIES = ("torch", "transformers", "tokenizers", "timm", "open_clip_torch", "peft", "numpy")
_PAPER = re.compile(r"https://arxiv\.org/abs/\d{4}\.\d{4,5}")


def training_record(
    plan: TrainConfig,
    *,
    train: ImageTextDataset,
    dev: ImageTextDataset | None,
    steps: int,
    objective: WeightedSum | None = None,
    negatives: object = None,
    sampling: SamplingConfig | None = None,
) -> dict[str, Any]:
    """Sizes of the data, losses with their papers, settings, negatives and versions.

    Args:
        plan: all settings of the training.
        train: the training split.
        dev: the split that the best epoch was chosen on.
        steps: optimiser steps made.
        objective: the loss; None for tasks that are no loss of scores.
        negatives: mined lists that have a manifest: a store, what carries one, or its folder;
            others are not described.
        sampling: how they are drawn.
    """
    splits = {"train": train, "dev": dev}
    record: dict[str, Any] = {
        "splits": {
            name: {"images": len(split), "captions": len(split.texts)}
            for name, split in splits.items()
            if split is not None
        },
        "losses": _losses(objective) if objective else [],
        "steps": steps,
        "settings": {field.name: _plain(getattr(plan, field.name)) for field in fields(plan)},
        "changed": [f.name for f in fields(plan) if getattr(plan, f.name) != f.default],
        "versions": {
            "Python": platform.python_version(),
            "counterfoil": __version__,
            **_versions(),
        },
    }
    if train.datasets:
        record["weights"] = dict(train.datasets)
    if train.corrections:
        record["corrections"] = train.corrections
    if (manifest := _manifest(negatives)) is not None:
        record["negatives"] = {
            "models": [source.shared().matcher for source in manifest.sources],
            "texts_per_image": manifest.texts_per_image,
            "images_per_text": manifest.images_per_text,
            "filters": list(manifest.filters),
            "fingerprint": manifest.corpus,
            **({"sampling": _plain(sampling)} if sampling else {}),
        }
    return record


def papers_of(loss: Loss) -> list[str]:
    """Addresses of the papers that the docstring of a loss, or of its module, names."""
    for text in (inspect.getdoc(type(loss)), sys.modules[type(loss).__module__].__doc__):
        if found := _PAPER.findall(text or ""):
            return list(dict.fromkeys(found))
    return []


def _losses(objective: WeightedSum) -> list[dict[str, Any]]:
    terms = []
    for name, weight in objective.weights.items():
        loss = cast(Loss, objective.terms[name])
        parts = [part for part in loss.modules() if isinstance(part, Loss)]
        settings = {
            key: value
            for part in reversed(parts)  # those of the outer loss win
            for key, value in plain_settings(part).items()
            if key != "view"
        }
        papers = dict.fromkeys(paper for part in parts for paper in papers_of(part))
        kind = "(".join(part.title for part in parts) + ")" * (len(parts) - 1)
        terms.append(
            {
                "name": name,
                "loss": kind,
                "weight": weight,
                "settings": settings,
                "papers": [*papers],
            }
        )
    return terms


def _plain(value: Any) -> int | float | str | bool | None:
    """A setting as it is, or a nested one as it prints."""
    return value if isinstance(value, int | float | str) or value is None else repr(value)


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        if name == "torch":
            found[name] = str(torch.__version__)
            continue
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _manifest(negatives: object) -> NegativeManifest | None:
    store = getattr(negatives, "store", negatives)
    if isinstance(store, NegativeStore):
        return store.manifest
    if isinstance(store, str | Path) and MINED.exists(Path(store)):
        return MINED.read_manifest(Path(store))
    return None
