"""A bed whose truth is complete: rendered scenes, of which every pair is known to be true or not.

Pictures are the regions of scenes, seen through random features that are never trained (Rahimi
and Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007), which tell a red circle
beside a blue star from a blue circle beside a red star; captions are TF-IDF of words and word
pairs. Closed-form CCA of both is the start of adapters (`World`). Towers begin at random, from the
regions and words themselves (`RegionWorld`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from benchmarks.experiments.cca import Array, _caption_vectors, _projections, _standardise, _unit
from benchmarks.truths.bed import SPLITS, StoredData, _points
from counterfoil.core.config import config, lazy
from counterfoil.core.io import atomic_folder, write_json, write_text
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import Claims
from counterfoil.data.scenes.world import region_features
from counterfoil.evaluation.metrics import OF_ALL_POSITIVES
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.evaluation.truth import Side, Truth, open_truth
from counterfoil.model import Model
from counterfoil.models.layers.towers import GRU, MLPRegions
from counterfoil.models.vsepp import VSEPP

WIDTH = 256  # of the joint space
TOWER, INNER, EMBEDDING = 96, 256, 64  # widths: of trained towers, inside, of a word
RANDOM, WORDS = 800, 800  # random features of a region; reduced TF-IDF of a caption
TRUE = "true.npy"  # which pairs of the training split are true, eight in a byte
_ALL = ("train", *SPLITS)


def write_world(data: ImageTextDataset, folder: Path) -> None:
    """Fit CCA on the training split of `scenes`, and write the vectors of all splits.

    Args:
        data: scenes with features.
        folder: to write; the truth of all training pairs is among its files.

    Raises:
        ValueError: no features, or no scenes.
    """
    parts = {name: data.split(name) for name in _ALL}
    images = _standardise(_region_features(parts))
    captions = {name: list(part.texts) for name, part in parts.items()}
    texts = _caption_vectors(captions, WIDTH, WORDS)
    owner = parts["train"].text_to_image.numpy()
    by_image, by_text = _projections(images["train"][owner], texts["train"], WIDTH)
    starts = np.cumsum([0, *(len(part) for part in parts.values())])
    owners = [part.text_to_image.numpy() + start for part, start in zip(parts.values(), starts)]
    lines = [" ".join(text.split()) for part in captions.values() for text in part]
    claims = Claims(graphs(parts["train"]), parts["train"].texts)
    every = torch.arange(len(parts["train"].texts))
    rows = [claims.true(some, every) for some in torch.arange(len(parts["train"])).split(256)]
    with atomic_folder(folder) as made:
        np.save(made / "images.npy", _unit([images[name] @ by_image for name in _ALL]))
        np.save(made / "texts.npy", _unit([texts[name] @ by_text for name in _ALL]))
        np.save(made / "owner.npy", np.concatenate(owners))
        np.save(made / TRUE, np.packbits(torch.cat(rows).numpy(), axis=1))
        write_json(made / "splits.json", [n for n, part in parts.items() for _ in range(len(part))])
        write_json(made / "image_ids.json", [i for part in parts.values() for i in part.image_ids])
        write_text(made / "captions.txt", "".join(f"{line}{os.linesep}" for line in lines))


def _region_features(parts: Mapping[str, ImageTextDataset]) -> dict[str, Array]:
    """(I, 2F + 2 `RANDOM`) means and maxima of regions and of their random features."""
    if parts["train"].features is None:
        raise ValueError("scenes have no features; give scenes:features=regions")
    rng = torch.Generator().manual_seed(0)
    width = parts["train"].features.width
    weights = torch.randn(width, RANDOM, generator=rng) / width**0.5
    mean, deviation = None, 1.0
    found: dict[str, Array] = {}
    for name, part in parts.items():
        assert part.features is not None
        batch = part.features.take(torch.arange(len(part)))
        if mean is None:
            real = batch.values[batch.mask]
            mean, deviation = real.mean(0), float(real.std())
        pooled = []
        for values, mask in zip(batch.values.split(512), batch.mask.split(512), strict=True):
            # half of a deviation off the mean: a random feature is zero for most regions
            hidden = (((values - mean) / deviation) @ weights - 0.7).relu()
            for each in (values, hidden):
                hidden_away = ~mask.unsqueeze(2)
                pooled.append(each.masked_fill(hidden_away, 0).sum(1) / mask.sum(1, keepdim=True))
                pooled.append(each.masked_fill(hidden_away, -torch.inf).amax(1))
        quarters = [torch.cat(pooled[start::4]) for start in range(4)]
        found[name] = torch.cat(quarters, 1).double().numpy()
    return found


@dataclass(frozen=True)
class World(StoredData):
    """The bed of scenes and its truth.

    Attributes:
        folder: as `write_world` made it.
    """

    adapters: ClassVar[Mapping[str, Any]] = {"width": WIDTH, "hidden": 256, "dropout": 0.5}

    @cached_property
    def true(self) -> Tensor:
        """(I, T) bool, the true pairs of the training split."""
        packed = np.load(self.folder / TRUE)
        return torch.from_numpy(np.unpackbits(packed, axis=1, count=len(self.train.texts))).bool()

    @cached_property
    def truths(self) -> Mapping[str, Truth]:
        """The complete truth of dev and test."""
        return {name: _remembered(data) for name, data in self.splits.items()}

    def dev_rsum(self, model: Model) -> dict[str, Tensor]:
        """What points are chosen by: points of each image of dev, as `measure` names them."""
        dev = self.splits["dev"]
        return _points("dev", evaluate_protocol([model.embed(dev)], dev), ())

    def measure(self, model: Model) -> dict[str, Tensor]:
        """Points of each image by measure, see `benchmarks.truths.bed.Bed.measure`.

        Names begin with a split for own captions, and with "dev true" or "test true" for all true
        pairs.
        """
        found: dict[str, Tensor] = {}
        for split, data in self.splits.items():
            embedded = [model.embed(data)]
            found |= _points(split, evaluate_protocol(embedded, data), ())
            report = evaluate_protocol(embedded, data, truth=self.truths[split])
            found |= _points(f"{split} true", report, OF_ALL_POSITIVES)
        return found


@final
@dataclass(frozen=True)
class RegionWorld(World):
    """The same scenes as regions and words, on which both towers are trained."""

    @cached_property
    def data(self) -> ImageTextDataset:
        """All splits."""
        stored = load_dataset(str(self.folder))
        regions = region_features(graphs(stored))
        return replace(stored, features=regions, text_features=None)

    def untrained(self) -> Model:
        """A small network over every region and a GRU over the words, both pooled to one vector."""
        processor = ProcessorConfig(standardise=True).fit(self.train)
        assert processor.tokenizer is not None
        assert self.train.features is not None
        spec = config(
            VSEPP,
            image=lazy(MLPRegions, features=self.train.features.width, width=TOWER, inner=INNER),
            text=lazy(
                GRU,
                words=processor.tokenizer.size,
                word_width=EMBEDDING,
                width=TOWER,
                bidirectional=False,
            ),
            image_pool="mean+max",
            text_pool="mean+max",
        )
        return Model(spec.build(), processor, "towers", spec)


def _remembered(data: ImageTextDataset) -> Truth:
    """The complete truth, which is asked once, as many models are measured by it."""
    truth = open_truth("complete", data)
    decide = truth.i2t.true
    assert callable(decide)
    table = decide(torch.arange(len(data)), torch.arange(len(data.texts)))
    side = Side(lambda images, texts: table[images][:, texts])
    return replace(truth, i2t=side, t2i=side)
