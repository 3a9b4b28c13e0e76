"""The ledger of a run: a line of JSON for every training; what is chosen and declared by it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.truths.arms import CCA, Cost, Point, Trainable
from counterfoil import __version__
from counterfoil.core.io import parse_json, read_json, write_json, write_text
from counterfoil.core.tensors import write_tensors

EXPLORED = (0, 1)  # seeds
LEDGER, DECLARED = "ledger.jsonl", "declared.json"
Line = dict[str, Any]


def read_ledger(folder: Path) -> list[Line]:
    """The lines of a run; none before the first."""
    path = folder / LEDGER
    if not path.exists():
        return []
    lines = path.read_text("utf-8").splitlines()
    return [parse_json(line, f"{path}, line {n}") for n, line in enumerate(lines, 1)]


def key(phase: str, arm: str, point: Point, seed: int) -> str:
    """What a training is known by; also names its file of points."""
    plain = json.dumps([phase, arm, dict(point), seed], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def write_line(
    folder: Path,
    bed: Trainable,
    training: tuple[str, str, Point, int],
    points: Mapping[str, Tensor],
    cost: Cost,
    seconds: float,
) -> None:
    """Add a training, its phase, arm, point and seed; with a file of points where it confirms."""
    phase, arm, point, seed = training
    name = key(phase, arm, point, seed)
    if phase == "confirm":
        (folder / "points").mkdir(parents=True, exist_ok=True)
        plain = {measure.replace(" ", "_"): table.float() for measure, table in points.items()}
        write_tensors(folder / "points" / f"{name}.safetensors", plain, {"arm": arm})
    line = {
        "phase": phase,
        "arm": arm,
        "point": dict(point),
        "seed": seed,
        "key": name,
        "numbers": {
            measure: round((table[:, 0].sum() / table[:, 1].sum()).item(), 4)
            for measure, table in points.items()
        },
        "steps": cost.steps,
        "pairs": cost.pairs,
        "cpu_seconds": round(seconds, 1),
        "data": bed.data.fingerprint,
        "versions": {"counterfoil": __version__, "torch": torch.__version__},
    }
    lines = [*read_ledger(folder), line]
    write_text(folder / LEDGER, "".join(f"{json.dumps(one, sort_keys=True)}\n" for one in lines))


def dev_rsum(line: Line) -> float:
    """What points are chosen by."""
    numbers = line["numbers"]
    return float(numbers["dev i2t RSum"] + numbers["dev t2i RSum"])


def chosen(lines: Iterable[Line]) -> dict[str, Point]:
    """The point of each arm with the best mean RSum on dev over the explored seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        if line["phase"] == "explore":
            place = json.dumps(line["point"], sort_keys=True)
            found.setdefault(line["arm"], {}).setdefault(place, []).append(dev_rsum(line))
    best = {arm: max(points, key=lambda p: sum(points[p])) for arm, points in found.items()}
    return {arm: json.loads(point) for arm, point in best.items()}


def declare(
    folder: Path,
    arms: Sequence[str],
    plain: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    name: str = DECLARED,
) -> Mapping[str, Point]:
    """Write points and comparisons before the first confirming seed; later, read them.

    Raises:
        ValueError: the comparisons were changed since.
    """
    path = folder / name
    if not path.exists():
        points = chosen(line for line in read_ledger(folder) if line["arm"] in arms)
        facts = {"points": points, "contrasts": [*plain], "seeds": [*seeds]}
        write_json(path, facts)
    known = read_json(path, "what was declared")
    if known["contrasts"] != [*plain]:
        raise ValueError(f"{path} declares other comparisons than this code; use a new folder")
    points = known["points"]
    if missing := [arm for arm in arms if arm not in points]:
        raise ValueError(f"{path} has no point of {missing[0]}; use a new folder for other arms")
    return dict(points)


def todo(
    folder: Path,
    grids: Mapping[str, Sequence[Point]],
    plain: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    *,
    explored: bool = False,
    name: str = DECLARED,
    closed: bool = True,
) -> Iterator[tuple[str, str, Point, int]]:
    """Trainings that the ledger lacks, a seed after the other: phase, arm, point and seed.

    Args:
        folder: of the ledger.
        grids: points of each arm.
        plain: the comparisons to declare, as plain values.
        seeds: that confirm.
        explored: stop before anything is declared.
        name: of the file of what is declared.
        closed: confirm the closed form, too, on the first seed.
    """
    have = {line["key"] for line in read_ledger(folder)}
    for seed in EXPLORED:
        for arm, points in grids.items():
            for point in points:
                if key("explore", arm, point, seed) not in have:
                    yield "explore", arm, point, seed
    if explored:
        return
    chosen_points = declare(folder, [*grids], plain, seeds, name)
    for seed in seeds:
        for arm in (CCA, *grids) if closed and seed == seeds[0] else grids:
            point = chosen_points.get(arm, {})
            if key("confirm", arm, point, seed) not in have:
                yield "confirm", arm, point, seed
