"""State shared by the stages of one run: data, folders, digests, the time left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, final

from counterfoil.core.resumable import WorkStopped
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.pipelines.stages.base import Stage, is_stage_name
from counterfoil.training.stopping import StopMonitor, watch_for_stop

if TYPE_CHECKING:
    from counterfoil.pipelines.pipeline import Recipe

DEV = ("dev", "val", "validation")

S = TypeVar("S", bound=Stage)


class RunStopped(Exception):
    """The time was up or a signal came; finished work is on disk."""


@contextmanager
def stop_watch(minutes: float | None, every: float) -> Iterator[StopMonitor]:
    """Watch the clock and signals; raise `RunStopped` where resumable work has stopped for them."""
    # 0 means no limit to a monitor, and a time that is up is no such thing
    with watch_for_stop(0 if minutes is None else max(minutes, 0.01), every) as watch:
        try:
            yield watch
        except WorkStopped:
            watch.mark_handled()
            late = watch.late and watch.signal_number is None
            raise RunStopped("out of time" if late else "interrupted") from None


@final
@dataclass(frozen=True, eq=False)
class RunContext:
    """One run of a recipe.

    Attributes:
        recipe: the stages to run.
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
        """Folder of a stage, or one from elsewhere."""
        if not is_stage_name(stage):
            return Path(stage)
        return self.folder / stage

    def model_path(self, name: str) -> str:
        """Name that `load_model` opens, of a stage's model or of one from elsewhere."""
        return str(self.place(name)) if is_stage_name(name) else name

    def note(self, stage: str) -> Path:
        """File that records the settings and digest of a stage's folder."""
        return self.place(stage).with_suffix(".json")

    def late(self) -> bool:
        """Return True if the time is up."""
        return self.left() is not None and self.left() == 0.0

    def left(self) -> float | None:
        """Minutes left, or None for no limit."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - time.monotonic()) / 60

    @cached_property
    def train(self) -> ImageTextDataset:
        """The training split, opened once."""
        return self.split("train")

    def split(self, name: str) -> ImageTextDataset:
        """A split by name; "all" is everything."""
        if name == "train" and name in self.__dict__:
            return self.train
        return self.dataset if name == "all" else self.dataset.split(name)

    def stage(self, name: str, kind: type[S]) -> S:
        """A stage by name; the recipe has checked that it is of this kind."""
        stage = self.recipe.stage(name)
        assert isinstance(stage, kind)
        return stage

    @cached_property
    def dev(self) -> ImageTextDataset | None:
        """The split that models are selected on, if there is one."""
        names = [name for name in DEV if name in self.dataset.split_names]
        return self.dataset.split(names[0]) if names else None
