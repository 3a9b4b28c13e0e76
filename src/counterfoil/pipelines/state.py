"""What a page says of how it was made."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import torch

from counterfoil import __version__
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.pipelines.pipeline import Evaluate, Pretrain, Recipe, Train
from counterfoil.report.page import Provenance


def current_provenance(
    *, seed: int | None = None, recipe: str = "", digest: str = ""
) -> Provenance:
    """The command line of this process, the versions it runs with, and what else is known.

    Args:
        seed: of the run.
        recipe: its name.
        digest: of the recipe's content.
    """
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return Provenance(
        command=command,
        seed=seed,
        recipe=recipe,
        digest=digest,
        versions=(
            ("counterfoil", __version__),
            ("torch", torch.__version__),
            ("NumPy", np.__version__),
            ("Python", platform.python_version()),
            ("device", "CUDA" if torch.cuda.is_available() else f"CPU {platform.machine()}"),
        ),
        reproduce=(command,),
    )


# What the stages of one run share.


DEV = ("dev", "val", "validation")


class RunStopped(Exception):
    """The time was up; what was done is kept."""


@final
@dataclass(frozen=True, eq=False)
class RunContext:
    """One run.

    Attributes:
        recipe: what is run.
        dataset: all splits.
        folder: of the run.
        digests: of each stage, by name.
        deadline: on the monotonic clock, or None.
    """

    recipe: Recipe
    dataset: ImageTextDataset
    folder: Path
    digests: Mapping[str, str]
    deadline: float | None = None

    def place(self, stage: str) -> Path:
        """Folder of a stage."""
        return self.folder / stage

    def note(self, stage: str) -> Path:
        """File that says what a stage's folder was made from."""
        return self.folder / f"{stage}.json"

    def late(self) -> bool:
        """Whether the time is up."""
        return self.left() is not None and self.left() == 0.0

    def left(self) -> float | None:
        """Minutes left, or None for no limit."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - time.monotonic()) / 60

    @cached_property
    def train(self) -> ImageTextDataset:
        """The training split.

        Raises:
            ValueError: there is none.
        """
        return self.split("train")

    def split(self, name: str) -> ImageTextDataset:
        """A split by name; "all" is everything.

        Raises:
            ValueError: there is none.
        """
        if name == "train" and name in self.__dict__:
            return self.train
        return self.dataset if name == "all" else self.dataset.split(name)

    def measured(self, stage: Evaluate) -> ImageTextDataset:
        """What a stage measures: a split of the data, or of others.

        Raises:
            ValueError: there is none.
        """
        if stage.data is None:
            return self.split(stage.split)
        other = load_dataset(stage.data)
        return other if stage.split == "all" else other.split(stage.split)

    def seed(self, stage: str) -> int | None:
        """The seed of a training stage."""
        found = self.recipe.stage(stage)
        return found.plan.seed if isinstance(found, Train | Pretrain) else None

    @cached_property
    def dev(self) -> ImageTextDataset | None:
        """The split that models are selected on, if there is one."""
        found = [name for name in DEV if name in self.dataset.split_names]
        return self.dataset.split(found[0]) if found else None
