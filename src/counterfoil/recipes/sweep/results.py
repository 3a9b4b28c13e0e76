"""What a sweep has found so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any, final

from counterfoil.recipes.sweep.grid import Axis, Sweep


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished training.

    Attributes:
        seed: which of the repeats.
        folder: of its run, inside that of the sweep.
        epoch: the best one on dev.
        dev: figures of that epoch, by name.
    """

    seed: int
    folder: str
    epoch: float
    dev: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A point of the grid.

    Attributes:
        values: one for each axis.
        dev: the compared figure of every seed; fewer while they are being trained.
        trained: what is finished, in order of the seeds.
        failed: why there will be no more; empty where there is no reason.
    """

    values: tuple[str, ...]
    dev: tuple[float, ...]
    trained: tuple[Trained, ...]
    failed: str = ""

    @property
    def mean(self) -> float:
        """Over seeds."""
        return mean(self.dev)

    @property
    def deviation(self) -> float | None:
        """Between seeds (n - 1); None for a single one."""
        return stdev(self.dev) if len(self.dev) > 1 else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The best point on test.

    Attributes:
        stage: that measured it.
        seed: which of the repeats.
        protocol: in one sentence.
        numbers: metrics by name.
    """

    stage: str
    seed: int
    protocol: str
    numbers: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A sweep and what came of it.

    Attributes:
        sweep: what was varied.
        data: name of the data.
        contents: digest of the data.
        dev: name of the split that is compared on.
        select: the dev figure that is compared, higher is better.
        points: in the order of the grid.
        tests: of the best point, where they were asked for.
    """

    sweep: Sweep
    data: str
    contents: str
    dev: str
    select: str
    points: tuple[Scored, ...]
    tests: tuple[Tested, ...] = ()

    @property
    def ranked(self) -> tuple[Scored, ...]:
        """Points whose seeds are all done, the best on dev first; of equals the earlier."""
        done = [point for point in self.points if len(point.dev) == len(self.sweep.seeds)]
        return tuple(sorted(done, key=lambda point: -point.mean))

    @property
    def failed(self) -> tuple[Scored, ...]:
        """Points that cannot be trained."""
        return tuple(point for point in self.points if point.failed)

    def by_value(self) -> tuple[tuple[Axis, str, tuple[Scored, ...]], ...]:
        """Every value of every axis with the points that have it, the best first."""
        return tuple(
            (axis, value, tuple(p for p in self.ranked if p.values[place] == value))
            for place, axis in enumerate(self.sweep.axes)
            for value in axis.values
        )

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        sweep = self.sweep
        return {
            "sweep": sweep.name,
            "recipe": sweep.recipe.name,
            "stage": sweep.compared,
            "data": {"name": self.data, "digest": self.contents},
            "split": self.dev,
            "select": self.select,
            "axes": [asdict(axis) for axis in sweep.axes],
            "draw": {"points": sweep.draw, "seed": sweep.seed} if sweep.draw else None,
            "seeds": list(sweep.seeds),
            "points": [self._point(point) for point in self.points],
            "ranked": [self.points.index(point) for point in self.ranked],
            "tests": [asdict(test) for test in self.tests],
        }

    def _point(self, point: Scored) -> dict[str, Any]:
        done = len(point.dev) == len(self.sweep.seeds)
        return {
            "settings": {
                key: value
                for axis, value in zip(self.sweep.axes, point.values)
                for key in axis.keys
            },
            "mean": point.mean if done else None,
            "deviation": point.deviation if done else None,
            "failed": point.failed or None,
            "trained": [asdict(one) for one in point.trained],
        }
