"""Foil accuracy of trainings by kind of edit, on foils of `scenes` that are exactly false."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.foils.measures import (
    BlindControl,
    FoilScore,
    choice_accuracy,
    choice_table,
    measure_foils,
    score_foils,
    train_blind_control,
)
from counterfoil.evaluation.foils.sets import FoilSet, is_scenes, scenes_foil_set
from counterfoil.model import load_model

FOILS, BLIND = "foils", "blind foils"  # metrics; of a kind: "foils: colour"
_RESAMPLES = 1  # an entry holds no interval of its own


@final
class FoilAccuracy:
    """Shares of pairs of caption and foil of which the caption scores higher; ties are wrong.

    The blind control is an n-gram model of the training captions.
    """

    def __init__(self, source: str) -> None:
        """Name the data.

        Args:
            source: as "scenes:images=300,features=regions".

        Raises:
            ValueError: no rendered scenes.
        """
        if not is_scenes(source):
            raise ValueError(
                f"{source} has no exactly false foils; give scenes, as in "
                "scenes:images=300,features=regions"
            )
        self.source = source
        self._of_split = cache(self._foils)

    def numbers(self, split: str, folders: Sequence[Path]) -> dict[str, float]:
        """Percent by metric, of the models in these folders together and of the blind control."""
        foils, blind = self._of_split(split)
        members = [load_model(str(folder)).embed(foils.dataset) for folder in folders]
        lines = measure_foils(foils, score_foils(members, foils), resamples=_RESAMPLES)
        controls = measure_foils(foils, blind.scores, resamples=_RESAMPLES)
        return _percents(FOILS, lines) | _percents(BLIND, controls)

    def by_image(self, split: str, folder: Path | None) -> dict[str, Tensor]:
        """(I, 2) foils of each image that score below their caption, and all of them, by kind.

        Args:
            split: dev or test.
            folder: of a model; None for the blind control.
        """
        foils, blind = self._of_split(split)
        scores = blind.scores
        if folder is not None:
            scores = score_foils([load_model(str(folder)).embed(foils.dataset)], foils)
        right = choice_accuracy(choice_table(foils, scores)).gained
        points = torch.stack([right, torch.ones_like(right)], 1)
        images = torch.tensor([item.images[0] for item in foils.items])
        kinds = [item.category for item in foils.items]
        found = {}
        for kind in sorted(set(kinds)):
            of_kind = torch.tensor([name == kind for name in kinds])
            table = torch.zeros(len(foils.dataset), 2, dtype=torch.float64)
            found[kind] = table.index_add_(0, images[of_kind], points[of_kind])
        return found

    def _foils(self, split: str) -> tuple[FoilSet, BlindControl]:
        foils = scenes_foil_set(self.source, split, seed=0)
        captions = load_dataset(self.source).split("train").texts
        return foils, train_blind_control(captions, "train", foils)


def _percents(metric: str, lines: Sequence[FoilScore]) -> dict[str, float]:
    return {
        metric if one.own else f"{metric}: {one.of}": round(one.value, 4)
        for one in lines
        if not one.macro
    }
