"""The bed: closed-form CCA of stored vectors of two frozen towers, as a data set of vectors.

Adapters on it learn in seconds, and reach more than models trained on regions do in minutes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from benchmarks.experiments.cca import DIGITS, WIDTH, Array, _projections, _unit
from counterfoil.core.config import config
from counterfoil.core.io import atomic_folder, read_json, write_json, write_text
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.metrics import OF_ALL_POSITIVES, RECALLS, EvaluationReport, Metric
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.evaluation.truth import Truth, open_truth
from counterfoil.model import Model, load_model
from counterfoil.models.frozen import FrozenAdapters
from counterfoil.scoring.encode import EmbeddedDataset

SPLITS = ("dev", "test")
GUIDE = "guide.npy"  # vectors of captions by the text tower
_AT_ONCE = 8192


def write_bed(towers: Path, data: ImageTextDataset, folder: Path) -> None:
    """Fit CCA on the training split, and write the vectors of all splits.

    Args:
        towers: ``images.npy`` (I, F), ``texts.npy`` (5I, W), five captions an image, with
            ``image_names.json`` and ``splits.json`` by image.
        data: the captions of these images.
        folder: to write.

    Raises:
        ValueError: a file is missing, or the images are others.
    """
    names = read_json(towers / "image_names.json", "names of images")
    splits = ["dev" if split == "val" else split for split in _list(towers / "splits.json")]
    rows = {name: row for row, name in enumerate(data.image_ids)}
    if missing := [name for name in names if name not in rows]:
        raise ValueError(f"{data.name} lacks {len(missing)} of the images, as {missing[0]}")
    texts, counts = data.relation.captions(torch.tensor([rows[name] for name in names]))
    if not bool((counts == 5).all()):
        raise ValueError(f"{data.name} does not have five captions for each image")
    captions = [" ".join(data.texts[row].split()) for row in texts.tolist()]
    owner = np.repeat(np.arange(len(names)), 5)
    images, words = (np.load(towers / f"{s}.npy").astype(np.float64) for s in ("images", "texts"))
    train = np.array(splits) == "train"
    images, words = images - images[train].mean(0), words - words[train[owner]].mean(0)
    paired = train[owner]
    by_image, by_text = _projections(images[owner[paired]], words[paired], WIDTH)
    with atomic_folder(folder) as made:
        np.save(made / "images.npy", _unit([images @ by_image]))
        np.save(made / "texts.npy", _unit([words @ by_text]))
        np.save(made / GUIDE, _half(np.load(towers / "texts.npy")))
        np.save(made / "owner.npy", owner)
        write_json(made / "splits.json", splits)
        write_json(made / "image_ids.json", names)
        write_text(made / "captions.txt", "".join(f"{line}{os.linesep}" for line in captions))


def _list(path: Path) -> list[str]:
    return [str(one) for one in read_json(path, "splits")]


def _half(vectors: Array) -> Array:
    unit = vectors.astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True).clip(1e-12)
    return unit.round(DIGITS).astype(np.float16)


@dataclass(frozen=True)
class StoredData:
    """Vectors of images and captions that were written into a folder.

    Attributes:
        folder: of them.
    """

    adapters: ClassVar[Mapping[str, Any]]  # settings of `FrozenAdapters`
    folder: Path

    def untrained(self) -> Model:
        """Adapters, which begin as the identity; their hidden weights are random."""
        spec = config(FrozenAdapters, **self.adapters)
        processor = ProcessorConfig(texts="vectors", images="features").fit(self.train)
        return Model(spec.build(), processor, "adapters", spec)

    @cached_property
    def data(self) -> ImageTextDataset:
        """All splits."""
        return load_dataset(str(self.folder))

    @cached_property
    def train(self) -> ImageTextDataset:
        """The training split."""
        return self.data.split("train")

    @cached_property
    def splits(self) -> Mapping[str, ImageTextDataset]:
        """Dev and test."""
        return {name: self.data.split(name) for name in SPLITS}


@final
@dataclass(frozen=True)
class Bed(StoredData):
    """The bed and what people judged.

    Attributes:
        folder: as `write_bed` made it.
        judgements: see `counterfoil.evaluation.truth.open_truth`.
        reranker: a model that scores pairs, and the data of these images that it reads.
    """

    adapters: ClassVar[Mapping[str, Any]] = {"width": WIDTH, "hidden": 256, "dropout": 0.3}
    judgements: Path
    reranker: tuple[str, str] | None = None

    @cached_property
    def judged(self) -> Truth:
        """What people judged of the test split."""
        return open_truth("judged", self.splits["test"], self.judgements)

    @cached_property
    def guide(self) -> Tensor:
        """(T, W) unit vectors of the training captions by the text tower."""
        every = torch.from_numpy(np.load(self.folder / GUIDE)).float()
        inside = torch.tensor([split == "train" for split in self.data.splits])
        return every[inside[self.data.text_to_image]]

    @cached_property
    def reranked(self) -> EmbeddedDataset:
        """The re-ranker, with what it makes of the training split, in the rows of the bed.

        Raises:
            ValueError: there is none, or its data have other images or captions.
        """
        if self.reranker is None:
            raise ValueError("this table needs a re-ranker; give --reranker and --regions")
        name, where = self.reranker
        model, other = load_model(name), load_dataset(where).split("train")
        rows = {image: row for row, image in enumerate(other.image_ids)}
        images = torch.tensor([rows.get(image, -1) for image in self.train.image_ids])
        texts, _ = other.relation.captions(images.clamp(min=0))
        ours, theirs = (
            [" ".join(text.lower().split()) for text in some]
            for some in (self.train.texts, [other.texts[row] for row in texts.tolist()])
        )
        if int(images.min()) < 0 or ours != theirs:
            raise ValueError(f"{where} does not hold the images and captions of {self.folder}")
        made = model.embed(other)
        return EmbeddedDataset(made.model, made.images.rows(images), made.texts.rows(texts))

    def measure(self, *models: Model, splits: Sequence[str] = SPLITS) -> dict[str, Tensor]:
        """Points of each image by measure: (I, 2) sums over its queries and their number.

        A measure of both directions has a name for each, as in "test i2t RSum". Scores of several
        models are averaged.
        """
        found: dict[str, Tensor] = {}
        for split in splits:
            data = self.splits[split]
            embedded = [model.embed(data) for model in models]
            found |= _points(split, evaluate_protocol(embedded, data), ())
            if split == "test":
                report = evaluate_protocol(embedded, data, truth=self.judged)
                found |= _points("judged", report, OF_ALL_POSITIVES)
        return found


def _points(name: str, report: EvaluationReport, more: tuple[Metric, ...]) -> dict[str, Tensor]:
    recalls = [metric for metric in RECALLS.values() if metric.in_rsum]
    found = {}
    for ranked in report.ranked:
        rsum = torch.stack([metric.values(ranked) for metric in recalls]).sum(0)
        columns = {"RSum": rsum} | {metric.name: metric.values(ranked) for metric in more}
        for measure, values in columns.items():
            known = values.isfinite()
            points = torch.stack([values.nan_to_num(0), known.double()], 1)
            table = torch.zeros(report.setting.images, 2, dtype=torch.float64)
            table.index_add_(0, ranked.images[known], points[known])
            found[f"{name} {ranked.direction} {measure}"] = table
    return found
