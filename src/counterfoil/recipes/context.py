"""What the stages of one run share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.reading import open_corpus
from counterfoil.recipes.recipe import Evaluate, Pretrain, Recipe, Train

DEV = ("dev", "val", "validation")


class Stopped(Exception):
    """The time was up; what was done is kept."""


@final
@dataclass(frozen=True, eq=False)
class Context:
    """One run.

    Attributes:
        recipe: what is run.
        corpus: all splits.
        folder: of the run.
        digests: of each stage, by name.
        deadline: on the monotonic clock, or None.
    """

    recipe: Recipe
    corpus: Corpus
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
    def train(self) -> Corpus:
        """The training split.

        Raises:
            ValueError: there is none.
        """
        return self.split("train")

    def split(self, name: str) -> Corpus:
        """A split by name; "all" is everything.

        Raises:
            ValueError: there is none.
        """
        if name == "train" and name in self.__dict__:
            return self.train
        return self.corpus if name == "all" else self.corpus.split(name)

    def measured(self, stage: Evaluate) -> Corpus:
        """What a stage measures: a split of the data, or of others.

        Raises:
            ValueError: there is none.
        """
        if stage.data is None:
            return self.split(stage.split)
        other = open_corpus(stage.data)
        return other if stage.split == "all" else other.split(stage.split)

    def seed(self, stage: str) -> int | None:
        """The seed of a training stage."""
        found = self.recipe.stage(stage)
        return found.plan.seed if isinstance(found, Train | Pretrain) else None

    @cached_property
    def dev(self) -> Corpus | None:
        """The split that models are selected on, if there is one."""
        found = [name for name in DEV if name in self.corpus.split_names]
        return self.corpus.split(found[0]) if found else None
